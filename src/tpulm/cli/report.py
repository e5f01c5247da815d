"""`tpulm report`, a page about a run, a fine-tuning, or several runs; `tpulm push`, the model to the Hugging Face Hub."""

from __future__ import annotations

import webbrowser
from pathlib import Path, PurePath
from typing import Annotated

from tpulm.cli.options import argument, option, path_argument, path_option
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say_note, show
from tpulm.errors import ConfigError, some_of
from tpulm.readable import size

_COMPARISON = Path("tpulm-comparison.html")


def report(
    workdirs: Annotated[
        list[PurePath], path_argument("A work folder, or what 'tpulm finetune' made; several are compared.", "W…")
    ],
    output: Annotated[
        PurePath | None, path_option("Where the page goes: by default W/report/index.html, of several tpulm-comparison.html.")
    ] = None,
    open_: Annotated[bool, option("Open the page in the browser.", "--open")] = False,
) -> None:
    """A page to look at: verdict, curves, scores, samples, data, attempts, cost, settings. One HTML file, no network.

    A run writes its own at every evaluation; this makes it anew, also while the run goes on. With several work folders their
    losses are drawn over steps, hours, tokens, FLOPs and dollars, beside the settings that differ.
    """
    from tpulm import report, storage

    if len(workdirs) == 1:
        page = report.write(workdirs[0], output)
    else:
        if tuned := [str(path) for path in workdirs if report.is_finetuning(path)]:
            raise ConfigError(f"{', '.join(tuned)}: only pretraining runs are compared; leave the fine-tuning out")
        page = output or _COMPARISON
        storage.write_atomic(page, report.comparison.render(workdirs))
    show(str(page))
    if open_:
        if not isinstance(page, Path):
            raise ConfigError(f"{page} is in Cloud Storage; name a file with --output to open it here")
        webbrowser.open(page.resolve().as_uri())


def push(
    model: Annotated[PurePath, path_argument("A work folder, a fine-tuning, or a Hugging Face folder.", "MODEL")],
    repository: Annotated[str, argument("Made if absent.", "USER/NAME")],
    public: Annotated[bool, option("A repository that everybody sees, where it is made now.", "--public")] = False,
    anyway: Annotated[bool, option("Also a model that its health check does not call all right.", "--anyway")] = False,
    include: Annotated[
        list[str] | None,
        option("Also send this file of the model's folder, or what this link leads to. Repeatable.", metavar="NAME"),
    ] = None,
    revisions: Annotated[
        bool, option("Also the models of 'tpulm export --revisions', as branches of their names.", "--revisions")
    ] = False,
    with_samples: Annotated[
        bool, option("Also the report's samples: texts of the corpus, or of labelled data.", "--with-samples")
    ] = False,
    dry_run: Annotated[bool, option("Say what would be sent, and send nothing.", "--dry-run")] = False,
) -> None:
    """Send a model to the Hugging Face Hub: weights, tokenizer, card and report. Private unless told otherwise.

    The token is HF_TOKEN's, or that of 'hf auth login'. Killed on the way, the same command goes on: weights that the Hub has
    are not sent again; the repository has all files or none. ELECTRA's halves become NAME-discriminator and NAME-generator.
    """
    from tpulm.report.publishing import check_health, publications, push as send

    found = publications(
        model, repository, anyway=anyway or dry_run, include=include or (), revisions=revisions, with_samples=with_samples
    )
    addresses = list[str]()
    for publication in found:
        rows = {file.name: size(file.size) for file in publication.files}
        title = f"{publication.name} ({'public' if public else 'private'} if it is new)"
        print_table(title, rows, to=None if dry_run else console)
        if publication.left_out:
            say_note(f"left out, as no part of a model: {some_of(publication.left_out, 10)}; --include NAME sends one")
    if dry_run and not anyway:
        check_health(model)
    if not dry_run:
        with drawn_progress() as progress:
            addresses = [send(publication, private=not public, progress=progress) for publication in found]
        for address in addresses:
            show(address)
    files = {publication.name: {file.name: file.size for file in publication.files} for publication in found}
    print_json({"files": files, "addresses": addresses})
