"""BERT computes what transformers' does on the same weights; padding of its vocabulary is inert; FLOPs are its products'."""

from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.convert.huggingface import LoadedModel, load_model
from tpulm.models import bert
from tpulm.nn.params import initialize, named_leaves, shapes
from tpulm.nn.transformer import Execution
from tpulm.objectives.losses import cross_entropy
from tpulm.plan import costs, hlo

EXECUTION = Execution(jnp.float32, "none", False)
VOCAB_SIZE = 100
SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": 16}


def some_tokens(rows: int = 2, length: int = 8) -> bert.EncoderInput:
    ids = jax.random.randint(jax.random.key(0), (rows, length), 0, VOCAB_SIZE, jnp.int32)
    zeros = jnp.zeros_like(ids)
    return bert.EncoderInput(ids, zeros, zeros, None)


def test_padding_of_the_vocabulary_is_never_predicted_and_gets_no_gradient():
    config = ModelConfig(**SIZES)
    params = initialize(bert.spec(config, vocab_size=VOCAB_SIZE, next_sentence=False), jax.random.key(0))

    @jax.jit
    def run(params: bert.Bert) -> tuple[jax.Array, Any]:
        def loss(params: bert.Bert) -> tuple[jax.Array, jax.Array]:
            hidden = bert.encode(params, some_tokens(), config=config, execution=EXECUTION, randomness=None)
            logits = bert.masked_logits(params, hidden, config=config, execution=EXECUTION, vocab_size=VOCAB_SIZE)
            return -jnp.mean(jax.nn.log_softmax(logits)[..., 5]), logits

        (_, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return logits, grads

    logits, grads = run(params)
    assert logits.shape == (2, 8, 128)
    assert (logits[..., VOCAB_SIZE:] <= -1e8).all()
    assert (np.asarray(jax.nn.softmax(logits))[..., VOCAB_SIZE:] == 0).all()
    assert not np.asarray(grads.embeddings.tokens)[VOCAB_SIZE:].any()
    assert not np.asarray(grads.masked_head.output_bias)[VOCAB_SIZE:].any()
    assert np.asarray(grads.embeddings.tokens)[:VOCAB_SIZE].any(axis=1).all()


@pytest.mark.parametrize("next_sentence", [False, True])
def test_flops_are_those_of_the_products_in_the_program(next_sentence: bool):
    """Counted in the program of a forward pass over one row, padding of the vocabulary included there."""
    config, length, predictions = ModelConfig.model_validate(SIZES | {"num_layers": 3}), 8, 3

    def forward(params: bert.Bert, tokens: bert.EncoderInput) -> Any:
        hidden = bert.encode(params, tokens, config=config, execution=EXECUTION, randomness=None)
        out = [bert.masked_logits(params, hidden[0, :predictions], config=config, execution=EXECUTION, vocab_size=128)]
        if params.next_sentence is not None:
            out.append(bert.next_sentence_logits(params.next_sentence, hidden, execution=EXECUTION))
        return out

    abstract = shapes(bert.spec(config, vocab_size=128, next_sentence=next_sentence))
    compiled = jax.jit(forward).lower(abstract, some_tokens(1, length)).compile()
    of_row: dict[str, Any] = {"sequence_length": length, "predictions": predictions, "vocab_size": 128}
    counted = costs.count(hlo.parse(compiled.as_text() or ""), devices=1).flops
    assert counted == bert.forward_flops(config, **of_row, next_sentence=next_sentence)


# -- beside transformers ----------------------------------------------------------------------------------------------------

B, L = 3, 12
THEIR_SIZES = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
THEIR_SIZES |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 16}


def theirs(torch: ModuleType, prefix: str, hidden_act: str) -> Any:
    """Their model for pre-training (both heads), with random weights of a size that makes errors visible."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**THEIR_SIZES, hidden_act=hidden_act)
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
