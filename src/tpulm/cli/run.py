"""`tpulm run` and `tpulm quickstart`: the whole path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from tpulm.cli.options import AllowCpu, AsJson, Coordinator, HostIndex, Init, NumHosts, Overrides, RunFile, WorkDir, load_run
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table
from tpulm.progress import shown_speed

if TYPE_CHECKING:
    from tpulm.pipeline import Summary

EXAMPLES = (
    "Return [MASK] if the object is callable.",
    "The function raises a [MASK] if the argument is invalid.",
    "Read a line from the [MASK] and return it as a string.",
)


def run(
    reference: RunFile,
    workdir: WorkDir,
    overrides: Overrides = None,
    init: Init = None,
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    allow_cpu: AllowCpu = False,
    as_json: AsJson = False,
) -> None:
    """Text to model: tokenizer, dataset, pretraining, evaluation, export. Continues whatever is unfinished in W.

    Stop it with Ctrl-C at any time, or kill it: the same command goes on where it was, and computes the same numbers.

    Several hosts (a TPU slice with more than one VM) run the same command, and share the work and W.
    """
    config = load_run(reference, overrides, init, allow_cpu=allow_cpu)
    from tpulm import pipeline
    from tpulm.runtime import hosts

    member = hosts.membership(coordinator, num_hosts, host_index)
    with drawn_progress() as progress:
        summary = pipeline.run(config, workdir, member=member, progress=progress)
    if member is not None and member.index > 0:  # the first host says it
        return
    show_summary(summary)
    if as_json:
        print_json(asdict(summary))


def quickstart(
    workdir: WorkDir = Path("tpulm-quickstart"),
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """The whole path in about two minutes: a toy BERT of the documentation that ships with Python.

    Nothing is downloaded. Afterwards W/export is a model that Hugging Face's AutoModelForMaskedLM loads.
    """
    config = load_run("quickstart", overrides)
    from tpulm import pipeline

    with drawn_progress() as progress:
        summary = pipeline.run(config, workdir, progress=progress)
    show_curve(workdir)
    show_summary(summary)

    from tpulm.convert.huggingface import load_model
    from tpulm.predict.fill_mask import fill_mask

    answers = fill_mask(load_model(summary.export), EXAMPLES, top=3)
    rows = [(text, "  ".join(f"{p.token} {p.score:.0%}" for p in best)) for text, best in zip(EXAMPLES, answers, strict=True)]
    print_table("What the model fills in", rows, header=("text", "best three"))
    console.print(f"\nNext: [bold]tpulm fill-mask {summary.export} 'Return the [MASK] of the list.'[/]", highlight=False)
    console.print("Your own text: [bold]tpulm run RUN.toml --workdir W[/], with a run file such as in the README.")
    if as_json:
        print_json(asdict(summary))


def show_summary(summary: Summary) -> None:
    """The table at the end of a run."""
    if summary.nothing_to_do:
        console.print(f"Nothing to do: {summary.workdir} is complete. Its results:")
    ratio = summary.eval_accuracy / summary.eval_baseline_accuracy if summary.eval_baseline_accuracy else float("nan")
    scores = summary.eval_scores
    of = "generator" if "detection_auc" in scores else "held-out"
    speed = shown_speed(summary.tokens_per_second, summary.text_fraction)
    rows = {
        "steps": f"{summary.steps:,}",
        "parameters": f"{summary.parameters:,}",
        "training loss": _loss(summary.train_loss, summary.train_scores),
        "held-out loss": _loss(summary.eval_loss, scores),
        "… both are": summary.loss_is,
        "… differ because": summary.losses_differ,
        f"{of} accuracy": f"{summary.eval_accuracy:.4f}",
        "… always the commonest token": f"{summary.eval_baseline_accuracy:.4f}   ({ratio:.1f} times better)",
        "bits per character": f"{summary.bits_per_character:.4f}",
        **_detector_rows(scores),
        "unknown tokens": f"{summary.unknown_fraction:.2%}" if summary.unknown_fraction else "",
        "speed": speed + ("" if summary.mfu is None else f", MFU {summary.mfu:.0%}"),
        "health": summary.health,
        "stages": ", ".join(f"{name} {state}" for name, state in summary.stages.items()),
        "export": summary.export,
    }
    print_table(summary.name, {name: shown for name, shown in rows.items() if shown})


def _loss(loss: float, scores: Mapping[str, float]) -> str:
    """With its parts, where it is a sum of tasks."""
    halves = "detection_loss" in scores
    names = {
        "mlm_loss": "generator" if halves else "tokens",
        "detection_loss": "detector",
        "next_sentence_loss": "next sentence",
    }
    parts = [f"{label} {scores[name]:.4f}" for name, label in names.items() if name in scores]
    return f"{loss:.4f}" + (f"   ({', '.join(parts)})" if len(parts) > 1 else "")


def _detector_rows(scores: Mapping[str, float]) -> dict[str, str]:
    """Of ELECTRA's discriminator, the half that is fine-tuned."""
    if "detection_auc" not in scores:
        return {}
    return {
        "detector AUC": f"{scores['detection_auc']:.4f}   (0.5 is chance)",
        "detector recall": f"{scores['detection_recall']:.4f}   of the {scores['replaced_fraction']:.1%} of tokens replaced",
    }


def show_curve(workdir: PurePath) -> None:
    """The training loss at about ten steps."""
    from tpulm.train.metrics import read_metrics

    points = [(record.step, record.values["loss"]) for record in read_metrics(workdir) if record.kind == "train"]
    chosen = [points[round(i * (len(points) - 1) / 9)] for i in range(10)] if len(points) > 10 else points
    low, high = min(losses := [loss for _, loss in chosen], default=0.0), max(losses, default=0.0)
    low, high = math.floor(10 * low) / 10, math.ceil(10 * high) / 10  # what the axis shows
    width = min(60, max(20, console.width - 22))
    rows = []
    for step, loss in chosen:
        filled = round(width * (loss - low) / (high - low)) if high > low else 0
        rows.append((f"{step:,}", f"{loss:.3f}", "│" + "█" * filled))
    axis = f"{low:.1f}" + f"{high:.1f}".rjust(width - 2)
    print_table(f"Training loss (bars begin at {low:.1f})", rows, header=("step", "loss", axis))
