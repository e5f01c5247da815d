"""What a model learns for the same minutes: tpulm against transformers on one machine, from raw text to a table and plots.

    python benchmarks/learning.py --data DATA --workdir W [--language ko] [--budget-minutes 18]

Six ways to pretrain an encoder of 4 layers of 256 (D and E: laptop-modern's) on rows of 64 tokens with one WordPiece vocabulary
of 8,000, each for the same minutes; everything is resumed where it was stopped. DATA has ko/ and ja/
(benchmarks/learning_data.py).

    A  transformers' run_mlm with its defaults: grouped rows, batches of 8, 5e-5, dropout 0.1, float32
    B  the same, tuned: logits at predicted positions only, batches of 64, warm-up, no dropout, bfloat16 where the processor
       multiplies it, the fastest of three ways to compute it, and the learning rate that successive halving leaves: of three
       that go through half of the budget the best two go to its end
    C  tpulm with B's model and settings
    F  B on the very batches that C's steps make of its rows: what of C's lead is its rows', which keep texts apart
    D  tpulm's recipe laptop-modern: ModernBERT's blocks, larger first weights, 30 % masks, next tokens first
    E  transformers' ModernBertForMaskedLM with all of D's settings: from D's first weights, on the very batches that D's steps
       make of its rows, masks included, logits at predicted positions only, the fastest of the three ways to compute it

beside them: D with random weights, and TF-IDF of 1 to 4 characters with logistic regression.

The minutes are counted in steps: all ways take turns at the very steps they will do, each in a process of its own, and the
median pace says how many the budget pays for, after what comes before the first step. So a busy machine makes nobody's
budget smaller. The learning rate falls to 0 at the last step. Tokenizing, saving and scoring are in no budget.

Scored by one script for all (benchmarks/learning_torch.py, from saved Hugging Face folders): the loss on held-out texts with
fixed masks; fine-tuning on some of the labels, the learning rate and the epoch chosen on dev, test answered once.
On a shared machine run the stage `pace` under `chrt -r 1`: torch loses most when others compute beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import learning_data
import learning_report
import numpy as np
from turns import Contender, environment, processor, read_answer, say

import tpulm
from tpulm import dataset, pipeline
from tpulm.accelerators import cpu_multiplies_bfloat16
from tpulm.cli.terminal import drawn_progress
from tpulm.config import RunConfig, TrainConfig, phases_of
from tpulm.convert.huggingface import save_parts
from tpulm.models import bert
from tpulm.pipeline.preparation import prepare_data
from tpulm.runtime.memory import keep_between_steps
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import PretrainingProgram
from tpulm.train.step import row_keys
from tpulm.workfolder import begin, open_run

HERE = Path(__file__).resolve().parent
STAGES = ("texts", "pace", "pilots", "arms", "score", "finetune", "report")
DIVERGED = {"loss": math.inf, "bits_per_character": math.inf}
STOPS = 10  # models kept of an arm
ROUNDS = 5
CHUNK = 64  # steps whose batches are a file
_SMALL: dict[str, Any] = {  # types that hold these of 64 tokens and 8,000 words
    "ids": np.uint16,
    "labels": np.uint16,
    "segments": np.int8,
    "positions": np.uint8,
    "predicted": np.uint8,
    "weights": np.uint8,
    "causal": np.bool_,
    "rate": np.float32,
}
PACED_BATCHES = 64  # that E's pace goes through, again and again
TUNED: dict[str, Any] = {
    "batch_size": 64,
    "warmup_fraction": 0.06,
    "weight_decay": 0.01,
    "dropout": 0.0,
    "bfloat16": cpu_multiplies_bfloat16(),
    "gathered": True,
}
WAYS_OF_B: dict[str, dict[str, Any]] = {
    "B": {},
    "B-plain": {"attention": "eager"},
    "B-compiled": {"attention": "eager", "compiled": True},
}
RATES_OF_B = (3e-4, 1e-3, 2e-3)
RATES_OF_FINETUNING = (3e-4, 1e-3)


C: dict[str, Any] = {  # over bert-mini
    "model.max_positions": 64,
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.activation": "gelu",
    "data.rows": "packed",
    "data.next_sentence": False,
    "train.batch_size": 64,
    "train.objective.mask_fraction": 0.15,
    "train.optimizer.bias_correction": True,
    "train.optimizer.epsilon": 1e-8,
    "train.optimizer.schedule": "wsd",  # with the decay from the warm-up on, torch's
    "model.initializer_range": 0.02 / 0.88,  # cut at two deviations, which leaves 0.88 of it
}
WAYS_OF_D: dict[str, dict[str, Any]] = {"D": {}, "D-masks": {"phases": []}}  # over laptop-modern
WAYS_OF_E: dict[str, dict[str, Any]] = {way.replace("B", "E"): settings for way, settings in WAYS_OF_B.items()}
MASKS = "-masks"  # what is paced for the second phase of D and E


class Arm(NamedTuple):
    name: str  # "B-1": B's second seed
    way: str  # of A, B, C, D, E or F, as paced
    steps: int  # at which the learning rate is 0
    seed: int
    learning_rate: float | None = None
    stops: int = 1  # models kept, the last one at the end

    @property
    def folder(self) -> str:
        """The same for equal work, whatever its name: what was begun as a pilot is continued."""
        rate = "" if self.learning_rate is None else f"-{self.learning_rate:g}"
        return f"{self.way}-{self.steps}-{self.seed}{rate}".replace(" ", "-")


class Experiment:
    """A work folder, and what is to be done in it. Each step of it writes a file and is skipped where that is there."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.folder = options, options.workdir
        self.settings = options.settings_of or options.workdir
        self.data = self.folder / "texts"
        self.tokenizer = self.folder / "tokenizer" / "tokenizer"
        identity = {"language": options.language, "budget_minutes": options.budget_minutes}
        if not (self.folder / "experiment.json").is_file():
            write_json(self.folder / "experiment.json", identity)
        elif (begun := json.loads((self.folder / "experiment.json").read_text())) != identity:
            sys.exit(f"{self.folder} is of {begun}, not of {identity}; take another --workdir")

    # Texts and vocabulary

    def texts(self) -> None:
        print(learning_data.write(self.data, self.options.language, self.options.data))
        if not self.tokenizer.is_dir():
            config, corpus = self.folder / "tokenizer.toml", (self.data / "corpus.txt").resolve()
            config.write_text(f'corpus.sources = ["{corpus}"]\ntokenizer.vocab_size = 8_000\n')
            command = [
                sys.executable,
                "-m",
                "tpulm",
                "tokenizer",
                "train",
                str(config),
                "--workdir",
                str(self.tokenizer.parent),
            ]
            subprocess.run(command, check=True)

    def configured(self, recipe: str, settings: dict[str, Any]) -> RunConfig:
        corpus = {"path": str((self.data / "corpus.txt").resolve()), "format": "text"}
        common = {"corpus.sources": [corpus], "corpus.holdout_fraction": 0.002, "data.sequence_length": 64}
        common |= {"language": self.options.language, "train.evaluation_rows": 256}
        return tpulm.load_config(recipe, {**common, **settings})

    def ours(
        self, way: str, steps: int = 1_000_000, seed: int = 0, learning_rate: float | None = None, stops: int = STOPS
    ) -> RunConfig:
        if way == "C":
            recipe, settings = "bert-mini", C
        else:
            recipe, settings = "laptop-modern", WAYS_OF_D[way]
        each = max(1, steps // stops)
        settings = {
            **settings,
            "name": way,
            "tokenizer.path": str((self.tokenizer / "tokenizer.json").resolve()),
            "train.steps": steps,
            "train.seed": seed,
            "train.evaluate_every_steps": steps,
            "train.optimizer.warmup_steps": round(0.06 * steps),
            "train.checkpoint.every_minutes": "none",
            "train.checkpoint.every_steps": each,
            "train.checkpoint.keep_every_steps": each,
        }
        if way == "C":
            settings["train.optimizer.decay_steps"] = steps - round(0.06 * steps)
        if learning_rate is not None:
            settings["train.optimizer.learning_rate"] = learning_rate
        return self.configured(recipe, settings)

    def torch_job(self, way: str, learning_rate: float | None = None) -> dict[str, Any]:
        peer = {} if way == "A" else {**TUNED, **WAYS_OF_B[way]}
        if learning_rate is not None:
            peer["learning_rate"] = learning_rate
        rows, texts = self.folder / "grouped.npy", self.data / "corpus.txt"
        return {"tokenizer": str(self.tokenizer), "rows": str(rows), "texts": str(texts), "peer": peer}

    def twin_job(self, way: str, batches: Path) -> dict[str, Any]:
        """Of torch on the batches of D (E's ways) or C (F)."""
        optimizer = self.ours(original(way)).train.optimizer
        settings = WAYS_OF_B[self.fastest(WAYS_OF_B)] if way == "F" else WAYS_OF_E[way]
        same = ("name", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm")
        peer = {**{name: getattr(optimizer, name) for name in same}, **settings, "bfloat16": TUNED["bfloat16"]}
        return {"tokenizer": str(self.tokenizer), "batches": str(batches), "peer": peer}

    def batches(self, way: str, steps: int, seed: int, rate: float | None = None, *, only: int | None = None) -> Path:
        """The first weights of C or D and the batches of its steps, or of its first steps only."""
        folder = self.folder / "batches" / f"{way}-{steps}-{seed}"
        if not folder.is_dir():
            run = self.ours(way, steps, seed, rate)
            job = ["--batches", str(folder), str(only or steps), run.model_dump_json()]
            answer([sys.executable, __file__, *self._arguments(), *job])
        return folder

    # Paces

    def pace(self) -> dict[str, Any]:
        """For each way the seconds before the first step is done, and those of a step: medians of rounds in turns."""
        file = self.settings / "paces.json"
        if not file.is_file():
            ways = ["A", *WAYS_OF_B, "C", *WAYS_OF_D, *(way + phase for way in WAYS_OF_E for phase in ("", MASKS))]
            rounds = {"A": 20, "C": 5, **dict.fromkeys(WAYS_OF_B, 5)}
            with tempfile.TemporaryDirectory() as caches:  # one each, so that all compile
                variables = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
                paced = [
                    Contender(
                        way, self._pace_command(way, rounds.get(way, 10)), **dict.fromkeys(variables, f"{caches}/{way}")
                    ).wait()
                    for way in ways
                ]
                for _, one in itertools.product(range(ROUNDS), paced):
                    print(f"{one.name} {one.round()['seconds']:.3f}", file=sys.stderr)
                for one in paced:
                    one.end()
            medians = {one.name: statistics.median(answer["seconds"] for answer in one.answers) for one in paced}
            found = {one.name: {"first": one.ready["first"], "seconds": medians[one.name]} for one in paced}
            shares = [phase.share for phase in self.ours("D").phases]
            for way in ("D", *WAYS_OF_E):  # what was paced under its name is the first of its phases
                found[way] = of_phases(list(zip(shares, (found[way], found.pop(way + MASKS)), strict=True)))
            write_json(file, {"paces": found, "processor": processor()})
        return json.loads(file.read_text())

    def _pace_command(self, way: str, per_round: int) -> list[str]:
        if way == "A" or way in WAYS_OF_B:
            return torch_command({"job": "pace", **self.torch_job(way), "per_round": per_round})
        if way.removesuffix(MASKS) in WAYS_OF_E:
            batches = self.batches("D" + MASKS if way.endswith(MASKS) else "D", 1_000_000, 0, only=PACED_BATCHES)
            return torch_command({"job": "pace", **self.twin_job(way.removesuffix(MASKS), batches), "per_round": per_round})
        return [sys.executable, __file__, *self._arguments(), "--pace", way, "--per-round", str(per_round)]

    def _arguments(self) -> list[str]:
        options = self.options
        same = ["--language", options.language, "--budget-minutes", str(options.budget_minutes)]
        return ["--data", str(options.data), "--workdir", str(options.workdir), *same]

    def paced(self, way: str) -> dict[str, Any]:
        """F computes what B does."""
        return self.pace()["paces"][self.fastest(WAYS_OF_B) if way == "F" else way]

    def fastest(self, ways: Iterable[str]) -> str:
        return max(ways, key=lambda way: self.steps(way, self.options.budget_minutes))

    def steps(self, way: str, minutes: float) -> int:
        pace = self.paced(way)
        return max(STOPS, round((60 * minutes - pace["first"]) / pace["seconds"]))

    # Pretraining

    def pilots(self) -> dict[str, Any]:
        """B's learning rate, by successive halving."""
        file = self.settings / "pilots.json"
        if not file.is_file():
            way = self.fastest(WAYS_OF_B)
            steps = self.steps(way, self.options.budget_minutes)
            rates = [Arm(f"B at {rate:g}", way, steps, 0, rate, STOPS) for rate in RATES_OF_B]
            losses = self.trial([(arm, round(steps / 2)) for arm in rates])
            finalists = sorted(rates, key=lambda arm: losses[arm.name])[:2]
            ends = self.trial([(arm, arm.steps) for arm in finalists])
            rate = min(finalists, key=lambda arm: ends[arm.name]).learning_rate
            losses |= {f"{name}, whole": loss for name, loss in ends.items()}
            write_json(file, {"losses": losses, "learning_rate": rate})
        return json.loads(file.read_text())

    def trial(self, arms: Sequence[tuple[Arm, int]]) -> dict[str, float]:
        """Held-out losses, each after so many steps, by name."""
        return dict(zip((arm.name for arm, _ in arms), self.losses(self.pretrain(arms)), strict=True))

    @cached_property
    def planned(self) -> list[Arm]:
        minutes, rate = self.options.budget_minutes, self.pilots()["learning_rate"]
        ways = {"B": self.fastest(WAYS_OF_B), "D": "D", "E": self.fastest(WAYS_OF_E), "C": "C", "A": "A", "F": "F"}
        arms = list[Arm]()
        for name, way in ways.items():
            for seed in range(self.options.seeds if name in "BDE" else 1):
                own = rate if name in "BCF" else None
                arms.append(Arm(f"{name}-{seed}", way, self.steps(way, minutes), seed, own, STOPS))
        return [arm for arm in arms if arm.name[0] in self.options.arms]

    def arms(self) -> None:
        self.pretrain([(arm, arm.steps) for arm in self.planned])

    def pretrain(self, arms: Sequence[tuple[Arm, int]]) -> list[Path]:
        """Each up to a step, side by side, torch with a thread each: how long it takes no longer matters."""
        with ThreadPoolExecutor(self.options.jobs) as pool:
            return list(pool.map(lambda one: self.pretrained(*one), arms))

    def pretrained(self, arm: Arm, until: int | None = None) -> Path:
        """The folder of its model after `until` steps, by default its last one; beside it those of its stops, each STEP."""
        folder, until = self.folder / "arms" / arm.folder, until or arm.steps
        model = folder / str(until)
        if not model.is_dir() and not diverged(model):
            print(f"{arm.name}: {until:,} of {arm.steps:,} steps, {arm.way}", file=sys.stderr)
            job = {
                "steps": arm.steps,
                "until": until,
                "seed": arm.seed,
                "stops": arm.stops,
                "threads": 1,
                "folder": str(folder),
            }
            if arm.way == "A" or arm.way in WAYS_OF_B:
                answer(torch_command({"job": "pretrain", **self.torch_job(arm.way, arm.learning_rate), **job}))
            elif arm.way == "F" or arm.way in WAYS_OF_E:
                twin = self.twin_job(arm.way, self.batches(original(arm.way), arm.steps, arm.seed, arm.learning_rate))
                answer(torch_command({"job": "pretrain", **twin, **job}))
            else:
                run = self.ours(arm.way, arm.steps, arm.seed, arm.learning_rate, arm.stops)
                answer([sys.executable, __file__, *self._arguments(), "--run", str(folder), run.model_dump_json()])
        return model

    # Scores

    def scored(self, folders: Sequence[Path]) -> list[dict[str, Any]]:
        """The loss of each on the held-out texts, remembered beside it."""
        missing = [folder for folder in folders if not diverged(folder) and not (folder / "score.json").is_file()]
        common = {"job": "score", "threads": 1, "tokenizer": str(self.tokenizer), "texts": str(self.data / "heldout.txt")}
        shares = [some for number in range(self.options.jobs) if (some := missing[number :: self.options.jobs])]

        def score(some: list[Path]) -> None:
            found = answer(torch_command({**common, "folders": [str(folder) for folder in some]}))
            for folder in some:
                write_json(folder / "score.json", found[str(folder)])

        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(score, shares))
        return [DIVERGED if diverged(folder) else json.loads((folder / "score.json").read_text()) for folder in folders]

    def losses(self, folders: Sequence[Path]) -> list[float]:
        return [score["loss"] for score in self.scored(folders)]

    def score(self) -> None:
        self.curves()

    def curves(self) -> dict[str, list[dict[str, Any]]]:
        """Of each arm the losses at its stops, with minutes, tokens and FLOPs."""
        curves = {}
        for arm in self.planned:
            last = self.pretrained(arm)
            steps = sorted(int(folder.name) for folder in last.parent.iterdir() if folder.name.isdigit())
            size = self.batch_size(arm.way)
            flops_per_row = self.flops_per_row(arm.way)
            scores = self.scored([last.parent / str(step) for step in steps])
            curves[arm.name] = [
                {
                    "step": step,
                    "minutes": self.minutes(arm, step),
                    "tokens": step * size * 64,
                    "flops": step * size * flops_per_row,
                    **scored,
                }
                for step, scored in zip(steps, scores, strict=True)
            ]
        return curves

    def minutes(self, arm: Arm, step: int) -> float:
        pace, seconds = self.paced(arm.way), 0.0
        for share, phase in pace.get("phases", [(1.0, pace)]):
            steps = min(step, round(share * arm.steps))
            seconds += (phase["first"] + steps * phase["seconds"]) if steps else 0.0
            step -= steps
        return seconds / 60

    def batch_size(self, way: str) -> int:
        if way == "A" or way in WAYS_OF_B:
            return 8 if way == "A" else TUNED["batch_size"]
        return self.ours(original(way)).train.batch_size

    def flops_per_row(self, way: str) -> float:
        """Of forward and backward pass; transformers' defaults and a causal phase have logits at all 64 positions."""
        config = self.ours("C" if way in ("A", *WAYS_OF_B) else original(way))
        special = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)
        objective: Any = PretrainingProgram(config, vocab_size=8_000, special=special).objective
        everywhere = 1.0 if way == "A" else sum(phase.share for phase in config.phases if phase.objective == "clm")

        def flops(predictions: int) -> float:
            sizes = {"sequence_length": 64, "vocab_size": 8_000, "next_sentence": False}
            return 3.0 * bert.forward_flops(config.model, predictions=predictions, **sizes)

        return everywhere * flops(64) + (1.0 - everywhere) * flops(objective.predictions)

    # Fine-tuning

    def finetune(self) -> None:
        """Two at a time on two cores, since small models leave a second thread little to do."""
        first = self.first_models()
        with ThreadPoolExecutor(self.options.jobs) as pool:
            for labels in self.options.labels:
                if labels in self.sizes_with_pilots:
                    jobs = [(name, labels, rate, 0) for name in first.values() for rate in RATES_OF_FINETUNING]
                    list(pool.map(lambda job: self.finetuned(*job), jobs))
                runs = [run for way in first for run in self.finetunings(way, labels)]
                jobs = [(name, labels, self.rate_of(name, labels), seed) for name, seed in runs]
                list(pool.map(lambda job: self.finetuned(*job), jobs))
                self.tfidf(labels)

    def finetunings(self, way: str, labels: int) -> list[tuple[str, int]]:
        """(model, seed) of each run of a way: its pretraining seeds take the fine-tuning seeds in turn."""
        names = [name for name in self.finetuned_models() if way_of(name) == way]
        seeds = self.options.finetune_seeds if labels < 20_000 else 1
        return [(names[seed % len(names)], seed) for seed in range(seeds)]

    def finetuned_models(self) -> dict[str, tuple[Path, bool]]:
        """By name: the folder, and whether it starts from random weights."""
        models = {arm.name: (self.pretrained(arm), False) for arm in self.planned}
        return models | {"random D": (models["D-0"][0], True)} if "D-0" in models else models

    def first_models(self) -> dict[str, str]:
        """By way: the model of its first pretraining seed."""
        first: dict[str, str] = {}
        for name in self.finetuned_models():
            first.setdefault(way_of(name), name)
        return first

    @property
    def sizes_with_pilots(self) -> list[int]:
        """Numbers of labels that have learning rates of their own; larger ones take those of the largest of these."""
        return [labels for labels in self.options.labels if labels < 20_000] or self.options.labels[:1]

    def rate_of(self, name: str, labels: int) -> float:
        """The best on dev, of the first pretraining seed."""
        labels = min(labels, self.sizes_with_pilots[-1])
        first = self.first_models()[way_of(name)]
        return max(RATES_OF_FINETUNING, key=lambda rate: self.finetuned(first, labels, rate, 0)["dev"])

    def is_finetuned(self, way: str, labels: int) -> bool:
        """Whether all runs of a way are there, and those that chose its learning rate."""
        first, size = self.first_models()[way], min(labels, self.sizes_with_pilots[-1])
        if not all(self._finetuned_file(first, size, rate, 0).is_file() for rate in RATES_OF_FINETUNING):
            return False
        runs = self.finetunings(way, labels)
        return all(self._finetuned_file(name, labels, self.rate_of(name, labels), seed).is_file() for name, seed in runs)

    def _finetuned_file(self, name: str, labels: int, rate: float, seed: int) -> Path:
        folder, drawn = self.finetuned_models()[name]
        model = f"{folder.parent.name}{'-random' if drawn else ''}"
        return self.folder / "finetuned" / f"{model}-{labels}-{rate:g}-{seed}.json"

    def finetuned(self, name: str, labels: int, rate: float, seed: int) -> dict[str, Any]:
        file, (folder, drawn) = self._finetuned_file(name, labels, rate, seed), self.finetuned_models()[name]
        job = {"folder": str(folder), "from_scratch": drawn, "labels": labels, "learning_rate": rate, "seed": seed}
        common = {"job": "finetune", "threads": 1, "tokenizer": str(self.tokenizer), "data": str(self.data)}
        return kept_answer(file, {**common, **job})

    def tfidf(self, labels: int) -> dict[str, Any]:
        job = {"job": "tfidf", "data": str(self.data), "labels": labels}
        return kept_answer(self.folder / "finetuned" / f"tfidf-{labels}.json", job)

    def report(self) -> None:
        labels: list[int] = self.options.labels
        cells = {(way, count): cell for count in labels for way in learning_report.NAMES if (cell := self.cell(way, count))}
        budget, pace, pilots = self.options.budget_minutes, self.pace(), self.pilots()
        found = learning_report.Found(budget, self.curves(), pace, pilots, labels, cells, self.chosen_rates())
        learning_report.write(found, self.folder, self.data)

    def cell(self, way: str, labels: int) -> learning_report.Cell | None:
        """None for a way that was not fine-tuned on so many labels."""
        if way == "TF-IDF":
            runs = [self.tfidf(labels)]
        elif way not in self.first_models() or not self.is_finetuned(way, labels):
            return None
        else:
            runs = [
                self.finetuned(name, labels, self.rate_of(name, labels), seed) for name, seed in self.finetunings(way, labels)
            ]
        return learning_report.Cell([run["test"] for run in runs], np.asarray([run["answers"] for run in runs]))

    def chosen_rates(self) -> list[str]:
        lines = list[str]()
        for way, name in self.first_models().items():
            sizes = [labels for labels in self.sizes_with_pilots if self.is_finetuned(way, labels)]
            lines.append(f"{way} {', '.join(f'{self.rate_of(name, labels):g}' for labels in sizes) or 'none'}")
        return lines


