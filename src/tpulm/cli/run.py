"""`tpulm run` and `quickstart`, the whole path; `train`, `evaluate` and `export`, its later stages one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tpulm.cli.options import (
    FieldOptions,
    HostOptions,
    Overrides,
    RunOptions,
    SetOptions,
    TrainingOptions,
    WorkDir,
    Workfolder,
    option,
    path_argument,
)
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say, show
from tpulm.errors import ConfigError, some_of
from tpulm.progress import shown_speed
from tpulm.storage import exists, holder, is_remote

if TYPE_CHECKING:
    from tpulm.config import RunConfig, SourceConfig
    from tpulm.pipeline import Summary

EXAMPLES = (
    "Return [MASK] if the object is callable.",
    "The function raises a [MASK] if the argument is invalid.",
    "Read a line from the [MASK] and return it as a string.",
)


def run(options: TrainingOptions, workdir: WorkDir, several: HostOptions) -> None:
    """Text to model: tokenizer, dataset, pretraining, evaluation, export. Continues whatever is unfinished in W.

    Stop it with Ctrl-C at any time, or kill it: the same command goes on where it was, and computes the same numbers.

    Several hosts (a TPU slice with more than one VM) run the same command, and share the work and W.
    """
    config = options.load()
    from tpulm import pipeline

    member = several.membership()
    with drawn_progress() as progress:
        summary = pipeline.run(config, workdir, member=member, progress=progress)
    if member is None or member.index == 0:  # the first host says it
        show_summary(summary)
        print_json(asdict(summary))


def quickstart(workdir: WorkDir = Path("tpulm-quickstart"), overrides: Overrides = None) -> None:
    """The whole path in about three minutes: a toy BERT of the documentation that ships with Python.

    Nothing is downloaded. Afterwards W/export is a model that Hugging Face's AutoModelForMaskedLM loads.
    """
    config = RunOptions("quickstart", overrides).load()
    from tpulm import pipeline

    with drawn_progress() as progress:
        summary = pipeline.run(config, workdir, progress=progress)
    show_summary(summary)

    from tpulm.convert.huggingface import load_model
    from tpulm.predict.fill_mask import fill_mask

    answers = fill_mask(load_model(summary.export), EXAMPLES, top=3)
    rows = [(text, "  ".join(f"{p.token} {p.score:.0%}" for p in best)) for text, best in zip(EXAMPLES, answers, strict=True)]
    print_table("What the model fills in", rows, header=("text", "best three"))
    say(f"\nNext: tpulm fill-mask {summary.export} 'Return the [MASK] of the list.'")
    say("Your own text: tpulm run RUN.toml --workdir W, with a run file such as in the README.")
    print_json(asdict(summary))


def show_summary(summary: Summary) -> None:
    """The table at the end of a run."""
    if summary.nothing_to_do:
        say(f"Nothing to do: {summary.workdir} is complete. Its results:")
    baseline = summary.eval_baseline_accuracy
    times = ""
    if baseline and summary.eval_accuracy:
        ratio = round(summary.eval_accuracy / baseline, 1)
        times = f"   ({ratio} times better)" if ratio > 1 else "   (no better)"
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
        "… always the commonest token": f"{baseline:.4f}{times}",
        "bits per character": f"{summary.bits_per_character:.4f}",
        "detector AUC": f"{scores['detection_auc']:.4f}   (0.5 is chance)" if "detection_auc" in scores else "",
        "detector recall": f"{scores['detection_recall']:.4f}   of the {scores['replaced_fraction']:.1%} of tokens replaced"
        if "detection_auc" in scores
        else "",
        "unknown characters": f"{summary.unknown_fraction:.2%}" if summary.unknown_fraction else "",
        "speed": speed + ("" if summary.mfu is None else f", MFU {summary.mfu:.0%}"),
        "health": summary.health,
        "stages": ", ".join(f"{name} {state}" for name, state in summary.stages.items()),
        "export": summary.export,
        "report": f"{summary.workdir}/report/index.html",
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


# -- single stages ------------------------------------------------------------------------------------------------------


def train(options: TrainingOptions, workdir: WorkDir, several: HostOptions) -> None:
    """Pretrain on the dataset that is already in W ('tpulm dataset prepare'), from the newest checkpoint if there is one."""
    config = options.load()
    from tpulm import pipeline
    from tpulm.workfolder import working_in

    member = several.membership()
    with drawn_progress() as progress, working_in(config, workdir, stage="train", member=member, progress=progress) as folder:
        result = pipeline.train(config, folder.path, hosts=folder.hosts, progress=progress)
    print_table("Training", _readable(result))
    print_json(result)


def evaluate(
    workdir: Workfolder,
    reading: Annotated[
        SetOptions,
        FieldOptions("tpulm.config:SourceConfig", ("text_field", "documents"), panel="Text of --on", default="as in the run"),
    ],
    own: Annotated[SetOptions, FieldOptions("tpulm.config:SourceConfig", ("encoding", "format"), panel="Text of --on")],
    several: HostOptions,
    on: Annotated[
        list[str] | None,
        option("Score this text in place of the held-out one: whatever a corpus may be. Repeatable.", metavar="FILE"),
    ] = None,
) -> None:
    """Score the newest checkpoint of W on all of its held-out text, or on text of your own: tpulm evaluate W --on new.txt.gz

    While a run works in W, and with --on, nothing is written into W, and one device is used. Text of your own is read as the
    run's (--text-field and --documents change that; --encoding and --format are its own), cleaned, encoded and laid out
    likewise; its duplicates stay.
    """
    from tpulm import pipeline
    from tpulm.workfolder import open_run, working_in

    config = open_run(workdir)
    sources = _sources(config, on or [], {**reading, **own})
    member = several.membership()
    if on and member is not None:
        raise ConfigError("--on is for one host; leave out what is for several")
    with drawn_progress() as progress:
        if on or (member is None and holder(workdir) is not None):
            result = pipeline.evaluate_read_only(config, workdir, on=sources, progress=progress)
        else:
            with working_in(config, workdir, stage="evaluate", member=member, progress=progress) as folder:
                result = pipeline.evaluate(config, folder.path, hosts=folder.hosts, progress=progress)
    print_table(some_of(on) if on else "Held-out text", _readable(result))
    print_json(result)


def _sources(config: RunConfig, paths: list[str], reading: Mapping[str, Any]) -> list[SourceConfig]:
    """Files of text, whose fields and documents are those of the run's first source of files unless given."""
    from tpulm.config import SourceConfig
    from tpulm.config.schema import DATASETS
    from tpulm.config.validation import validated

    if reading and not paths:
        raise ConfigError(f"{' and '.join(f'--{name}'.replace('_', '-') for name in reading)} is for --on; name a file with it")
    like = next((source for source in config.corpus.sources if source.format not in (*DATASETS, "python")), None)
    names = ("text_field", "documents", "on_error")
    usual = {} if like is None else {name: getattr(like, name) for name in names}
    return [validated(SourceConfig, {**usual, **reading, "path": path}, f"--on {path}") for path in paths]


