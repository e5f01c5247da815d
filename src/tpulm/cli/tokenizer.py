"""`tpulm tokenizer train` and `report`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath
from typing import Annotated

from tpulm.cli.options import Commands, FieldOptions, RunOptions, SetOptions, WorkDir, argument, option
from tpulm.cli.terminal import drawn_progress, print_json, print_table, show
from tpulm.errors import ConfigError
from tpulm.storage import exists

app = Commands(help="Vocabularies: train one, see how well they fit a text.", no_args_is_help=True)


@app.command(as_json=False)
def train(options: RunOptions, workdir: WorkDir) -> None:
    """Read the corpus and train the tokenizer on a random sample of it, into W/tokenizer."""
    config = options.load()
    from tpulm.pipeline import preparation
    from tpulm.workfolder import working_in

    with working_in(config, workdir, stage="tokenizer") as folder, drawn_progress() as progress:
        has_path = config.tokenizer.path is not None
        text = None if has_path else preparation.prepare_corpus(config, folder.path, progress=progress)
        tokenizer = preparation.prepare_tokenizer(config, folder.path, text, progress=progress)
    show(f"{tokenizer.vocab_size:,} tokens in {workdir / 'tokenizer'}")


@app.command()
def report(
    tokenizers: Annotated[
        list[str],
        argument(
            "Work folders, exports, folders like GPT-2's, tokenizer.json, .model or vocab.txt files, names on the Hugging Face "
            "Hub; VOCAB.txt:uncased is read as Google's lower-case ones. Without --corpus, all but the first are text.",
            metavar="TOKENIZER...",
        ),
    ],
    reading: Annotated[SetOptions, FieldOptions("tpulm.config:SourceConfig", ("text_field", "encoding", "format"))],
    texts: Annotated[
        list[str] | None, option("A file, folder or glob of text. Repeatable.", "--corpus", metavar="PATH")
    ] = None,
    worst: Annotated[int, option("How many of the worst documents to show.", min=0)] = 5,
) -> None:
    """How well vocabularies fit a text: unknown characters, tokens per word, and where they cut words differently.

    tpulm tokenizer report w/ko kcbert/vocab.txt bert/vocab.txt:uncased --corpus new.txt
    """
    from tpulm import corpus, tokenization
    from tpulm.config import SourceConfig
    from tpulm.tokenization.report import COMPARISON_HEADER, DOCUMENT_HEADER, SCRIPT_HEADER

    names, texts = (tokenizers, texts) if texts else (tokenizers[:1], tokenizers[1:])
    if not texts:
        raise ConfigError(f"there is no text to read with {names[0]}: name it with --corpus PATH")
    if len(set(names)) < len(names):
        raise ConfigError(f"a tokenizer is named twice, in {' '.join(names)}; leave one of them out")
    sources = tuple(SourceConfig(path=str(path), **reading) for path in texts)
    with drawn_progress() as progress:
        loaded = {name: tokenization.load_any(_found(name), progress=progress) for name in names}
        compared = tokenization.compare(loaded, corpus.read_texts(sources), worst=worst, progress=progress)
    if len(names) > 1:
        print_table("Tokenizers", compared.rows(), header=COMPARISON_HEADER)
        if compared.cuts:
            print_table("Words that they cut differently", compared.cut_rows(), header=("word", "times", *names))
        print_json(asdict(compared))
        return
    only = compared.reports[names[0]]
    print_table("Tokenizer", only.summary_rows())
    print_table("Coverage of characters", only.script_rows(), header=SCRIPT_HEADER)
    if only.unknown_texts:
        print_table("Unknown texts", [(text, f"{count:,}") for text, count in only.unknown_texts], header=("text", "times"))
    if worst:
        print_table("Worst documents", only.document_rows(), header=DOCUMENT_HEADER)
    print_json(asdict(only))


def _found(name: str) -> str:
    """The path or, if nothing is there and it is named so, that of a model of the Hugging Face Hub."""
    if exists(name) or PurePath(name).suffix in (".json", ".model", ".txt"):
        return name
    from tpulm.convert.huggingface import local_or_hub

    return str(local_or_hub(name, weights=False))