def of_phases(phases: list[tuple[float, dict[str, float]]]) -> dict[str, Any]:
    """The mean pace of phases, each with its share of the steps; each compiles its own program."""
    seconds = sum(share * one["seconds"] for share, one in phases)
    return {"first": sum(one["first"] for _, one in phases), "seconds": seconds, "phases": phases}


def original(way: str) -> str:
    """The way whose model and batches a way has."""
    return "C" if way == "F" else "D" if way in WAYS_OF_E else way


def way_of(name: str) -> str:
    """The way of a model: "B" for "B-1"."""
    return name.rpartition("-")[0] or name


def diverged(folder: Path) -> bool:
    """Whether an arm has no model at this step because its loss was no number before."""
    return not folder.is_dir() and (folder.parent / "diverged.json").is_file()


def torch_command(job: dict[str, Any]) -> list[str]:
    return [sys.executable, str(HERE / "learning_torch.py"), json.dumps(job)]


def answer(command: Sequence[str]) -> dict[str, Any]:
    """What a process says at its end; what it writes to stderr is shown."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(tcmalloc=True), check=True)
    return read_answer(done.stdout.splitlines(), "a process")


def kept_answer(file: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What a job of learning_torch.py says at its end, kept in a file."""
    if not file.is_file():
        write_json(file, answer(torch_command(job)))
    return json.loads(file.read_text())


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(values, indent=1), encoding="utf-8")
    unfinished.replace(path)


