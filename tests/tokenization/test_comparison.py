"""Several tokenizers on one text, every figure counted again by other means."""

from __future__ import annotations

import html.parser
import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm import tokenization
from tpulm.config import SourceConfig
from tpulm.errors import DataError
from tpulm.tokenization import Comparison, TextSample, Tokenization, comparison
from tpulm.tokenization.candidates import Candidate
from tpulm.tokenization.comparison_page import page
from tpulm.tokenization.comparison_tables import contrast_tables, shortened, tables

EVIL = "</style></section><script>alert('x')</script> & \"quoted\" \x1b[31m \u202e the 龘 was"


def compared(trained: dict[str, Tokenization], folder: Path, texts: list[str], **settings: Any) -> Comparison:
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    candidates = [Candidate(name, f"path/of/{name}", made) for name, made in trained.items()]
    sample = TextSample([SourceConfig(path=str(folder / "text.txt"))], 10**7)
    return tokenization.compare(candidates, sample, repetitions=1, **settings)


@pytest.fixture(scope="module")
def found(trained: dict[str, Tokenization], texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(trained, tmp_path_factory.mktemp("compared"), [*texts[:400], EVIL], sequence_length=7)


def test_figures_counted_again(found: Comparison, trained: dict[str, Tokenization], texts: list[str]):
    given = [*texts[:400], EVIL]
    assert found.documents == 401
    assert found.words == sum(len(text.split()) for text in given)
    assert found.characters == sum(len("".join(text.split())) for text in given)
    assert found.text_bytes == found.speed_bytes == sum(len(text.encode()) for text in given)
    assert found.over == (7, 128, 512) and found.is_whole
    for one, (name, made) in zip(found.measured, trained.items(), strict=True):
        encoded = made.encode(given)  # bulk encoding goes another way
        unknown = int(np.sum(encoded.ids == made.special.unknown))
        assert (one.label, one.algorithm, one.vocab_size) == (name, made.algorithm, made.vocab_size)
        assert (one.tokens, one.unknown_tokens) == (encoded.ids.size, unknown)
        assert one.tokens_used == len(np.unique(encoded.ids))
        assert one.unknown_rate == unknown / one.tokens
        assert one.tokens_per_word == one.tokens / found.words
        assert one.tokens_per_character == one.tokens / found.characters
        assert one.bytes_per_token == found.text_bytes / one.tokens
        assert one.lengths.percentile(95) == np.percentile(encoded.lengths, 95, method="inverted_cdf")
        assert one.lengths.share_over(7) == np.mean(encoded.lengths > 7)
        assert one.speed.bulk > 0 and one.speed.library > 0


def test_the_report_says_the_same(found: Comparison, trained: dict[str, Tokenization], texts: list[str]):
    for one, made in zip(found.measured, trained.values(), strict=True):
        report = tokenization.report(made, [[*texts[:400], EVIL]])
        assert one.scripts == report.scripts
        assert (one.unknown_rate, one.tokens_per_word) == (report.unknown_rate, report.tokens_per_word)


def test_unknown_words_and_characters(found: Comparison):
    wordpiece, *others = found.measured
    assert wordpiece.unknown_words >= 1 / found.words and wordpiece.unknown_characters >= 1 / found.characters
    assert all(one.unknown_words == one.unknown_characters == one.unknown_rate == 0.0 for one in others)


def test_overlaps(found: Comparison):
    for mine, row in enumerate(found.overlaps):
        for theirs, cell in enumerate(row):
            assert cell.both == found.overlaps[theirs][mine].both and cell.jaccard == found.overlaps[theirs][mine].jaccard
            assert cell.share == 1.0 if mine == theirs else 0.0 < cell.share < 1.0


def test_json(found: Comparison):
    value = json.loads(json.dumps(found.as_json()))
    assert list(value["tokenizers"]) == ["wordpiece", "bpe", "unigram"]
    bpe = value["tokenizers"]["bpe"]
    assert set(bpe["lengths"]["share_over"]) == {"7", "128", "512"} and set(bpe["megabytes_per_second"]) == {"bulk", "library"}
    assert set(value["overlaps"]["bpe"]) == {"wordpiece", "unigram"}
    assert all(
        set(one["tokens"]) == set(value["tokenizers"]) and ("best" in one) != ("worst" in one) for one in value["contrasts"]
    )


def test_tables_are_ready_to_be_drawn(found: Comparison):
    drawn = [*tables(found), *contrast_tables(found)]
    assert len(drawn) == 7 + len(found.contrasts) and found.contrasts
    for table in drawn:
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert "\x1b" not in f"{table}" and "\u202e" not in f"{table}"
    speed = next(table for table in drawn if table.title.startswith("Speed"))
    assert [float(row[1]) for row in speed.rows] == [round(one.speed.bulk, 2) for one in found.measured]


def test_shortened():
    assert shortened("abcdefghij", 5) == "ab…ij" and shortened("abcde", 5) == "abcde" and len(shortened("x" * 99, 22)) == 22


class Reader(html.parser.HTMLParser):
    """Tags that are open, all that occurred, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onerror", "onclick"}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_and_escapes_everything(trained: dict[str, Tokenization], tmp_path: Path):
    made = dict(zip(["<i>a & b", "c\"d'", "plain"], trained.values(), strict=True))
    found = compared(made, tmp_path, [EVIL] * 3)
    written = page(found)
    reader = Reader()
    reader.feed(written)
    assert not reader.open
    assert "script" not in reader.tags and "link" not in reader.tags and "i" not in reader.tags
    assert "http" not in written and "@import" not in written and "url(" not in written
    assert not [character for character in written if ord(character) < 0x20 and character != "\n"] and "\u202e" not in written
    text = " ".join(reader.texts)
    assert "<i>a & b" in text and "alert" in text and "⟨U+202E⟩" in text and "␛" in text
    assert {"svg", "rect", "path", "table", "style"} <= reader.tags
    assert all(f"{one.tokens_per_character:.3f}" in text for one in found.measured)


def test_the_page_is_the_same_for_the_same_comparison(found: Comparison):
    assert page(found) == page(found)


@pytest.mark.parametrize("nothing", [[], ["", " \t", "\u3000"]])
def test_no_text_is_an_error(trained: dict[str, Tokenization], tmp_path: Path, nothing: list[str]):
    with pytest.raises(DataError, match="no text to compare on"):
        compared(trained, tmp_path, nothing)


class Repeated(TextSample):
    """The same documents again and again."""

    def __init__(self, texts: list[str], times: int):
        self._texts, self._times = texts, times
        self.expected_bytes, self.is_whole = 1, True

    def __iter__(self) -> Iterator[list[str]]:
        return (list(self._texts) for _ in range(self._times))

    def __str__(self) -> str:
        return "a sample"


def test_memory_does_not_grow_with_the_text(
    trained: dict[str, Tokenization], texts: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Ten times the text, and no more memory."""
    monkeypatch.setattr(comparison, "_SPEED_BYTES", 1)
    candidates = [Candidate(name, name, trained[name]) for name in ("wordpiece", "bpe")]
    peaks, counts = [], []
    for times in (5, 5, 50):  # the first time fills what is remembered from call to call
        tracemalloc.start()
        found = tokenization.compare(candidates, Repeated(texts[:200], times), repetitions=1, contrasts=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        counts.append(sum(one.tokens for one in found.measured))
    assert counts[2] == 10 * counts[1]
    assert peaks[2] - peaks[1] < 20_000, (peaks, counts)  # 9,000 documents more: not so much as a number for each


def test_published_vocabularies_in_one_command(real_data: Path, tmp_path: Path):
    """google's uncased English vocabulary beside a Korean one, each with its own settings, on text in Korean."""
    names = ("bert_base_uncased_vocab.txt:uncased", "kcbert_vocab.txt", "koelectra_vocab_32200.txt")
    candidates = tokenization.load_candidates([str(real_data / "vocab" / name) for name in names])
    sample = TextSample([SourceConfig(path=str(real_data / "ko" / "nsmc_reviews.txt.gz"))], 100_000)
    english, korean, other = tokenization.compare(candidates, sample, repetitions=1).measured
    assert [one.label for one in (english, korean, other)] == [
        "bert_base_uncased_vocab",
        "kcbert_vocab",
        "koelectra_vocab_32200",
    ]
    assert english.tokens_per_character > 2 * korean.tokens_per_character  # it breaks syllables into letters
    assert english.unknown_words > 0.2 > 0.02 > korean.unknown_words > other.unknown_words
    assert math.isclose(sample.read_bytes, 100_000, rel_tol=0.01)