def export(
    workdir: Annotated[PurePath, path_argument("The work folder of a run; for ONNX also the folder of a model.", "W")],
    several: HostOptions,
    format: Annotated[
        Literal["huggingface", "onnx"],
        option("onnx: beside each model, in onnx/model.onnx, for onnxruntime; needs the extra onnx."),
    ] = "huggingface",
    revisions: Annotated[
        bool, option("The checkpoints of train.checkpoint.keep_at_words, to W/revisions/chck_1M, ….", "--revisions")
    ] = False,
) -> None:
    """Write the newest checkpoint of W as a Hugging Face folder, W/export.

    tpulm export sentiment --format onnx    # an export, an import, or what 'tpulm finetune' made; of encoders

    tpulm export w/babylm --revisions       # one folder for each checkpoint that was kept by words, as BabyLM asks
    """
    if format == "onnx" and revisions:
        raise ConfigError("--revisions writes Hugging Face folders; then name one of them with --format onnx")
    if format == "onnx" and not exists(workdir / "run.json"):
        _export_onnx(workdir)
        return
    from tpulm import pipeline
    from tpulm.workfolder import open_run, working_in

    config, member = open_run(workdir), several.membership()
    if revisions:
        with drawn_progress() as progress, working_in(config, workdir, stage="export", progress=progress) as folder:
            folders = pipeline.export_revisions(config, folder.path, progress=progress)
        for path in folders.values():
            show(str(path))
        print_json({name: str(path) for name, path in folders.items()})
        return
    with drawn_progress() as progress, working_in(config, workdir, stage="export", member=member, progress=progress) as folder:
        path = pipeline.export(config, folder.path, hosts=folder.hosts, progress=progress)
    if format == "onnx":
        _export_onnx(path)
        return
    loader = "AutoModelForCausalLM" if config.model.architecture == "decoder" else "AutoModelForMaskedLM"
    show(str(path))
    if is_remote(path):
        say(f"tpulm.load_model('{path}') loads it; for transformers copy the folder to disk")
    else:
        say(f"{loader}.from_pretrained('{path}') loads it")
    print_json({"export": str(path)})


def _export_onnx(folder: PurePath) -> None:
    """The model of a folder, or both of an ELECTRA's, each as a file beside its weights."""
    from tpulm.convert.huggingface import CONFIG, HALVES, load_model
    from tpulm.convert.onnx import FILE, export_onnx

    models = [folder / half for half in HALVES if exists(folder / half / CONFIG)] or [folder]
    for one in models:
        export_onnx(load_model(one), one / FILE)
        show(str(one / FILE))
        say("onnxruntime.InferenceSession reads it")
    print_json({"export": [str(one / FILE) for one in models]})


def _readable(result: dict[str, object]) -> dict[str, str]:
    def text(value: object) -> str:
        if isinstance(value, float):
            return f"{value:,.4f}"
        if isinstance(value, dict):
            return ", ".join(f"{reason} {count:,}" for reason, count in value.items())
        return f"{value:,}" if isinstance(value, int) else str(value)

    return {name.replace("_", " "): text(value) for name, value in result.items() if value is not None and value != {}}
