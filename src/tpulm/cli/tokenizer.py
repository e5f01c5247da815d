"""`tpulm tokenizer train`, `report` and `compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath
from typing import Annotated

import typer

from tpulm.cli.options import AsJson, Commands, Init, Overrides, RunFile, WorkDir, load_run
from tpulm.cli.terminal import drawn_progress, print_json, print_table, show
from tpulm.errors import ConfigError
from tpulm.storage import as_path

app = Commands(help="Vocabularies: train one, see how well one fits a text, compare several.", no_args_is_help=True)


@app.command()
def train(reference: RunFile, workdir: WorkDir, overrides: Overrides = None, init: Init = None) -> None:
    """Read the corpus and train the tokenizer on a random sample of it, into W/tokenizer."""
    config = load_run(reference, overrides, init)
    from tpulm import workfolder
    from tpulm.pipeline import preparation

    with workfolder.working_in(config, workdir, stage="tokenizer") as folder, drawn_progress() as progress:
        given = config.tokenizer.path is not None
        text = None if given else preparation.prepare_corpus(config, folder.path, progress=progress)
        made = preparation.prepare_tokenizer(config, folder.path, text, progress=progress)
    show(f"{made.vocab_size:,} tokens in {workdir / 'tokenizer'}")


@app.command()
def report(
    tokenizer: Annotated[
        PurePath,
        typer.Argument(
            metavar="TOKENIZER", parser=as_path, help="A work folder, an export, a tokenizer.json, a .model or a vocab.txt."
        ),
    ],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files, folders or globs of text.")],
    text_field: Annotated[str, typer.Option(help="The field or column of jsonl, csv, tsv and parquet files.")] = "text",
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst documents to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """How well a vocabulary fits a text: unknown words, tokens per word, coverage of each script, the worst documents."""
    from tpulm import corpus, storage, tokenization
    from tpulm.config import SourceConfig
    from tpulm.tokenization.report import DOCUMENT_HEADER, SCRIPT_HEADER

    inside = tokenizer / "tokenizer"
    made = tokenization.load(inside if storage.is_folder(inside) else tokenizer)
    sources = tuple(SourceConfig(path=str(path), text_field=text_field, encoding=encoding) for path in texts)
    with drawn_progress() as progress:
        found = tokenization.report(made, corpus.read_texts(sources), worst=worst, progress=progress)
    print_table("Tokenizer", found.summary_rows())
    print_table("Coverage of characters", found.script_rows(), header=SCRIPT_HEADER)
    if found.unknown_texts:
        print_table("Unknown texts", [(text, f"{count:,}") for text, count in found.unknown_texts], header=("text", "times"))
    if worst:
        print_table("Worst documents", found.document_rows(), header=DOCUMENT_HEADER)
    if as_json:
        print_json(asdict(found))


@app.command()
def compare(
    tokenizers: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]TOKENIZER[:SETTINGS]...",
            help="Work folders, exports, tokenizer.json, .model or vocab.txt files. NAME is what to call one. SETTINGS are for "
            "a vocab.txt, which says nothing of its text: uncased, lowercase, strip_accents, whole_cjk, separated by commas.",
        ),
    ],
    corpus: Annotated[list[str], typer.Option(metavar="PATH", help="A file, folder or glob of text. Repeatable.")],
    text_field: Annotated[str, typer.Option(help="The field or column of jsonl, csv, tsv and parquet files.")] = "text",
    encoding: Annotated[str, typer.Option(help="Of the files.")] = "utf-8",
    max_bytes: Annotated[int, typer.Option(min=1, help="How much text to read: of each file the beginning.")] = 20_000_000,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tell how many documents are longer than this, beside 128 and 512.")
    ] = None,
    contrasts: Annotated[int, typer.Option(min=0, help="How many passages to show on which they differ.")] = 6,
    html: Annotated[
        PurePath | None, typer.Option(metavar="FILE", parser=as_path, help="Write a page with plots, in one file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Several vocabularies on the same text: unknown words, tokens, lengths, speed, what they share and where they differ.

    tpulm tokenizer compare w/ko kcbert/vocab.txt bert=uncased/vocab.txt:uncased --corpus new.txt --html comparison.html
    """
    from tpulm import storage, tokenization
    from tpulm.config import SourceConfig
    from tpulm.tokenization import comparison_report

    if html is not None:
        if storage.is_folder(html):
            raise ConfigError(f"--html {html} is a folder: name a file in it, such as {html / 'comparison.html'}")
        storage.check_writable(html.parent)
    sources = tuple(SourceConfig(path=path, text_field=text_field, encoding=encoding) for path in corpus)
    sample = tokenization.TextSample(sources, max_bytes)
    with drawn_progress() as progress:
        candidates = tokenization.load_candidates(tokenizers, progress=progress)
        found = tokenization.compare(
            candidates, sample, sequence_length=sequence_length, contrasts=contrasts, progress=progress
        )
    show(found.summary)
    for table in (*comparison_report.tables(found), *comparison_report.contrast_tables(found)):
        print_table(table.title, table.rows, header=table.header)
    if html is not None:
        storage.write_atomic(html, comparison_report.page(found))
        show(f"The same with plots: {html}")
    if as_json:
        print_json(found.as_json())
