"""The same numbers as transformers on the same weights: logits, losses and gradients, in float32."""

from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.convert.huggingface import LoadedModel, load_model
from tpulm.models import bert
from tpulm.nn.params import named_leaves
from tpulm.nn.transformer import Execution
from tpulm.objectives.losses import cross_entropy

EXECUTION = Execution(jnp.float32, "none", False)
VOCAB_SIZE, B, L = 100, 3, 12
SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": VOCAB_SIZE}


def theirs(torch: ModuleType, prefix: str, hidden_act: str) -> Any:
    """Their model for pre-training (both heads), with random weights of a size that makes errors visible."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**SIZES, max_position_embeddings=16, hidden_act=hidden_act)
    network = getattr(transformers, f"{prefix}ForPreTraining")(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network.eval()


def ours(network: Any, folder: Path) -> LoadedModel:
    """What transformers saves of it, as we load it."""
    network.save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(5, VOCAB_SIZE))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return load_model(folder)


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCAB_SIZE, (B, L))
    mask = np.ones((B, L), np.int64)
    mask[1, 9:] = 0
    types = np.zeros((B, L), np.int64)
    types[:, 5:9] = 1
    labels = np.full((B, L), -100)
    labels[:, [1, 4, 7]] = ids[:, [1, 4, 7]]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "labels": labels}


@pytest.mark.parametrize(("prefix", "hidden_act"), [("Bert", "gelu_new"), ("MegatronBert", "relu")])
def test_logits_losses_and_gradients(torch: ModuleType, tmp_path: Path, prefix: str, hidden_act: str):
    network, data, pairs = theirs(torch, prefix, hidden_act), batch(), np.array([0, 1, 1])
    given = data | {"next_sentence_label": pairs}
    out = network(**{name: torch.from_numpy(value) for name, value in given.items()})
    out.loss.backward()
    loaded = ours(network, tmp_path / "weights")
    model, first = loaded.config, loaded.params
    ids, segments, types = data["input_ids"], data["attention_mask"] - 1, data["token_type_ids"]
    tokens = bert.EncoderInput(*(jnp.asarray(part, jnp.int32) for part in (ids, segments, types)), positions=None)
    labels = jnp.asarray(np.maximum(data["labels"], 0), jnp.int32).reshape(-1)
    weights = jnp.asarray(data["labels"] >= 0, jnp.float32).reshape(-1)

    @jax.jit
    def run(params: bert.Bert) -> Any:
        def loss(params: bert.Bert) -> tuple[jax.Array, Any]:
            hidden = bert.encode(params, tokens, config=model, execution=EXECUTION, randomness=None)
            logits = bert.masked_logits(params, hidden, config=model, execution=EXECUTION, vocab_size=VOCAB_SIZE)
            assert params.next_sentence is not None
            pair_logits = bert.next_sentence_logits(params.next_sentence, hidden, execution=EXECUTION)
            masked = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels, weights)
            pair = cross_entropy(pair_logits, jnp.asarray(pairs, jnp.int32), jnp.ones(B))
            return masked.loss / masked.weight + pair.loss / pair.weight, (logits, pair_logits)

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, (logits, pair_logits)), grads = run(first)  # pyright: ignore[reportArgumentType]
    real, expected = data["attention_mask"] == 1, out.prediction_logits.detach().numpy()
    np.testing.assert_allclose(np.asarray(logits)[real][:, :VOCAB_SIZE], expected[real], atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(pair_logits, out.seq_relationship_logits.detach().numpy(), atol=1e-4, rtol=1e-5)
    assert float(loss) == pytest.approx(out.loss.item(), abs=1e-4)

    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.grad)
    for name, expected in named_leaves(ours(network, tmp_path / "gradients").params).items():
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(named_leaves(grads)[name], expected, atol=1e-4 * scale, err_msg=name)
