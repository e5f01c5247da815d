"""config.json says what ModelConfig and HeadConfig say, and what it cannot say is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.convert.config_json import HeadConfig, from_config_json, head_from_json, head_to_json, to_config_json
from tpulm.convert.heads import Head
from tpulm.convert.relatives import as_bert_config, as_bert_tensors
from tpulm.errors import DataError
from tpulm.special_tokens import SpecialTokens

SIZES: dict[str, Any] = {"num_layers": 3, "hidden_size": 24, "num_heads": 2, "intermediate_size": 40, "max_positions": 77}
CONFIG = ModelConfig(**SIZES, dropout=0.05, attention_dropout=0.2, norm_epsilon=1e-6, initializer_range=0.03)


def described(**changes: Any) -> dict[str, Any]:
    values = to_config_json(CONFIG, "masked", vocab_size=100, special=SpecialTokens(0, 1, 2, 3, 4))
    return {key: value for key, value in {**values, **changes}.items() if value is not ...}


ELECTRA = {"architecture": "electra", "embedding_size": 10}


def test_there_and_back_under_the_name_of_the_class():
    cases: list[tuple[dict[str, Any], Head, str]] = [
        ({"activation": "gelu"}, "masked", "BertForMaskedLM"),
        ({"activation": "relu"}, "next_sentence", "BertForPreTraining"),
        ({"norm_position": "pre", "activation": "silu"}, "masked", "MegatronBertForMaskedLM"),
        ({"norm_position": "pre"}, "next_sentence", "MegatronBertForPreTraining"),
        (ELECTRA, "masked", "ElectraForMaskedLM"),
        (ELECTRA, "detection", "ElectraForPreTraining"),
    ]
    for settings, head, named in cases:
        config = ModelConfig.model_validate(CONFIG.model_dump() | settings)
        values = to_config_json(config, head, vocab_size=100, special=SpecialTokens(3, 1, 2, 0, 4))
        found = from_config_json(values, origin="config.json")
        assert (found.config, found.vocab_size) == (config, 100)
        assert (values["architectures"], values["pad_token_id"]) == ([named], 3)
    assert described()["hidden_act"] == "gelu_new"  # the published activation is the tanh form


def test_a_missing_key_means_what_it_means_in_transformers():
    transformers = pytest.importorskip("transformers")
    for name in ("BertConfig", "ElectraConfig"):
        whole = getattr(transformers, name)(
            vocab_size=100, hidden_size=24, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40
        ).to_dict()
        sizes = {key: whole[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
        little = {
            "model_type": whole["model_type"],
            "intermediate_size": 40,
            "architectures": [f"{name[:-6]}ForMaskedLM"],
            **sizes,
        }
        assert from_config_json(little, origin="x").config == from_config_json({**whole, **little}, origin="x").config


def test_what_is_not_ours_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model_type": ...}, "'model_type'"), ({"model_type": "roberta"}, "'roberta'"), ({"hidden_act": "mish"}, "'mish'"),
        ({"num_hidden_layers": ..., "num_hidden_layer": 3}, "'num_hidden_layer'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"), ({"is_decoder": True}, "is_decoder is True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"), ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_attention_heads": 5}, "num_heads 5"), ({"vocab_size": 0}, "not 0"),
        ({"type_vocab_size": False}, "type_vocab_size is False"), ({"type_vocab_size": 0}, "class of transformers"),
        ({"vocab_size": True}, "vocab_size"), ({"architectures": -1e38}, "-1e+38"),
        ({"architectures": [["BertModel"]]}, "architectures"), ({"hidden_dropout_prob": "x" * 1_000}, "hidden_dropout_prob"),
    ]  # fmt: skip
    for changes, message in cases:
        with pytest.raises(DataError, match=rf"^x/config\.json: .*{re.escape(message)}"):
            from_config_json(described(**changes), origin="x/config.json")
    with pytest.raises(DataError, match="list"):
        from_config_json([], origin="config.json")


# -- heads ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["bert", "electra", "eurobert", "modernbert"])
@pytest.mark.parametrize("answers", [HeadConfig(("neg", "pos")), HeadConfig(("a", "b", "c"), several=True), HeadConfig(())])
def test_answers_come_back(model_type: str, answers: HeadConfig) -> None:
    assert head_from_json({"model_type": model_type, **head_to_json(answers, model_type)}, origin="config.json") == answers


def test_heads_of_others() -> None:
    for values, expected in (
        ({}, ("LABEL_0", "LABEL_1")),  # as transformers leaves it out
        ({"problem_type": "regression"}, ()),
        ({"id2label": {0: "no", 1: "yes"}}, ("no", "yes")),
        ({"id2label": {"0": "LABEL_0"}}, ()),
    ):
        assert head_from_json(values, origin="config.json").names == expected


def test_heads_that_are_not_supported_are_refused() -> None:
    for values, message in (
        ({"problem_type": "ranking"}, "ranking"),
        ({"id2label": {"0": "a", "2": "b"}}, r"\[0, 2\]"),
        ({"id2label": ["a", "b"]}, "id2label"),
        ({"model_type": "eurobert", "id2label": {"0": "a", "1": "b"}}, "'late'"),
        ({"model_type": "modernbert", "classifier_pooling": "max"}, "'max'"),
        ({"problem_type": "regression", "id2label": {"0": "a", "1": "b"}}, "one output, not 2"),
    ):
        with pytest.raises(DataError, match=message):
            head_from_json(values, origin="config.json")


def test_a_config_of_wrong_types_is_refused():
    wrong: list[dict[str, Any]] = [{"model_type": {}}, {"model_type": ["roberta"]}, {"model_type": "distilbert"}]
    for values in (*wrong, {"model_type": "roberta", "architectures": 5}):
        with pytest.raises(DataError, match="made-up"):
            from_config_json(as_bert_config(values, origin="made-up"), origin="made-up")


def test_a_single_number_in_place_of_a_table_is_left_to_the_check_of_shapes():
    name = "embeddings.position_embeddings.weight"
    read, _ = as_bert_tensors({f"roberta.{name}": np.zeros(())}, {"model_type": "roberta"}, origin="made-up")
    assert {name: tensor.shape for name, tensor in read.items()} == {f"bert.{name}": ()}
