"""What a model computes here, beside what transformers or onnxruntime computes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tpulm.convert.huggingface import LoadedModel
from tpulm.models import bert, classifier, decoder, electra
from tpulm.nn.params import named_leaves
from tpulm.nn.transformer import Execution

EXECUTION = Execution(dtype=jnp.float32, remat="none", unroll=False)


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
