"""config.json says what ModelConfig says, and what it cannot say is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tpulm.config import ModelConfig
from tpulm.convert.config_json import from_config_json, to_config_json
from tpulm.errors import DataError

CONFIG = ModelConfig(
    num_layers=3,
    hidden_size=24,
    num_heads=2,
    intermediate_size=40,
    max_positions=77,
    dropout=0.05,
    attention_dropout=0.2,
    norm_epsilon=1e-6,
    initializer_range=0.03,
)


def described(**changes: Any) -> dict[str, Any]:
    values = to_config_json(CONFIG, "masked", vocab_size=100, pad_token_id=0)
    return {key: value for key, value in {**values, **changes}.items() if value is not ...}


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu", "silu"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_there_and_back(norm_position, activation):
    config = CONFIG.model_copy(update={"norm_position": norm_position, "activation": activation})
    values = to_config_json(config, "next_sentence", vocab_size=100, pad_token_id=3)
    found = from_config_json(values, origin="config.json")
    assert found.config == config
    assert found.vocab_size == 100
    assert values["pad_token_id"] == 3


@pytest.mark.parametrize(("head", "architecture"), [("masked", "ElectraForMaskedLM"), ("detection", "ElectraForPreTraining")])
def test_electra_there_and_back(head, architecture):
    config = ModelConfig.model_validate(CONFIG.model_dump() | {"architecture": "electra", "embedding_size": 10})
    values = to_config_json(config, head, vocab_size=100, pad_token_id=0)
    assert values["architectures"] == [architecture]
    assert from_config_json(values, origin="config.json").config == config


def test_the_published_activation_is_the_tanh_form():
    assert described()["hidden_act"] == "gelu_new"


@pytest.mark.parametrize(
    ("norm_position", "head", "architecture"),
    [
        ("post", "masked", "BertForMaskedLM"),
        ("post", "next_sentence", "BertForPreTraining"),
        ("pre", "masked", "MegatronBertForMaskedLM"),
        ("pre", "next_sentence", "MegatronBertForPreTraining"),
    ],
)
def test_the_class_follows_from_norms_and_heads(norm_position, head, architecture):
    config = CONFIG.model_copy(update={"norm_position": norm_position})
    values = to_config_json(config, head, vocab_size=9, pad_token_id=0)
    assert values["architectures"] == [architecture]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "roberta"},
            "model_type 'roberta' is not supported; known: 'bert', 'megatron-bert', 'electra', 'eurobert', 'gpt2', 'modern",
        ),
        ({"model_type": ...}, "the key 'model_type' is missing"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported; known: gelu_new"),
        ({"num_hidden_layers": ..., "num_hidden_layer": 3}, "'num_hidden_layers' is missing. Did you mean 'num_hidden_layer'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; only 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True; only False is supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"vocab_size": 0}, "vocab_size must be a positive whole number, not 0"),
        ({"num_attention_heads": 5}, "hidden_size 24 is not a multiple of num_heads 5"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"type_vocab_size": False}, "type_vocab_size is False: a number is expected, not true or false"),
        ({"type_vocab_size": 0}, "no class of transformers has these settings"),
        ({"vocab_size": True}, "vocab_size must be a positive whole number, not True"),
        ({"architectures": -1e38}, "architectures must be a list of names of classes, not -1e+38"),
        ({"architectures": [["BertModel"]]}, "architectures must be a list of names of classes"),
        ({"hidden_dropout_prob": "x" * 1_000}, "hidden_dropout_prob is 'xxxxx"),
    ],
)
def test_what_is_not_ours_is_refused(changes, message):
    with pytest.raises(DataError) as raised:
        from_config_json(described(**changes), origin="x/config.json")
    assert str(raised.value).startswith("x/config.json: ")
    assert message in str(raised.value)


def test_a_list_is_no_config():
    with pytest.raises(DataError, match="expected a JSON object, found list"):
        from_config_json([], origin="config.json")
