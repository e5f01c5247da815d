"""ONNX graphs compute what the models do: in onnxruntime, on rows of several lengths, padding included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from outputs import EXECUTION, ours, random_params

from command_line import invoke
from encoders import KINDS, WORDS, build_encoder
from tpulm.config import ModelConfig
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head, head_of, spec_of
from tpulm.convert.huggingface import LoadedModel, load_model, save_loaded
from tpulm.convert.onnx import export_onnx
from tpulm.errors import ConfigError
from tpulm.models import bert, classifier

pytestmark = pytest.mark.needs_peer


@pytest.fixture
def onnxruntime() -> Any:
    pytest.importorskip("onnx")
    return pytest.importorskip("onnxruntime")


def computed(model: LoadedModel, ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> np.ndarray:
    if model.head != "embedding":
        return ours(model, ids, mask, types)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    tokens = bert.EncoderInput(jnp.asarray(ids), jnp.asarray(mask - 1), jnp.asarray(types), positions)
    params: Any = model.params
    assert model.head_config is not None
    settings: dict[str, Any] = {"pooling": model.head_config.pooling, "normalized": model.head_config.normalized}
    settings |= {"config": model.config, "execution": EXECUTION, "randomness": None, "texts": 1}
    return np.asarray(classifier.vectors(params, tokens, **settings)[:, 0])


def with_head(model: LoadedModel, head: Head, head_config: HeadConfig | None, **changes: Any) -> LoadedModel:
    """The same settings with random weights and another head."""
    config = ModelConfig.model_validate({**model.config.model_dump(), **changes})
    tree = spec_of(config, head, vocab_size=model.vocab_size, num_outputs=head_config.num_outputs if head_config else 0)
    params = random_params(tree, vocab_size=model.vocab_size)
    head = head if head in ("spans", "choice") else head_of(params)
    return model._replace(params=params, config=config, head=head, head_config=head_config)


Case = tuple[str, Head, HeadConfig | None, dict[str, Any]]
CASES: list[Case] = [
    *((kind, KINDS[kind][0], None, {}) for kind in ("bert", "electra", "megatron", "eurobert", "modernbert")),
    ("bert", "next_sentence", None, {"activation": "relu"}),
    *((kind, "classification", HeadConfig(("a", "b", "c")), {}) for kind in ("bert", "electra", "eurobert", "modernbert")),
    *((kind, "tokens", HeadConfig(("O", "B-X", "I-X")), {}) for kind in ("bert", "modernbert")),
    ("bert", "classification", HeadConfig(("a", "b", "c")), {"token_types": 1}),
    ("modernbert", "classification", HeadConfig(("a", "b", "c")), {"activation": "silu"}),
    ("modernbert", "tokens", HeadConfig(("O", "B-X", "I-X")), {"activation": "silu"}),
    ("electra", "masked", None, {"activation": "relu"}),
    ("electra", "spans", HeadConfig(()), {}),
    ("modernbert", "choice", HeadConfig(()), {}),
    ("modernbert", "classification", HeadConfig(("a", "b", "c"), pooling="mean"), {}),
    ("bert", "embedding", HeadConfig((), pooling="mean"), {}),
    ("bert", "embedding", HeadConfig((), pooling="mean", normalized=False), {}),
    ("modernbert", "embedding", HeadConfig((), pooling="cls"), {}),
    ("eurobert", "embedding", HeadConfig((), pooling="mean"), {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_onnxruntime_computes_the_same(case: Case, onnxruntime: Any, tmp_path: Path) -> None:
    kind, head, head_config, changes = case
    model = with_head(load_model(build_encoder(kind, tmp_path)), head, head_config, **changes)
    export_onnx(model, tmp_path / "onnx" / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    assert names == ["input_ids", "attention_mask", "token_type_ids"][: 3 if model.config.token_types > 1 else 2]
    outputs = {"embedding": ["sentence_embedding"], "spans": ["start_logits", "end_logits"]}.get(head, ["logits"])
    assert [one.name for one in session.get_outputs()] == outputs
    rng = np.random.default_rng(0)
    widths = np.array([3, 12, 12, 12, 32, 32])  # of the rows, which go through the graph by width
    ids = rng.integers(5, len(WORDS), (6, 32)).astype(np.int32)
    mask = (np.arange(32)[None, :] < rng.integers(2, widths + 1)[:, None]).astype(np.int32)
    types = (np.arange(32)[None, :] > widths[:, None] // 2).astype(np.int32) * mask
    expected = computed(model, ids, mask, types)
    values = dict(zip(("input_ids", "attention_mask", "token_type_ids"), (ids, mask, types), strict=True))
    for width in np.unique(widths):
        some = widths == width
        given = session.run(None, {name: values[name][some, :width].astype(np.int64) for name in names})
        found, wanted = np.stack(given, axis=2) if head == "spans" else given[0], expected[some]
        if head not in ("classification", "choice", "embedding"):  # one answer a token
            real = mask[some, :width] > 0
            found, wanted = found[real], wanted[:, :width][real]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("token_types", [1, 2])
def test_the_graph_takes_what_tokenizers_give(transformers: Any, onnxruntime: Any, token_types: int, tmp_path: Path) -> None:
    model = with_head(load_model(build_encoder("bert", tmp_path)), "masked", None, token_types=token_types)
    folder = tmp_path / "saved"
    save_loaded(folder, model)
    export_onnx(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    given = transformers.AutoTokenizer.from_pretrained(folder)(["good film"], return_tensors="np")
    assert {one.name for one in session.get_inputs()} == {*given}
    assert session.run(None, dict(given))[0].shape == (*given["input_ids"].shape, model.vocab_size)


def test_the_command_writes_a_file_hardly_larger_than_the_weights(onnxruntime: Any, tmp_path: Path) -> None:
    folder = build_encoder("bert", tmp_path)
    done = invoke("export", folder, "--format", "onnx", "--json", code=0)
    assert json.loads(done.stdout) == {"export": [str(folder / "onnx" / "model.onnx")]}
    weights = (folder / "model.safetensors").stat().st_size
    assert weights < (folder / "onnx" / "model.onnx").stat().st_size < weights + 50_000


def test_a_decoder_is_refused(onnxruntime: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="causal"):
        export_onnx(load_model(build_encoder("decoder", tmp_path)), tmp_path / "model.onnx")
