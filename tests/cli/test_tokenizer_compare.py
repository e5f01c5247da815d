"""`tpulm tokenizer compare` as a user meets it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cli import terminal
from tpulm.cli.app import app
from tpulm.errors import ConfigError, DataError

WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
UPPER, LOWER = "The\n##s\nred\nRed\nbird\n.\n", "the\n##s\nred\nbird\nsong\n.\n"
TEXT = "The red birds .\nRed song\n\nthe bird\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, words in (("cased", UPPER), ("uncased", LOWER)):
        Path(name).mkdir()
        Path(name, "vocab.txt").write_text(WORDS + words)
    Path("corpus.txt").write_text(TEXT)
    Path("more.jsonl").write_text('{"body": "red"}\n')
    return tmp_path


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tokenizer", "compare", *arguments], catch_exceptions=False)


def test_the_object_the_tables_and_the_page(folder: Path):
    done = compare(
        "cased", "low=uncased:uncased", "--corpus", "corpus.txt", "--html", "page.html", "--json", "--sequence-length", "2"
    )
    assert done.exit_code == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["documents"], value["words"], value["is_whole"]) == (3, 8, True)
    cased, low = value["tokenizers"]["cased"], value["tokenizers"]["low"]
    # cased: The red bird ##s . / Red [UNK] / [UNK] bird; low: the red bird ##s . / red song / the bird
    assert (cased["tokens"], low["tokens"], cased["unknown_words"], low["unknown_words"]) == (9, 9, 2 / 8, 0.0)
    assert cased["unknown_characters"] == 7 / len(TEXT.replace(" ", "").replace("\n", ""))
    assert cased["lengths"]["share_over"] == {"2": 1 / 3, "128": 0.0, "512": 0.0}
    assert value["overlaps"]["cased"]["low"]["both"] == 4  # ##s red bird .
    assert "all text of one file, 31 bytes" in done.stderr and "Tokens in both vocabularies" in done.stderr
    assert "page.html" in done.stderr
    page = Path("page.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>") and "low=uncased:uncased" in page


def test_a_run_has_its_name_and_tables_fit(folder: Path, monkeypatch: pytest.MonkeyPatch):
    name = "a-name-of-a-run-that-is-long-2024"
    for workdir, words in (("w", UPPER), ("v", LOWER)):
        Path(workdir, "tokenizer").mkdir(parents=True)
        Path(workdir, "tokenizer", "vocab.txt").write_text(WORDS + words)
        Path(workdir, "run.json").write_text(json.dumps({"name": name[: 33 if workdir == "w" else 31]}))
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=screen, width=80))
    done = compare("w", "v:uncased", "--corpus", "corpus.txt", "--json")
    assert list(json.loads(done.stdout)["tokenizers"]) == [name, name[:31]]
    lines = screen.getvalue().splitlines()
    assert any("tok/char  bytes/tok" in line for line in lines)  # no figure or header is folded
    assert all(len(line) <= 80 for line in lines)


def test_several_sources_and_a_limit(folder: Path):
    done = compare("cased", "uncased", "--corpus", "corpus.txt", "--corpus", "more.jsonl", "--text-field", "body", "--json")
    value = json.loads(done.stdout)
    assert (value["documents"], value["sample"]) == (4, "all text of 2 files, 34 bytes")
    assert "uncased/vocab.txt:uncased" in done.stderr  # the note on a vocabulary without capitals
    assert not list(folder.glob("*.html"))
    cut = json.loads(compare("cased", "uncased", "--corpus", "corpus.txt", "--max-bytes", "10", "--json").stdout)
    assert (cut["documents"], cut["is_whole"]) == (1, False)


def test_in_cloud_storage(folder: Path, gcs: Emulator):
    storage.write_atomic("gs://runs/v/vocab.txt", WORDS + UPPER)
    storage.write_atomic("gs://runs/text/a.txt", TEXT)
    done = compare(
        "gs://runs/v",
        "gs://runs/v/vocab.txt:uncased",
        "--corpus",
        "gs://runs/text",
        "--html",
        "gs://runs/out/page.html",
        "--json",
    )
    assert list(json.loads(done.stdout)["tokenizers"]) == ["gs://runs/v", "gs://runs/v/vocab.txt:uncased"]
    assert storage.read_text("gs://runs/out/page.html").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("cased", "uncasd", "--corpus", "corpus.txt"), ConfigError, "Did you mean 'uncased'"),
        (("cased", "uncased", "--corpus", "korpus.txt"), ConfigError, r"Did you mean 'corpus\.txt'"),
        (("cased", "uncased", "--corpus", "empty.txt"), DataError, "no text to compare on"),
        (("cased", "uncased", "--corpus", "corpus.txt", "--html", "cased"), ConfigError, "is a folder: name a file"),
    ],
)
def test_mistakes(folder: Path, arguments: tuple[str, ...], error: type[Exception], message: str):
    Path("empty.txt").write_text("\n \n")
    with pytest.raises(error, match=message):
        compare(*arguments)


def test_no_corpus(folder: Path):
    done = compare("cased", "uncased")
    assert done.exit_code == 2 and "--corpus" in done.stderr
