"""ONNX graphs compute what the models do: in onnxruntime, on rows of several lengths, padding included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from command_line import invoke
from encoders import KINDS, WORDS, build_encoder
from tpulm.config import ModelConfig
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head, head_of, spec_of
from tpulm.convert.huggingface import LoadedModel, load_model
from tpulm.convert.onnx import export_onnx
from tpulm.errors import ConfigError
from tpulm.models import bert, classifier, electra, embedding
from tpulm.nn.params import initialize
from tpulm.nn.transformer import Execution

EXECUTION: dict[str, Any] = {"execution": Execution(dtype=jnp.float32, remat="none", unroll=False)}


def ours(model: LoadedModel, ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> Any:
    tokens = bert.Tokens(jnp.asarray(ids), jnp.asarray(mask - 1), jnp.asarray(types), None)
    params: Any = model.params
    settings: Any = {"config": model.config, **EXECUTION}
    if model.head in ("classification", "choice"):
        pooling: Any = (model.head_config and model.head_config.pooling) or "cls"
        return classifier.logits(params, tokens, **settings, randomness=None, pooling=pooling)
    if model.head in ("tokens", "spans"):
        return classifier.token_logits(params, tokens, **settings, randomness=None)
    if model.head == "embedding":
        tokens = tokens._replace(positions=jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape))
        assert model.head_config is not None
        settings |= {"pooling": model.head_config.pooling, "normalized": model.head_config.normalized}
        return embedding.vectors(params, tokens, **settings, randomness=None, texts=1)[:, 0]
    hidden = bert.encode(params, tokens, **settings, randomness=None)
    if model.head == "detection":
        return electra.replaced_logits(params.detection_head, hidden, **settings)
    return bert.masked_logits(params, hidden, **settings, vocab_size=model.vocab_size)[..., : model.vocab_size]


def with_head(model: LoadedModel, head: Head, head_config: HeadConfig | None, **changes: Any) -> LoadedModel:
    """The same settings with random weights and another head."""
    config = ModelConfig.model_validate({**model.config.model_dump(), **changes})
    tree = spec_of(config, head, vocab_size=model.vocab_size, num_outputs=head_config.num_outputs if head_config else 0)
    params = jax.device_get(initialize(tree, jax.random.key(2)))
    params = jax.tree.map(lambda leaf: leaf + 0.05 * np.sin(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape), params)
    head = head if head in ("spans", "choice") else head_of(params)
    return model._replace(params=params, config=config, head=head, head_config=head_config)


CASES: list[tuple[str, Head, HeadConfig | None, dict[str, Any]]] = [
    *((kind, KINDS[kind][0], None, {}) for kind in ("bert", "electra", "megatron", "eurobert", "modernbert")),
    ("bert", "next_sentence", None, {"activation": "relu"}),
    *((kind, "classification", HeadConfig(("a", "b", "c")), {}) for kind in ("bert", "electra", "eurobert", "modernbert")),
    *((kind, "tokens", HeadConfig(("O", "B-X", "I-X")), {}) for kind in ("bert", "modernbert")),
    ("electra", "spans", HeadConfig(()), {}),
    ("modernbert", "choice", HeadConfig(()), {}),
    ("modernbert", "classification", HeadConfig(("a", "b", "c"), pooling="mean"), {}),
    ("bert", "embedding", HeadConfig((), pooling="mean"), {}),
    ("bert", "embedding", HeadConfig((), pooling="mean", normalized=False), {}),
    ("modernbert", "embedding", HeadConfig((), pooling="cls"), {}),
    ("eurobert", "embedding", HeadConfig((), pooling="mean"), {}),
]


@pytest.mark.needs_peer
@pytest.mark.parametrize(
    ("kind", "head", "head_config", "changes"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_onnxruntime_computes_the_same(
    kind: str, head: Head, head_config: HeadConfig | None, changes: dict[str, Any], tmp_path: Path
) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    model = with_head(load_model(build_encoder(kind, tmp_path)), head, head_config, **changes)
    export_onnx(model, tmp_path / "onnx" / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    assert names == ["input_ids", "attention_mask", "token_type_ids"][: 3 if model.config.token_types else 2]
    outputs = {"embedding": ["sentence_embedding"], "spans": ["start_logits", "end_logits"]}.get(head, ["logits"])
    assert [one.name for one in session.get_outputs()] == outputs
    rng = np.random.default_rng(0)
    for rows, length in ((1, 3), (3, 12), (2, 32)):
        ids = rng.integers(5, len(WORDS), (rows, length)).astype(np.int32)
        mask = (np.arange(length)[None, :] < rng.integers(2, length + 1, rows)[:, None]).astype(np.int32)
        types = (np.arange(length)[None, :] > length // 2).astype(np.int32) * mask
        values = dict(zip(("input_ids", "attention_mask", "token_type_ids"), (ids, mask, types), strict=True))
        given = session.run(None, {name: values[name].astype(np.int64) for name in names})
        found = np.stack(given, axis=2) if head == "spans" else given[0]
        expected = np.asarray(ours(model, ids, mask, types))
        assert found.shape == expected.shape
        of_tokens = expected.shape[:2] == ids.shape
        np.testing.assert_allclose(
            found[mask > 0] if of_tokens else found, expected[mask > 0] if of_tokens else expected, atol=1e-4
        )


@pytest.mark.needs_peer
def test_the_file_is_hardly_larger_than_the_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    export_onnx(load_model(build_encoder("bert", tmp_path)), tmp_path / "model.onnx")
    weights = (tmp_path / "bert" / "model.safetensors").stat().st_size
    assert weights < (tmp_path / "model.onnx").stat().st_size < weights + 50_000


@pytest.mark.needs_peer
def test_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    done = invoke("export", str(build_encoder("electra", tmp_path)), "--format", "onnx", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"export": [str(tmp_path / "electra" / "onnx" / "model.onnx")]}
    assert (tmp_path / "electra" / "onnx" / "model.onnx").stat().st_size > 10_000


@pytest.mark.needs_peer
def test_a_decoder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(ConfigError, match="only encoders are exported as ONNX"):
        export_onnx(load_model(build_encoder("decoder", tmp_path)), tmp_path / "model.onnx")
