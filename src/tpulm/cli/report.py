"""`tpulm report`, a page about a run, a fine-tuning, or several runs; `tpulm push`, the model to the Hugging Face Hub."""

from __future__ import annotations

import webbrowser
from pathlib import Path, PurePath
from typing import Annotated

import typer

from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say_note, show
from tpulm.errors import ConfigError, some_of
from tpulm.readable import size
from tpulm.storage import as_path

_COMPARISON = Path("tpulm-comparison.html")


def report(
    workdirs: Annotated[
        list[PurePath],
        typer.Argument(
            metavar="W…", parser=as_path, help="A work folder, or what 'tpulm finetune' made; several are compared."
        ),
    ],
    output: Annotated[
        PurePath | None,
        typer.Option(
            metavar="FILE",
            parser=as_path,
            help="Where the page goes: by default W/report/index.html, of several tpulm-comparison.html.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """A page to look at: verdict, curves, scores, samples, data, attempts, cost, settings. One HTML file, no network.

    A run writes its own at every evaluation; this makes it anew, also while the run goes on. With several work folders their
    losses are drawn over steps, hours, tokens, FLOPs and dollars, beside the settings that differ.
    """
    from tpulm import report

    if len(workdirs) == 1:
        page = report.write(workdirs[0], output)
    else:
        if tuned := [str(path) for path in workdirs if report.is_finetuning(path)]:
            raise ConfigError(f"{', '.join(tuned)}: only pretraining runs are compared; leave the fine-tuning out")
        page = report.write_comparison(workdirs, output or _COMPARISON)
    show(str(page))
    if open_:
        if not isinstance(page, Path):
            raise ConfigError(f"{page} is in Cloud Storage; name a file with --output to open it here")
        webbrowser.open(page.resolve().as_uri())


def push(
    model: Annotated[
        PurePath,
        typer.Argument(metavar="MODEL", parser=as_path, help="A work folder, a fine-tuning, or a Hugging Face folder."),
    ],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="Made if absent.")],
    public: Annotated[bool, typer.Option("--public", help="A repository that everybody sees, where it is made now.")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also a model that its health check does not call all right.")
    ] = False,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also send this file of the model's folder, or what this link leads to. Repeatable."),
    ] = None,
    revisions: Annotated[
        bool, typer.Option("--revisions", help="Also the models of 'tpulm export --revisions', as branches of their names.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a model to the Hugging Face Hub: weights, tokenizer, card and report. Private unless told otherwise.

    The token is HF_TOKEN's, or that of 'hf auth login'. Killed on the way, the same command goes on: weights that the Hub has
    are not sent again; the repository has all files or none. ELECTRA's halves become NAME-discriminator and NAME-generator.
    """
    from tpulm.report.publishing import publications
    from tpulm.report.publishing import push as send

    found, addresses = publications(model, repository, anyway=anyway, include=include or (), revisions=revisions), list[str]()
    for publication in found:
        rows = {file.name: size(file.size) for file in publication.files}
        print_table(
            f"{publication.name} ({'public' if public else 'private'} if it is new)",
            rows,
            to=None if dry_run else console,
        )
        if publication.left_out:
            say_note(f"left out, as no part of a model: {some_of(publication.left_out, 10)}; --include NAME sends one")
    if not dry_run:
        with drawn_progress() as progress:
            addresses = [send(publication, private=not public, progress=progress) for publication in found]
        for address in addresses:
            show(address)
    if as_json:
        files = {publication.name: {file.name: file.size for file in publication.files} for publication in found}
        print_json({"files": files, "addresses": addresses})
