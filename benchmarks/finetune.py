"""Fine-tuning a BERT on film reviews against transformers' Trainer: examples a second, same rows, dropout and type.

    python benchmarks/finetune.py [--rounds 3] [--rows 5000] [--data FOLDER] [--json FILE]

bert-mini (4 layers of 256) with KcBERT's vocabulary on the first rows of ko/nsmc_train_50k, or, where FOLDER is not there, on
made-up texts; batches of 32, at most 128 tokens, dropout 0.1, AdamW, gradients clipped at 1; in float32, and in bfloat16 where
the device multiplies it. A round is an epoch of each, by turns, steps alone: no scoring, no saving, compiling before. The
Trainer's attention is torch's fused one or the plain one, whichever is faster. Twice: with batches of rows of like length (the
Trainer's "group_by_length"), and with random batches. Both pad to the longest row of a batch, we to the next of our fixed
lengths. Both are in one process, under tcmalloc where it is installed (--no-tcmalloc: glibc's allocator). Needs torch and
accelerate; `make bench` installs them.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from turns import environment, processor

from tpulm import tokenization
from tpulm.accelerators import cpu_multiplies_bfloat16
from tpulm.config import ModelConfig, TokenizerConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.finetuning import Classifier
from tpulm.labelled import Columns, Examples, read_examples
from tpulm.models import bert
from tpulm.nn.params import initialize
from tpulm.runtime.memory import keep_between_steps
from tpulm.train.finetuning_program import Labelled
from tpulm.train.loop import steps_of

MODEL = ModelConfig(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024, max_positions=128)
BATCH_SIZE, MAX_LENGTH, REQUIRED = 32, 128, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument(
        "--tcmalloc", action=argparse.BooleanOptionalAction, default=True, help="for both, where it is installed"
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    for name in ("torch", "accelerate"):
        if importlib.util.find_spec(name) is None:
            sys.exit(f"{name} is not installed: 'pip install {name}' makes the comparison possible")
    variables = environment(tcmalloc=options.tcmalloc)
    if variables.get("LD_PRELOAD") != os.environ.get("LD_PRELOAD"):
        os.execve(sys.executable, [sys.executable, *sys.argv], variables)
    keep_between_steps()  # as fine-tuning does, before JAX starts its threads
    if options.data.is_dir():
        tokenizer = tokenization.load(options.data / "vocab" / "kcbert_vocab.txt", TokenizerConfig())
        whole = read_examples(options.data / "ko" / "nsmc_train_50k.tsv.gz", Columns("document", "label"))
        examples = whole.take(range(options.rows))
    else:
        print(f"{options.data} is not a folder, so texts are made up", file=sys.stderr)
        examples, words = made_up(options.rows)
        tokenizer = tokenization.train([[*examples.texts, words, words]], TokenizerConfig(vocab_size=8_000))
    on_cpu = jax.default_backend() == "cpu"
    types = ["float32"] * on_cpu + ["bfloat16"] * (not on_cpu or cpu_multiplies_bfloat16())
    cases = itertools.product(types, (True, False))
    results = [compare(tokenizer, examples, dtype, grouped=grouped, rounds=options.rounds) for dtype, grouped in cases]
    if options.json:
        Path(options.json).write_text(json.dumps(results))
    for result in results:
        print("  ".join(f"{name} {value}" for name, value in result.items()))
    print(f"at least {REQUIRED} is wanted of times_trainer")


def compare(
    tokenizer: tokenization.Tokenization, examples: Examples, dtype: Any, *, grouped: bool, rounds: int
) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_length": MAX_LENGTH, "batch_size": BATCH_SIZE, "epochs": rounds + 1}
    model = random_model(tokenizer)
    classifier = Classifier(model, labels=("0", "1"), group_by_length=grouped, compute_dtype=dtype, **settings)
    data = classifier.encode(examples)
    contenders = {"tpulm": ours(classifier, data)}
    contenders |= {f"trainer_{attention}": theirs(classifier, data, attention=attention) for attention in ("sdpa", "eager")}
    contenders["tpulm"]()  # which compiles
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, epoch in contenders.items():
            times[name].append(epoch())
    medians = {name: statistics.median(values) for name, values in times.items()}
    fastest = min((name for name in contenders if name != "tpulm"), key=lambda name: medians[name])
    ratios = [theirs / ours for ours, theirs in zip(times["tpulm"], times[fastest], strict=True)]
    return {
        "batches": "like lengths" if grouped else "random",
        "compute_dtype": dtype,
        "threads": len(os.sched_getaffinity(0)),
        "device": processor() if jax.default_backend() == "cpu" else jax.devices()[0].device_kind,
        **{f"{name}_examples_per_second": round(len(examples) / seconds) for name, seconds in medians.items()},
        "times_trainer": round(medians[fastest] / medians["tpulm"], 2),
        "range": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def made_up(rows: int) -> tuple[Examples, str]:
    """Texts of random words, about as long as film reviews: a median of 20 tokens, a tenth of them over 60; and all words."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 9, 10_000)]
    lengths = np.clip(rng.lognormal(2.6, 0.85, rows), 1, 120).astype(int)
    texts = [" ".join(words[min(int(place), 9_999)] for place in rng.zipf(1.3, length)) for length in lengths]
    labels, places = [str(label) for label in rng.integers(0, 2, rows)], [f"made up, {row}" for row in range(rows)]
    return Examples(texts, None, labels, places), " ".join(words)


