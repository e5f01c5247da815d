"""Training steps a second against torch at its best: transformers' BERT, ELECTRA or GPT-2, same shapes, masks and threads.

    python benchmarks/train_step.py [--cases bert-mini bert-base] [--rounds 7] [--contenders …] [--json FILE]

On an NVIDIA GPU, where both libraries find it, the cases are larger ones, and float32 products are TF32 on both sides.

Ours is the compiled step of a real run, masking and gradient clipping included, in float32 and in bfloat16. Torch has
the fused tanh GELU, the same dropout and the fused AdamW, and gets its masks ready made:

    eager       as transformers has it: logits at every position, scaled-dot-product attention
    gathered    logits at the predicted positions only, as ours (always so for ELECTRA; a causal model predicts everywhere)
    compiled    gathered, by torch.compile
    -plain      gathered or compiled, with transformers' "eager" attention: faster than the fused one in bfloat16 on a CPU
    -bfloat16   gathered or compiled under torch.autocast

tpulm-bfloat16-plain is ours without its own attention kernels, where a GPU or a TPU has them; tpulm-bfloat16-unrolled has its
layers one after another in the program instead of in a loop, as a CPU always has them.

tpulm-run is what a user gets: `tpulm.run` on made text, in the type it chooses, from one logged step to the next, with all
that it does beside the step (rows read and checked, metrics written).

Each contender is a process of its own with the system's allocator, and rounds alternate between them. -tcmalloc is the same
under tcmalloc (Debian: libtcmalloc-minimal4), as PyTorch's guide advises. A ratio is the median over rounds of the best of
torch's times, under either, to ours without it: for each of our two types, for tpulm-run, and for the best of both. The
first step is what it takes from the made model to the end of one step, compiling included; memory is the process's peak.
GFLOP/s, and MFU where the device's peak is known, count the matrix products that the model needs; the best product of two
matrices, in either library, is measured in the same rounds. A contender that fails to start is left out, and said to be. A
causal row is one text, which torch's attention needs no mask for; ours confines it to segments.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from turns import Contender, ContenderError, environment, processor, say

import tpulm
from tpulm.accelerators import from_device_kind, nvidia_driver, tpu_chips
from tpulm.config import (
    CorpusConfig,
    DataConfig,
    GeneratorConfig,
    ModelConfig,
    RunConfig,
    SourceConfig,
    TokenizerConfig,
    TrainConfig,
)
from tpulm.models.electra import generator_config
from tpulm.progress import Silent
from tpulm.runtime.memory import keep_between_steps
from tpulm.special_tokens import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
MATMUL_SHAPES = ((1024, 768, 3072), (1024, 3072, 768), (2048, 2048, 2048), (4096, 256, 1024), (608, 256, 8064))
OURS = ("tpulm-float32", "tpulm-bfloat16")
RUN = "tpulm-run"
VARIANTS = ("tpulm-bfloat16-plain", "tpulm-bfloat16-unrolled")
TCMALLOC = "-tcmalloc"
TORCH = (
    "torch-eager",
    *(
        f"torch-{how}{dtype}"
        for dtype in ("", "-bfloat16")
        for how in ("gathered", "gathered-plain", "compiled", "compiled-plain")
    ),
)
PRODUCTS = ("matmul-jax-float32", "matmul-jax-bfloat16", "matmul-torch-float32", "matmul-torch-bfloat16")

Step = Callable[[], Any]


class Case(NamedTuple):
    model: ModelConfig
    vocab_size: int
    batch_size: int
    sequence_length: int
    steps_per_round: int


_MINI = ModelConfig(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024)
_WITHOUT_DROPOUT = _MINI.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
CASES = {
    "bert-mini": Case(_MINI, 8_000, 32, 128, 5),
    **{f"bert-mini-{rows}x64": Case(_MINI, 8_000, rows, 64, 320 // rows) for rows in (16, 32, 64)},
    **{f"bert-mini-{rows}x64-no-dropout": Case(_WITHOUT_DROPOUT, 8_000, rows, 64, 320 // rows) for rows in (16, 32, 64)},
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

_BASE = CASES["bert-base"].model
GPU_CASES = {
    "bert-base-128": Case(_BASE, 30_522, 256, 128, 10),
    "bert-base-512": Case(_BASE.model_copy(update={"max_positions": 512}), 30_522, 64, 512, 10),
    "electra-small-128": CASES["electra-small"]._replace(batch_size=256, steps_per_round=10),
    "causal-512": Case(
        CASES["causal"].model.model_copy(
            update={"num_layers": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072, "max_positions": 512}
        ),
        30_000,
        32,
        512,
        10,
    ),
}
ALL_CASES = CASES | GPU_CASES
MATMUL_SHAPES += ((8192, 8192, 8192),) if nvidia_driver() else ()


def make_rows(case: Case) -> np.ndarray:
    """Full rows of random tokens: `[CLS] A [SEP] B [SEP]`, or for a decoder one text that goes on."""
    rows = np.random.default_rng(0).integers(5, case.vocab_size, (case.batch_size, case.sequence_length)).astype(np.uint16)
    if case.model.architecture == "decoder":
        return rows
    rows[:, 0] = SPECIAL.cls
    rows[:, case.sequence_length // 2] = rows[:, -1] = SPECIAL.sep
    return rows


def configured(case: Case, **settings: Any) -> RunConfig:
    return RunConfig(
        model=case.model,
        data=DataConfig(
            sequence_length=case.sequence_length, rows="causal" if case.model.architecture == "decoder" else "segments"
        ),
        train=TrainConfig(batch_size=case.batch_size, steps=1_000_000, log_every_steps=case.steps_per_round),
        **settings,
    )


class Turns(Silent):
    """A run's progress that waits for its turn at each logged step."""

    def __init__(self, steps: int):
        self._steps, self._begun_at, self._windows = steps, 0.0, 0

    def status(self, text: str) -> None:
        if "loss" not in text:  # of a stage before training
            return
        now, self._windows = time.perf_counter(), self._windows + 1
        if self._windows == 2:  # the first compiles
            say({})
        elif self._windows > 2:
            say({"seconds": (now - self._begun_at) / self._steps})
        if self._windows > 1 and not sys.stdin.readline():
            say({"peak_memory_bytes": peak_memory("tpulm")})
            sys.stdout.flush()
            os._exit(0)  # what the run would still write is not wanted
        self._begun_at = time.perf_counter()


