"""What a model computes here, beside what transformers or onnxruntime computes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpulm.convert.huggingface import LoadedModel
from tpulm.models import bert, classifier, decoder, electra
from tpulm.nn.params import ParamSpec, map_specs, named_leaves, ones
from tpulm.nn.transformer import Execution

EXECUTION = Execution(dtype=jnp.float32, remat="none", unroll=False)


def rows(vocab_size: int = 60) -> dict[str, np.ndarray]:
    """Five rows of 20 ordinary tokens with two segments each, of which the last have 0, 1, … up to 17 padding tokens."""
    ids = np.random.default_rng(3).integers(5, vocab_size, (5, 20)).astype(np.int32)
    lengths = np.array([20, 19, 12, 7, 3])[:, None]
    real = np.arange(20)[None] < lengths
    second = real & (np.arange(20)[None] >= lengths // 2)
    return {"ids": np.where(real, ids, 0), "real": real, "types": second.astype(np.int32)}


def ours(model: LoadedModel, ids: np.ndarray, real: np.ndarray, types: np.ndarray | None = None) -> np.ndarray:
    """Logits of its head, or the last hidden states of a bare encoder; what is not `real` is padding."""
    if types is None and model.config.token_types:
        types = np.zeros_like(ids)
    tokens = bert.EncoderInput(jnp.asarray(ids), jnp.where(real, 0, -1), None if types is None else jnp.asarray(types), None)
    params: Any = model.params
    use: dict[str, Any] = {"config": model.config, "execution": EXECUTION}
    if model.head in ("classification", "choice"):
        assert model.head_config is not None
        return np.asarray(classifier.logits(params, tokens, pooling=model.head_config.pooling or "cls", randomness=None, **use))
    if model.head in ("tokens", "spans"):
        return np.asarray(classifier.token_logits(params, tokens, randomness=None, **use))
    hidden = bert.encode(params, tokens, randomness=None, **use)
    if model.head == "embedding":
        return np.asarray(hidden)
    if model.head == "detection":
        return np.asarray(electra.replaced_logits(params.detection_head, hidden, **use))
    if model.head == "causal":
        logits = decoder.next_token_logits(params, hidden, execution=EXECUTION, vocab_size=model.vocab_size)
    else:
        logits = bert.masked_logits(params, hidden, vocab_size=model.vocab_size, **use)
    return np.asarray(logits)[..., : model.vocab_size]


def found_whole(loader: Any, folder: Path) -> Any:
    """The folder's model as a class of transformers loads it, which finds every weight and no other."""
    model, info = loader.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def theirs(torch: Any, model: Any, **inputs: np.ndarray) -> Any:
    """What a model of transformers gives."""
    with torch.no_grad():
        return model(**{name: torch.tensor(array).long() for name, array in inputs.items()})


def assert_same_leaves(found: Any, expected: Any) -> None:
    """Of two trees of parameters, or of arrays by their names: bit for bit."""
    ours, theirs = (tree if isinstance(tree, dict) else named_leaves(tree) for tree in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, leaf in theirs.items():
        np.testing.assert_array_equal(ours[name], leaf, err_msg=name, strict=True)


def random_params(tree: Any, *, vocab_size: int, seed: int = 7) -> Any:
    """A tree of specs with numbers far from zero; rows that only pad the vocabulary are zero, as nothing keeps them."""
    random = np.random.default_rng(seed)

    def draw(leaf: ParamSpec) -> np.ndarray:
        array = random.normal(float(leaf.init is ones), 0.3, leaf.shape).astype(np.float32)  # the scales of norms begin at 1
        if leaf.axes[0] == "vocab":
            array[vocab_size:] = 0.0
        return array

    return map_specs(draw, tree)
