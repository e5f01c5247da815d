"""The settings as models: every default is valid, every field documented by its name's unit or a comment."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import ValidationError

from tpulm import config
from tpulm.config import schema

MODELS = [item for item in vars(schema).values() if isinstance(item, type) and issubclass(item, schema.Settings)]


@pytest.mark.parametrize("model", [item for item in MODELS if item not in (schema.Settings, schema.SourceConfig)])
def test_defaults_are_valid_and_survive_json(model: type[schema.Settings]):
    assert model.model_validate_json(model().model_dump_json()) == model()


@pytest.mark.parametrize("model", MODELS)
def test_every_model_refuses_unknown_keys_and_changes(model: type[schema.Settings]):
    assert model.model_config.get("extra") == "forbid"
    assert model.model_config.get("frozen") is True


def test_the_package_exports_every_model():
    assert {model.__name__ for model in MODELS} - {"Settings"} <= set(config.__all__)


def test_sources_may_be_plain_paths():
    assert schema.CorpusConfig.model_validate({"sources": "a.txt"}).sources[0].path == "a.txt"
    mixed = schema.CorpusConfig.model_validate({"sources": ["a.txt", {"path": "b.jsonl", "weight": 2}]}).sources
    assert [source.weight for source in mixed] == [1.0, 2.0]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_rates_are_finite_and_positive(value: float):
    if 0 < value < float("inf"):
        assert schema.OptimizerConfig(learning_rate=value).learning_rate == value
    else:
        with pytest.raises(ValidationError):
            schema.OptimizerConfig(learning_rate=value)


@given(mask=st.floats(0, 1), random=st.floats(0, 1))
def test_masking_shares_never_exceed_the_whole(mask: float, random: float):
    try:
        schema.ObjectiveConfig(mask_token_fraction=mask, random_token_fraction=random)
    except ValidationError:
        assert mask + random > 1.0
    else:
        assert mask + random <= 1.0 + 1e-9