def run_of_a_user(case: Case) -> None:
    """`tpulm.run` on made text, until stdin ends."""
    words = [
        *(f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")),
        ".",
        *(f"w{i}" for i in range(case.vocab_size - 6)),
    ]
    drawn = np.random.default_rng(0).integers(6, case.vocab_size, (4_000, 4, 20))
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, text = Path(folder, "vocab.txt"), Path(folder, "text.txt")
        vocabulary.write_text("\n".join(words) + "\n")
        sentences = [[" ".join(words[one] for one in sentence) + " ." for sentence in document] for document in drawn]
        text.write_text("\n".join(" ".join(document) for document in sentences) + "\n")
        config = configured(
            case, corpus=CorpusConfig(sources=(SourceConfig(path=str(text)),)), tokenizer=TokenizerConfig(path=str(vocabulary))
        )
        tpulm.run(config, Path(folder, "run"), progress=Turns(case.steps_per_round))


def ours(case: Case, rows: np.ndarray, variant: str) -> tuple[Step, float]:
    """A function that does one step, and the FLOPs of one."""
    import jax

    from tpulm.train.program import PretrainingProgram

    config = configured(case)
    dtype, _, change = variant.partition("-")
    train = config.train.model_copy(update={"compute_dtype": dtype})
    changes = {"plain": {"flash_attention": False}, "unrolled": {"unroll": True}, "": {}}
    hardware = config.hardware.model_copy(update=changes[change])
    config = config.model_copy(update={"train": train, "hardware": hardware})
    program = PretrainingProgram(config, vocab_size=case.vocab_size, special=SPECIAL, devices=jax.devices()[:1])
    state = program.initial_state()
    batch, cursor = program.to_devices({"tokens": rows}), program.cursor(0)

    def step() -> None:
        nonlocal state
        state, loss = program.step(state, batch, cursor)
        loss.block_until_ready()

    return step, program.objective.flops_per_row * case.batch_size


def theirs(case: Case, rows: np.ndarray, variant: str) -> Step:
    """The same step in torch."""
    import torch  # pyright: ignore[reportMissingImports]

    make = {"decoder": causal_theirs, "electra": electra_theirs, "bert": masked_theirs}[case.model.architecture]
    attention = "eager" if "plain" in variant else "sdpa"
    network, batch = make(case, rows, gathered="eager" not in variant, attention=attention)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX has it
    network = network.to(device)
    batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)
    loss_of = torch.compile(network) if "compiled" in variant else network

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled="bfloat16" in variant):
            loss = loss_of(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def causal_theirs(case: Case, rows: np.ndarray, *, gathered: bool, attention: str) -> tuple[Any, dict[str, Any]]:
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
    config._attn_implementation = attention
    ids = torch.from_numpy(rows.astype(np.int64))
    return GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids, "use_cache": False}