def random_model(tokenizer: tokenization.Tokenization) -> LoadedModel:
    spec = bert.spec(MODEL, vocab_size=tokenizer.vocab_size, next_sentence=False)
    return LoadedModel(jax.device_get(initialize(spec, jax.random.key(0))), MODEL, tokenizer.vocab_size, tokenizer, "masked")


def ours(classifier: Classifier, data: Labelled) -> Callable[[], float]:
    """A function that trains one more epoch and gives its seconds."""
    tuning = classifier.tuning_of(data).beginning(0, classifier.first_params(0))
    steps = steps_of(tuning, tuning.batches(data), tuning.initial_state(), 0, tuning.settings.steps)

    def epoch() -> float:
        began = time.perf_counter()
        *_, last = itertools.islice(steps, tuning.steps_per_epoch)
        jax.block_until_ready(last.state)
        return time.perf_counter() - began

    return epoch


def theirs(classifier: Classifier, data: Labelled, *, attention: str) -> Callable[[], float]:
    """The same of transformers' Trainer."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as their_logging

    warnings.filterwarnings("ignore")
    their_logging.set_verbosity_error()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    rows, special = data.rows, classifier.model.tokenization.special
    config = BertConfig(
        vocab_size=classifier.model.vocab_size,
        num_hidden_layers=MODEL.num_layers,
        hidden_size=MODEL.hidden_size,
        num_attention_heads=MODEL.num_heads,
        intermediate_size=MODEL.intermediate_size,
        max_position_embeddings=MODEL.max_positions,
        hidden_act="gelu_pytorch_tanh",
    )
    config.num_labels = 2
    config._attn_implementation = attention
    features = [
        {"input_ids": rows.ids[start:end].tolist(), "labels": int(label)}
        for start, end, label in zip(rows.starts, rows.starts[1:], data.labels, strict=False)
    ]

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(item["input_ids"]) for item in batch)
        ids = np.full((len(batch), longest), special.pad, np.int64)
        for row, item in zip(ids, batch, strict=True):
            row[: len(item["input_ids"])] = item["input_ids"]
        labels = torch.tensor([item["labels"] for item in batch])
        tokens = torch.from_numpy(ids)
        return {"input_ids": tokens, "attention_mask": (tokens != special.pad).long(), "labels": labels}

    class Clock(TrainerCallback):
        began = ended = 0.0

        def on_train_begin(self, *arguments: Any, **more: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            self.ended = time.perf_counter()

    clock = Clock()
    settings = classifier.config
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="tpulm-benchmark-"),
        per_device_train_batch_size=settings.batch_size,
        num_train_epochs=1,
        learning_rate=settings.learning_rate or 0.0,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip_norm or 0.0,
        optim="adamw_torch_fused",
        train_sampling_strategy="group_by_length" if settings.group_by_length else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=settings.compute_dtype == "bfloat16",
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config).train(),
        args=arguments,
        train_dataset=features,  # pyright: ignore[reportArgumentType]
        data_collator=collate,
        callbacks=[clock],
    )

    def epoch() -> float:
        trainer.train()
        return clock.ended - clock.began

    return epoch


if __name__ == "__main__":
    main()
