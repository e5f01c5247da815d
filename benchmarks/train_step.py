"""Training steps a second against transformers' BERT, ELECTRA or GPT-2 in torch: same shapes, same masks, same threads.

    python benchmarks/train_step.py [--cases bert-mini bert-base] [--rounds 7] [--no-torch] [--json]

Ours is the compiled step of a real run, masking and gradient clipping included. Torch has scaled-dot-product attention, the
fused tanh GELU, the same dropout and the fused AdamW, and gets its masks ready made; both have the allocator settings of the
trainer. A causal row is one text, which torch's attention needs no mask for; ours confines it to segments all the same. Rounds
alternate; figures are medians over rounds. GFLOP/s count the matrix products that the model needs (torch's vocabulary product
at every position is not counted in its favour); the best product of two matrices is measured between the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.config import DataConfig, GeneratorConfig, ModelConfig, RunConfig, TrainConfig
from tpulm.models.electra import generator_config
from tpulm.runtime.memory import keep_between_steps
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import Program
from tpulm.train.step import row_keys

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
MATMUL_SHAPES = ((1024, 768, 3072), (1024, 3072, 768), (2048, 2048, 2048), (4096, 256, 1024), (608, 256, 8064))


class Case(NamedTuple):
    model: ModelConfig
    vocab_size: int
    batch_size: int
    sequence_length: int
    steps_per_round: int


CASES = {
    "bert-mini": Case(ModelConfig(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024), 8_000, 32, 128, 5),
    "bert-base": Case(ModelConfig(), 30_522, 8, 128, 1),
    "electra-small": Case(
        ModelConfig(
            architecture="electra",
            generator=GeneratorConfig(),
            num_layers=12,
            hidden_size=256,
            num_heads=4,
            intermediate_size=1024,
            embedding_size=128,
            activation="gelu",
        ),
        30_522,
        8,
        128,
        1,
    ),
    "causal": Case(
        ModelConfig(
            architecture="decoder",
            num_layers=6,
            hidden_size=512,
            num_heads=8,
            intermediate_size=2048,
            max_positions=128,
            norm_position="pre",
            norm_epsilon=1e-5,
        ),
        30_000,
        8,
        128,
        2,
    ),
}


def make_rows(case: Case) -> np.ndarray:
    """Full rows of random tokens: `[CLS] A [SEP] B [SEP]`, or for a decoder one text that goes on."""
    rows = np.random.default_rng(0).integers(5, case.vocab_size, (case.batch_size, case.sequence_length)).astype(np.uint16)
    if case.model.architecture == "decoder":
        return rows
    rows[:, 0] = SPECIAL.cls
    rows[:, case.sequence_length // 2] = rows[:, -1] = SPECIAL.sep
    return rows


def configured(case: Case) -> RunConfig:
    return RunConfig(
        model=case.model,
        data=DataConfig(
            sequence_length=case.sequence_length, rows="causal" if case.model.architecture == "decoder" else "segments"
        ),
        train=TrainConfig(batch_size=case.batch_size),
    )


def ours(case: Case, rows: np.ndarray) -> tuple[Callable[[], Any], float]:
    """A function that does one step, and the FLOPs of one."""
    program = Program(configured(case), vocab_size=case.vocab_size, special=SPECIAL, devices=jax.devices()[:1])
    state = program.initial_state()
    batch, cursor = program.to_devices({"tokens": rows}), program.cursor(0)

    def step() -> None:
        nonlocal state
        state, loss = program.step(state, batch, cursor)
        loss.block_until_ready()

    return step, program.objective.flops_per_row * case.batch_size


def theirs(case: Case, rows: np.ndarray) -> Callable[[], Any]:
    """The same step in torch."""
    import torch  # pyright: ignore[reportMissingImports]

    make = {"decoder": causal_theirs, "electra": electra_theirs, "bert": masked_theirs}[case.model.architecture]
    network, batch = make(case, rows)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        network(**batch).loss.backward()
        optimizer.step()

    return step


def causal_theirs(case: Case, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import GPT2Config, GPT2LMHeadModel

    model = case.model
    config = GPT2Config(
        vocab_size=case.vocab_size,
        n_positions=model.max_positions,
        n_embd=model.hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_heads,
        n_inner=model.intermediate_size,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=SPECIAL.sep,
        eos_token_id=SPECIAL.sep,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.attention_dropout,
    )
    config._attn_implementation = "sdpa"
    ids = torch.from_numpy(rows.astype(np.int64))
    return GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids, "use_cache": False}


def masked_theirs(case: Case, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import BertConfig, BertForMaskedLM

    inputs = inputs_of(case, rows)
    labels = np.full(rows.shape, -100, np.int64)
    np.put_along_axis(labels, inputs.predicted, inputs.labels, axis=1)
    model = case.model
    config = BertConfig(
        vocab_size=case.vocab_size,
        num_hidden_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_heads,
        intermediate_size=model.intermediate_size,
        hidden_act="gelu_pytorch_tanh",
    )
    config._attn_implementation = "sdpa"
    batch = {
        "input_ids": torch.from_numpy(inputs.tokens.ids.astype(np.int64)),
        "token_type_ids": torch.from_numpy(inputs.tokens.types.astype(np.int64)),
        "labels": torch.from_numpy(labels),
    }
    return BertForMaskedLM(config).train(), batch


def electra_theirs(case: Case, rows: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Generator and discriminator of transformers with shared embeddings, logits at our predicted positions only."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

    def config(model: ModelConfig) -> Any:
        made = ElectraConfig(
            vocab_size=case.vocab_size,
            embedding_size=model.embedding_size or model.hidden_size,
            num_hidden_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_heads,
            intermediate_size=model.intermediate_size,
        )
        made._attn_implementation = "sdpa"
        return made

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = ElectraForMaskedLM(config(generator_config(case.model)))
            self.discriminator = ElectraForPreTraining(config(case.model))
            self.generator.electra.embeddings = self.discriminator.electra.embeddings
            self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight

        def forward(self, originals: Any, masked: Any, types: Any, predicted: Any, labels: Any) -> Any:
            hidden = self.generator.electra(input_ids=masked, token_type_ids=types).last_hidden_state
            chosen = torch.gather(hidden, 1, predicted[:, :, None].expand(-1, -1, hidden.shape[-1]))
            logits = self.generator.generator_lm_head(self.generator.generator_predictions(chosen))
            masked_loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
            with torch.no_grad():
                samples = torch.argmax(logits - torch.log(-torch.log(torch.rand_like(logits))), dim=-1)
                replaced = originals.scatter(1, predicted, samples)
            truth = (replaced != originals).float()
            judged = self.discriminator(input_ids=replaced, token_type_ids=types).logits
            detection_loss = torch.nn.functional.binary_cross_entropy_with_logits(judged, truth)
            return SimpleNamespace(loss=masked_loss + 50.0 * detection_loss)

    inputs = inputs_of(case, rows).masked
    batch = {
        "originals": rows,
        "masked": inputs.tokens.ids,
        "types": inputs.tokens.types,
        "predicted": inputs.predicted,
        "labels": inputs.labels,
    }
    return Pair().train(), {name: torch.from_numpy(value.astype(np.int64)) for name, value in batch.items()}


def inputs_of(case: Case, rows: np.ndarray) -> Any:
    """What our objective makes of the rows: masks, labels, types."""
    from tpulm import objectives
    from tpulm.config import ObjectiveConfig
    from tpulm.nn.transformer import Execution

    objective = objectives.make(
        case.model,
        ObjectiveConfig(),
        Execution(jnp.float32, "none", unroll=True),
        sequence_length=case.sequence_length,
        row_kind="segments",
        next_sentence=False,
        vocab_size=case.vocab_size,
        special=SPECIAL,
    )
    return jax.device_get(
        objective.prepare({"tokens": jnp.asarray(rows)}, row_keys(0, jnp.zeros((2,), jnp.uint32), case.batch_size))
    )


def matmul_rates() -> Callable[[], float]:
    """A function that measures the best GFLOP/s over several shapes of float32 products."""
    multiply = jax.jit(jnp.matmul)
    pairs = [(jnp.ones((m, k)), jnp.ones((k, n))) for m, k, n in MATMUL_SHAPES]
    for a, b in pairs:
        multiply(a, b).block_until_ready()

    def measure() -> float:
        best = 0.0
        for (m, k, n), (a, b) in zip(MATMUL_SHAPES, pairs, strict=True):
            for _ in range(3):
                best = max(best, 2e-9 * m * k * n / seconds(lambda a=a, b=b: multiply(a, b).block_until_ready()))
        return best

    return measure


def seconds(function: Callable[[], Any], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def run(name: str, *, rounds: int, with_torch: bool) -> dict[str, Any]:
    case = CASES[name]
    rows = make_rows(case)
    step, flops = ours(case, rows)
    contenders = {"tpulm": step}
    if with_torch:
        contenders["torch"] = theirs(case, rows)
    for contender in contenders.values():
        contender()
        contender()
    measure = matmul_rates()
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    matmul = []
    for _ in range(rounds):
        matmul.append(measure())
        for contender, function in contenders.items():
            times[contender].append(seconds(function, case.steps_per_round))
    medians = {contender: statistics.median(values) for contender, values in times.items()}
    tokens = case.batch_size * case.sequence_length
    gflops = flops * 1e-9 / medians["tpulm"]
    result = {
        "case": name,
        "threads": len(os.sched_getaffinity(0)),
        "tpulm_step_seconds": round(medians["tpulm"], 4),
        "tpulm_tokens_per_second": round(tokens / medians["tpulm"]),
        "tpulm_gflops": round(gflops, 1),
        "best_matmul_gflops": round(max(matmul), 1),
        "fraction_of_matmul": round(gflops / max(matmul), 3),
    }
    if with_torch:
        ratios = [theirs / ours for ours, theirs in zip(times["tpulm"], times["torch"], strict=True)]
        result |= {
            "torch_step_seconds": round(medians["torch"], 4),
            "torch_tokens_per_second": round(tokens / medians["torch"]),
            "times_torch": round(medians["torch"] / medians["tpulm"], 3),
            "times_torch_range": [round(min(ratios), 3), round(max(ratios), 3)],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with_torch = not options.no_torch
    if with_torch and importlib.util.find_spec("torch") is None:
        sys.exit("torch is not installed: 'pip install torch' makes the comparison possible, --no-torch does without")
    keep_between_steps()  # as the pipeline does, before JAX starts its threads
    for name in options.cases:
        result = run(name, rounds=options.rounds, with_torch=with_torch)
        if options.json:
            print(json.dumps(result), flush=True)
        else:
            print("\n".join(f"{key:28}{value}" for key, value in result.items()), "\n", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