def masked_theirs(case: Case, rows: np.ndarray, *, gathered: bool, attention: str) -> tuple[Any, dict[str, Any]]:
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
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.attention_dropout,
    )
    config._attn_implementation = attention
    ids, types = (torch.from_numpy(one.astype(np.int64)) for one in (inputs.tokens.ids, inputs.tokens.types))
    network = BertForMaskedLM(config).train()
    if not gathered:
        return network, {"input_ids": ids, "token_type_ids": types, "labels": torch.from_numpy(labels)}

    class Gathered(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, types: Any, predicted: Any, labels: Any) -> Any:
            hidden = self.network.bert(input_ids=ids, token_type_ids=types).last_hidden_state
            chosen = torch.gather(hidden, 1, predicted[:, :, None].expand(-1, -1, hidden.shape[-1]))
            logits = self.network.cls(chosen)
            return SimpleNamespace(loss=torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()))

    predicted, labels = (torch.from_numpy(one.astype(np.int64)) for one in (inputs.predicted, inputs.labels))
    return Gathered(), {"ids": ids, "types": types, "predicted": predicted, "labels": labels}


def electra_theirs(case: Case, rows: np.ndarray, *, gathered: bool, attention: str) -> tuple[Any, dict[str, Any]]:
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
        made._attn_implementation = attention
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
    import jax
    import jax.numpy as jnp

    from tpulm import objectives
    from tpulm.config import ObjectiveConfig
    from tpulm.nn.transformer import Execution
    from tpulm.train.step import row_keys

    setup = objectives.Setup(
        case.model,
        ObjectiveConfig(),
        Execution(jnp.float32, "none", unroll=True),
        sequence_length=case.sequence_length,
        row_kind="segments",
        next_sentence=False,
        vocab_size=case.vocab_size,
        special=SPECIAL,
    )
    objective = objectives.make(setup)
    return jax.device_get(
        objective.make_inputs({"tokens": jnp.asarray(rows)}, row_keys(0, jnp.zeros((2,), jnp.uint32), case.batch_size))
    )