def pace_ours(config: RunConfig, workdir: Path, per_round: int) -> None:
    """As `pace` of learning_torch.py: the compiled step on the run's own rows."""
    keep_between_steps()
    begin(config, workdir)
    prepare_data(config, workdir)
    began = time.perf_counter()
    steps = tpulm.training_steps(config, workdir)
    jax.block_until_ready(next(steps).state.params)
    say({"first": time.perf_counter() - began})
    step = next(steps)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(per_round):
            step = next(steps)
        jax.block_until_ready(step.state.params)
        say({"seconds": (time.perf_counter() - began) / per_round})
    say({})


def train_ours(config: RunConfig, folder: Path) -> None:
    """The run in folder/run, and the models of its kept steps in folder/STEP."""
    with drawn_progress() as progress:
        tpulm.run(config, folder / "run", progress=progress)
    for step in sorted(int(path.name) for path in (folder / "run" / "checkpoints").iterdir() if path.name.isdigit()):
        if not (folder / str(step)).is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                export_step(folder / "run", step, Path(scratch), folder / str(step))


def write_batches(config: RunConfig, run: Path, to: Path, steps: int) -> None:
    """The weights that the run starts from, as a Hugging Face folder, and what its first steps make of its rows, in files of
    `CHUNK` steps with the learning rates: all of it or nothing. `run` holds the dataset."""
    prepared = prepare_data(config, begin(config, run))
    tokenizer, scratch = prepared.tokenizer, to.with_name(f"{to.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    cursor, chunk = 0, list[dict[str, Any]]()
    for phase in phases_of(config):
        own = phase.config
        program = PretrainingProgram(own, vocab_size=tokenizer.vocab_size, special=tokenizer.special)
        if cursor == 0:
            save_parts(
                scratch / "first",
                program.initial_state().params,
                config.model,
                vocab_size=tokenizer.vocab_size,
                tokenization_folder=run / "tokenizer",
                tokenizer=tokenizer,
            )
        objective: Any = program.objective
        causal, made = getattr(objective, "causal", False), jax.jit(partial(_inputs, objective, own.train))
        rows = dataset.Batches(
            prepared.datasets[phase.number - 1].train,
            batch_size=own.train.batch_size,
            seed=own.train.seed,
            first_cursor=phase.first_cursor,
            columns=program.columns(),
            of_tokens=program.columns_of(tokenizer),
        )
        for number in range(phase.first_step, min(steps, phase.last_step)):
            inputs: Any = made(program.to_devices(rows.batch(cursor)), program.cursor(cursor))
            one = {name: np.asarray(getattr(inputs.tokens, name)) for name in ("ids", "segments", "positions")}
            one |= {name: np.asarray(getattr(inputs, name)) for name in ("predicted", "labels", "weights")}
            chunk.append({**one, "causal": np.bool_(causal), "rate": np.float32(program.learning_rate(number))})
            cursor += own.train.batch_size
            if len(chunk) == CHUNK or number + 1 in (phase.last_step, steps):
                arrays: dict[str, Any] = {
                    name: np.stack([some[name] for some in chunk]).astype(kind) for name, kind in _SMALL.items()
                }
                np.savez(scratch / f"{number + 1 - len(chunk):08}.npz", **arrays)
                chunk = []
    scratch.rename(to)


def _inputs(objective: Any, config: TrainConfig, batch: Any, cursor: jax.Array) -> Any:
    return objective.make_inputs(batch, row_keys(config.seed, cursor, config.batch_size))


def export_step(run: Path, step: int, scratch: Path, to: Path) -> None:
    """A work folder whose only checkpoint is that of a step, exported: all of it or nothing."""
    for path in run.iterdir():
        if path.name not in ("checkpoints", "results", "export", "report"):
            (scratch / path.name).symlink_to(path.resolve())
    (scratch / "checkpoints").mkdir()
    (scratch / "checkpoints" / str(step)).symlink_to((run / "checkpoints" / str(step)).resolve())
    copied = shutil.copytree(str(pipeline.export(open_run(scratch), scratch)), scratch / "copied", symlinks=False)
    copied.rename(to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--language", choices=("ko", "ja"), default="ko")
    parser.add_argument("--budget-minutes", type=float, default=18.0, help="of each arm")
    parser.add_argument("--settings-of", type=Path, help="a work folder with paces and pilots, such as another language's")
    parser.add_argument("--arms", default="ABCDEF")
    parser.add_argument("--seeds", type=int, default=2, help="of pretraining, for B, D and E")
    parser.add_argument("--labels", type=int, nargs="*", default=[1_000, 10_000, 50_000], help="as many as there are, at most")
    parser.add_argument("--finetune-seeds", type=int, default=5, help="of each way; one with 20,000 labels and more")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trainings at once")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--pace", help=argparse.SUPPRESS)
    parser.add_argument("--per-round", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--batches", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    experiment = Experiment(options)
    if options.pace:
        pace_ours(experiment.ours(options.pace), experiment.folder / "paced" / options.pace, options.per_round)
    elif options.run:
        train_ours(RunConfig.model_validate_json(options.run[1]), Path(options.run[0]))
        say({})
    elif options.batches:
        folder, steps, run = options.batches
        write_batches(RunConfig.model_validate_json(run), Path(f"{folder}.run"), Path(folder), int(steps))
        say({})
    else:
        began = time.perf_counter()
        for stage in options.stages:
            getattr(experiment, stage)()
            print(f"{stage}: {(time.perf_counter() - began) / 60:.1f} min since the beginning", file=sys.stderr)


if __name__ == "__main__":
    main()
