"""`tpulm bench`: a model on the tasks of KLUE, JGLUE or GLUE, beside published scores."""

from __future__ import annotations

import re
from glob import has_magic
from pathlib import Path, PurePath
from typing import Annotated, Literal

from tpulm.cli.options import Encoding, TuningOverrides, argument, listed, option, path_argument, path_option, rates_of
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say, show
from tpulm.cli.use import load, warn_of_unknown_text
from tpulm.errors import ConfigError
from tpulm.storage import exists, holder


def bench(
    suite: Annotated[str, argument("klue, jglue, glue, or pairs: minimal pairs, as of BLiMP.", "SUITE")],
    folder: Annotated[PurePath, path_argument("Where its files lie, as its repository has them; compressed or not.", "DIR")],
    model: Annotated[
        PurePath, path_option("A work folder, an export, or a Hugging Face folder.", "--model", "-m", metavar="M")
    ],
    workdir: Annotated[
        PurePath | None, path_option("Where models and scores go (not of pairs).", "--workdir", "-w", metavar="W")
    ] = None,
    tasks: Annotated[
        str | None, option("Only these, such as nli,sts. A name that is unknown lists all.", metavar="A,B")
    ] = None,
    seeds: Annotated[int, option("Fine-tuning runs per task.")] = 3,
    learning_rates: Annotated[
        str | None,
        option(
            "To select from, such as 5e-5,1e-4. Default: the published ones; for a narrow model that tpulm pretrained, 1e-3.",
            metavar="A,B",
        ),
    ] = None,
    select: Annotated[
        Literal["train", "dev"],
        option(
            "What epochs and learning rates are chosen on: a part of train that is held out, or dev, which is what is "
            "reported (as most published scores were)."
        ),
    ] = "train",
    encoding: Encoding = "utf-8",
    overrides: TuningOverrides = None,
    plain: Annotated[
        bool, option("Pairs with a masked model: mask only the scored token, not the later pieces of its word.", "--plain")
    ] = False,
) -> None:
    """Fine-tune a model on each task of a benchmark, and print its scores beside published ones.

    tpulm bench klue KLUE/klue_benchmark --model w/ko --workdir w/klue

    tpulm bench jglue JGLUE/datasets --model w/ja --tasks jsts,jnli --seeds 5 --workdir w/jglue

    tpulm bench glue glue_data --model answerdotai-ModernBERT-base --select dev --workdir w/glue

    Nothing is downloaded: DIR is a clone of the benchmark's repository, or any folder with its files (ynat-v1.1_train.json,
    jsts-v1.3/train-v1.3.json, CoLA/train.tsv, …). A task whose files are not there is listed as missing.

    Stop it or kill it: the same command goes on where it was. A quick look: --seeds 1 --set epochs=1. The table is also
    W/bench.md, with all numbers in W/bench.json, and W/TASK/lr-RATE is each task's model, with its report.

    tpulm bench pairs blimp/data --model w/export

    Of pairs nothing is trained: how often is the acceptable sentence the likelier one? DIR has BLiMP's or JBLiMP's jsonl,
    Zorro's text, or any jsonl, tsv or csv with the columns good and bad.
    """
    if suite == "pairs":
        tuning = {"--workdir": workdir, "--tasks": tasks, "--learning-rates": learning_rates, "--set": overrides}
        tuning |= {"--seeds": seeds != 3, "--select": select != "train"}
        if named := [name for name, value in tuning.items() if value]:
            raise ConfigError(
                f"{', '.join(named)}: of pairs nothing is fine-tuned; leave {'it' if len(named) == 1 else 'them'} out"
            )
        _pairs(folder, model, encoding, plain=plain)
        return
    from tpulm.finetuning.suites import find_suite

    find_suite(suite)
    if workdir is None:
        raise ConfigError("--workdir W says where the models and scores of the tasks go; it is missing")
    if plain:
        raise ConfigError("--plain is for 'tpulm bench pairs'")
    from tpulm.config import load_finetune

    load_finetune(overrides or [])  # refuses unknown settings before anything is read
    from tpulm.config.resolve import parse_overrides
    from tpulm.finetuning.benchmark import TABLE, bench as run

    with drawn_progress() as progress:
        report = run(
            suite,
            folder,
            model,
            workdir,
            tasks=listed(tasks),
            seeds=seeds,
            learning_rates=rates_of(learning_rates),
            select=select,
            encoding=encoding,
            settings=parse_overrides(overrides or []),
            progress=progress,
        )
    header = [re.sub(r"(?<=[-/])", "\n", name) for name in report.header()]  # narrow columns
    print_table(f"{report.title}, in percent: {report.model}", report.rows(), header=["", *header[1:]])
    show()
    for line in report.remarks():
        show(f"- {line}", fold=True)
    show(f"\nThe table is {workdir / TABLE}")
    print_json(report.values())


def _pairs(path: PurePath, model: PurePath, encoding: str, *, plain: bool) -> None:
    from tpulm.predict.minimal_pairs import Tally, read_pairs, score_pairs

    is_run = exists(model / "run.json")
    under_way = is_run and holder(model) is not None  # its checkpoint may be another once the score is there
    pairs, loaded = read_pairs(path, encoding, say), load(model)
    warn_of_unknown_text(loaded.tokenization, [sentence for pair in pairs for sentence in pair[:2]])
    with drawn_progress() as progress:
        report = score_pairs(loaded, pairs, plain=plain, progress=progress)

    def rows(tallies: dict[str, Tally]) -> list[tuple[str, ...]]:
        return [(name, f"{100 * one.accuracy:.1f}", f"{one.pairs:,}", f"{one.ties:,}") for name, one in tallies.items()]

    header = ("", "accuracy", "pairs", "ties")
    print_table(f"Minimal pairs, in percent: {model}", rows(report.by_paradigm), header=header)
    if report.by_category:
        print_table("By category", rows(report.by_category), header=header)
    print_table(
        "All",
        {
            "mean of paradigms": f"{100 * report.accuracy:.1f}",
            "pairs": f"{report.total.pairs:,}, of which {report.total.ties:,} ties, counted as wrong",
            **({"of": report.name("")} if report.benchmark else {}),
            "scored by": report.method,
            **{name: f"{score:.1f} (published, on the whole set)" for name, score in report.published.items()},
        },
    )
    print_json(report.values())
    if under_way:
        say(f"{model}: training is under way, and its report does not tell this score")
    elif is_run:
        from tpulm import pipeline

        named = path if path.name.strip(".") else Path(path).resolve()
        name = f"{named.parent.name}/{named.name}" if has_magic(named.name) else named.name
        pipeline.record_pairs(model, report.name(name) + ", plain" * plain, report)
        say(f"{model}: its report tells this score, and so will its card ('tpulm export {model}')")