def products(library: str, dtype: str) -> Callable[[], float]:
    """A function that measures the best GFLOP/s over several shapes of products."""
    if library == "torch":
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_float32_matmul_precision("high")
        on: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": "cuda" if torch.cuda.is_available() else "cpu"}
        operands = [(torch.randn(m, k, **on), torch.randn(k, n, **on)) for m, k, n in MATMUL_SHAPES]

        def multiply(a: Any, b: Any) -> Any:
            product = torch.matmul(a, b)
            if product.is_cuda:
                torch.cuda.synchronize()
            return product

    else:
        import jax
        import jax.numpy as jnp

        key = jax.random.key(0)
        operands = [(jax.random.normal(key, (m, k), dtype), jax.random.normal(key, (k, n), dtype)) for m, k, n in MATMUL_SHAPES]
        product = jax.jit(jnp.matmul)

        def multiply(a: Any, b: Any) -> Any:
            return product(a, b).block_until_ready()

    def measure() -> float:
        best = 0.0
        for (m, k, n), (a, b) in zip(MATMUL_SHAPES, operands, strict=True):
            for _ in range(3):
                best = max(best, 2e-9 * m * k * n / seconds(lambda a=a, b=b: multiply(a, b)))
        return best

    measure()
    return measure


def seconds(function: Step, times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def contend(name: str, case: Case) -> None:
    """One contender: a JSON line once it is ready, one for each line of stdin, and one of its memory at the end."""
    if not (tpu_chips() or nvidia_driver()):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no TPU is looked for
    library, _, variant = name.removesuffix(TCMALLOC).partition("-")
    if library == "tpulm":
        keep_between_steps()  # as the pipeline does, before JAX starts its threads
    if name == RUN:
        run_of_a_user(case)
    if library == "torch":
        os.environ["JAX_PLATFORMS"] = "cpu"  # which makes the masks alone: the GPU is torch's
    if library == "matmul":
        measure = products(*variant.split("-"))
        say({})
        for _ in sys.stdin:
            say({"gflops": measure()})
        return
    rows = make_rows(case)
    if library == "tpulm":
        began = time.perf_counter()
        step, flops = ours(case, rows, variant)
    else:
        if case.model.architecture != "decoder":
            inputs_of(case, rows)  # JAX's own compiling is not torch's first step
        began = time.perf_counter()
        step, flops = theirs(case, rows, variant), 0.0
    step()
    first = time.perf_counter() - began
    step()
    say({"flops": flops, "first_step_seconds": first, "device": device_kind() if library == "tpulm" else ""})
    for _ in sys.stdin:
        say({"seconds": seconds(step, case.steps_per_round)})
    say({"peak_memory_bytes": peak_memory(library)})


def device_kind() -> str:
    import jax

    return jax.devices()[0].device_kind


def peak_memory(library: str) -> int:
    """Of the GPU, if that is what computes, else of this process."""
    if library == "tpulm":
        import jax

        if found := jax.devices()[0].memory_stats():
            return found["peak_bytes_in_use"]
    else:
        import torch  # pyright: ignore[reportMissingImports]

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(name: str, contenders: Sequence[str], *, rounds: int, at_once: bool = False) -> dict[str, Any]:
    case = ALL_CASES[name]
    if case.model.architecture != "bert":
        contenders = [one for one in contenders if not one.startswith("torch-eager")]  # is "gathered" there
    running, figures = list[Contender](), dict[str, dict[str, Any]]()
    begun = time.perf_counter()
    starting = (
        Contender(one, [sys.executable, __file__, "--contend", one, "--cases", name], tcmalloc=one.endswith(TCMALLOC))
        for one in contenders
    )
    for one in list(starting) if at_once else starting:
        try:
            running.append(one.wait())
            print(f"{name}: {one.name} is ready after {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        except ContenderError as error:
            print(error, file=sys.stderr)
            figures[one.name] = {"failed": str(error)}
    for _ in range(rounds):
        for one in running:
            one.round()
    tokens = case.batch_size * case.sequence_length
    flops, device = next(((one.ready["flops"], one.ready["device"]) for one in running if one.ready.get("flops")), (0.0, ""))
    for one in running:
        ended = one.end()
        if one.name.startswith("matmul"):
            figures[one.name] = {"gflops": round(max(answer["gflops"] for answer in one.answers))}
            continue
        times = [answer["seconds"] for answer in one.answers]
        figures[one.name] = {
            "step_ms": round(1000 * statistics.median(times), 1),
            "tokens_per_second": round(tokens / statistics.median(times)),
            **({"first_step_seconds": round(one.ready["first_step_seconds"], 1)} if "first_step_seconds" in one.ready else {}),
            "peak_memory_mb": round(ended["peak_memory_bytes"] / 1e6),
            "_times": times,
        }
        if flops:
            per_second = flops / statistics.median(times)
            figures[one.name]["gflops"] = round(per_second * 1e-9)
            peak = from_device_kind(device, "bfloat16" if "bfloat16" in one.name else "float32")
            figures[one.name] |= {"mfu": round(per_second / peak, 3)} if peak else {}
    result = {"case": name, "contenders": figures, "ratios": {}}
    timed = [one for one, figure in figures.items() if "_times" in figure]
    torch = [one for one in timed if one.startswith("torch")]
    by_type = [(ours, [one for one in torch if ("bfloat16" in one) == ("bfloat16" in ours)]) for ours in OURS]
    for ours, opponents in [*by_type, (RUN, torch), ("best", torch)]:
        mine = [one for one in OURS if one in timed] if ours == "best" else [ours] * (ours in timed)
        if mine and opponents:
            result["ratios"][ours] = _ratio(figures, mine, opponents)
    for figure in figures.values():
        figure.pop("_times", None)
    return result


def _ratio(figures: dict[str, dict[str, Any]], mine: Sequence[str], opponents: Sequence[str]) -> dict[str, Any]:
    """The fastest of either side by its median; the ratio is the median over rounds."""
    ours, best = (min(some, key=lambda one: figures[one]["step_ms"]) for some in (mine, opponents))
    ratios = [b / a for a, b in zip(figures[ours]["_times"], figures[best]["_times"], strict=True)]
    return {
        "of": f"{best} / {ours}",
        "ratio": round(statistics.median(ratios), 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['case']}")
    columns = ("step_ms", "tokens_per_second", "gflops", "mfu", "first_step_seconds", "peak_memory_mb")
    print(f"{'':26}" + "".join(f"{column:>20}" for column in columns))
    for name, figure in result["contenders"].items():
        print(f"{name:26}" + "".join(f"{figure.get(column, ''):>20}" for column in columns))
    for name, ratio in result["ratios"].items():
        print(f"{name:26}{ratio['ratio']:>10}  ({ratio['range'][0]} to {ratio['range'][1]})  {ratio['of']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=ALL_CASES, default=list(GPU_CASES if nvidia_driver() else CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--contenders", nargs="+", choices=(*OURS, RUN, *VARIANTS, *TORCH, *PRODUCTS), default=[*OURS, RUN, *TORCH, *PRODUCTS]
    )
    parser.add_argument(
        "--at-once", action="store_true", help="start all contenders of a case together: their first steps take longer"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(options.contend, ALL_CASES[options.cases[0]])
        return
    contenders = options.contenders
    if "LD_PRELOAD" in environment(tcmalloc=True) and not nvidia_driver():
        contenders = [*contenders, *(one + TCMALLOC for one in contenders if one in (*OURS, *TORCH))]
    else:
        print("no tcmalloc: torch may be faster with it", file=sys.stderr)
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: 'pip install torch==2.13.0' makes the comparison possible", file=sys.stderr)
        contenders = [name for name in contenders if "torch" not in name]
    print(f"{len(os.sched_getaffinity(0))} cores, {processor()}")
    results = []
    for name in options.cases:
        results.append(run(name, contenders, rounds=options.rounds, at_once=options.at_once))
        show(results[-1])
    if options.json:
        Path(options.json).write_text(json.dumps({"processor": processor(), "cases": results}, indent=1))


if __name__ == "__main__":
    main()
