"""Several tokenizers on one text, every figure counted again by other means."""

from __future__ import annotations

import gc
import json
import math
import re
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm import tokenization
from tpulm.config import SourceConfig
from tpulm.errors import DataError
from tpulm.tokenization import Comparison, TextSample, Tokenization
from tpulm.tokenization.comparison import PERCENTILES, Candidate, Overlap
from tpulm.tokenization.comparison_report import contrast_tables, page, tables
from tpulm.tokenization.contrasts import Contrast, Piece

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
    assert found.is_whole
    for name, made in trained.items():
        one = found.tokenizers[name]
        encoded = made.encode(given)  # bulk encoding goes another way
        unknown = int(np.sum(encoded.ids == made.special.unknown))
        assert (one.source, one.algorithm, one.vocab_size) == (f"path/of/{name}", made.algorithm, made.vocab_size)
        assert (one.tokens, one.unknown_tokens) == (encoded.ids.size, unknown)
        assert one.tokens_used == len(np.unique(encoded.ids))
        assert one.unknown_rate == unknown / one.tokens
        assert one.tokens_per_word == one.tokens / found.words
        assert one.tokens_per_character == one.tokens / found.characters
        assert one.bytes_per_token == found.text_bytes / one.tokens
        percentiles = {str(share): np.percentile(encoded.lengths, share, method="inverted_cdf") for share in PERCENTILES}
        assert one.lengths.percentiles == {**percentiles, "max": np.max(encoded.lengths)}
        assert one.lengths.share_over == {most: np.mean(encoded.lengths > most) for most in (7, 128, 512)}
        lengths = np.unique(encoded.lengths)
        assert one.length_curve == [(length, np.mean(encoded.lengths <= length)) for length in lengths]
        assert one.megabytes_per_second.bulk > 0 and one.megabytes_per_second.library > 0


def test_the_report_says_the_same(found: Comparison, trained: dict[str, Tokenization], texts: list[str]):
    for one, made in zip(found.tokenizers.values(), trained.values(), strict=True):
        report = tokenization.report(made, [[*texts[:400], EVIL]])
        assert one.scripts == report.scripts
        assert (one.unknown_rate, one.tokens_per_word) == (report.unknown_rate, report.tokens_per_word)


def test_unknown_words_and_characters(found: Comparison):
    wordpiece, *others = found.tokenizers.values()
    assert wordpiece.unknown_words >= 1 / found.words and wordpiece.unknown_characters >= 1 / found.characters
    assert all(one.unknown_words == one.unknown_characters == one.unknown_rate == 0.0 for one in others)


def test_overlaps(found: Comparison):
    for mine, row in found.overlaps.items():
        assert {mine, *row} == set(found.tokenizers)
        for theirs, cell in row.items():
            assert cell.both == found.overlaps[theirs][mine].both and cell.jaccard == found.overlaps[theirs][mine].jaccard
            assert 0.0 < cell.share < 1.0


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
    by_title = {table.title.split(",")[0]: table.rows for table in drawn}
    for number, one in enumerate(found.tokenizers.values()):
        assert by_title["Tokens"][number][3:5] == (f"{one.tokens_per_word:.3f}", f"{one.tokens_per_character:.3f}")
        assert by_title["Length of documents in tokens"][number][-1] == str(max(length for length, _ in one.length_curve))
        assert float(by_title["Speed in MB/s"][number][1]) == round(one.megabytes_per_second.bulk, 2)
    assert [row[:2] for row in by_title["Tokens in both vocabularies"]] == [
        ("wordpiece", "bpe"),
        ("wordpiece", "unigram"),
        ("bpe", "unigram"),
    ]


def test_the_page_needs_nothing_and_has_the_figures(found: Comparison):
    written = page(found)
    root = ElementTree.fromstring(written)
    assert not {one.tag for one in root.iter()} & {"script", "link", "img", "iframe"}
    assert not any(name in one.attrib for one in root.iter() for name in ("src", "href"))
    assert not any(outside in written for outside in ("http", "@import", "url("))
    text = " ".join(" ".join(root.itertext()).split())
    for one in found.tokenizers.values():
        assert f"{one.tokens_per_character:.3f}" in text and f"{one.megabytes_per_second.bulk:.2f} tpulm" in text
    for table in tables(found):
        assert all(cell in text for row in table.rows for cell in row), table.title
    shares = [1.0 if mine == theirs else row[theirs].share for mine, row in found.overlaps.items() for theirs in found.overlaps]
    assert re.findall(r"--share: ([\d.]+)", written) == [str(round(share, 3)) for share in shares]


def test_the_page_escapes_and_shows_everything(found: Comparison):
    """Wherever a text may come from: names, paths, vocabularies, documents."""
    label = f"{EVIL}1"
    piece = Piece(EVIL, EVIL, True, False)
    hostile = replace(
        found,
        sample=EVIL,
        tokenizers={f"{EVIL}{number}": replace(one, source=EVIL) for number, one in enumerate(found.tokenizers.values())},
        overlaps={f"{EVIL}{mine}": {f"{EVIL}{theirs}": Overlap(1, 0.5, 0.5) for theirs in range(3)} for mine in range(3)},
        contrasts=(Contrast(label, False, EVIL, {}, {label: [piece, piece._replace(unknown=True)]}),),
    )
    written = page(hostile)
    texts = list(ElementTree.fromstring(written).itertext())
    assert "<script" not in written and written.count("</style>") == 1
    assert not [character for character in written if ord(character) < 0x20 and character != "\n"] and "\u202e" not in written
    shown = EVIL.replace("\x1b", "␛").replace("\u202e", "⟨U+202E⟩")
    assert f"Worst with {shown}1" in texts and texts.count(shown) >= 6


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


def test_memory_does_not_grow_with_the_text(trained: dict[str, Tokenization], texts: list[str]):
    """Ten times the text, and no more memory."""
    gc.collect()
    gc.disable()  # what waits to be collected is not always the same
    candidates = [Candidate(name, name, trained[name]) for name in ("wordpiece", "bpe")]
    peaks, counts = [], []
    for times in (5, 5, 50):  # the first time fills what is remembered from call to call
        tracemalloc.start()
        found = tokenization.compare(candidates, Repeated(texts[:200], times), repetitions=1, speed_bytes=1, contrasts=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        counts.append(sum(one.tokens for one in found.tokenizers.values()))
    gc.enable()
    assert counts[2] == 10 * counts[1]
    assert peaks[2] - peaks[1] < 20_000, (peaks, counts)  # 9,000 documents more: not so much as a number for each


def test_published_vocabularies_in_one_command(real_data: Path, tmp_path: Path):
    """Google's uncased English vocabulary beside a Korean one, each with its own settings, on text in Korean."""
    names = ("bert_base_uncased_vocab.txt:uncased", "kcbert_vocab.txt", "koelectra_vocab_32200.txt")
    candidates = tokenization.load_candidates([str(real_data / "vocab" / name) for name in names])
    sample = TextSample([SourceConfig(path=str(real_data / "ko" / "nsmc_reviews.txt.gz"))], 100_000)
    found = tokenization.compare(candidates, sample, repetitions=1).tokenizers
    assert list(found) == ["bert_base_uncased_vocab", "kcbert_vocab", "koelectra_vocab_32200"]
    english, korean, other = found.values()
    assert english.tokens_per_character > 2 * korean.tokens_per_character  # it breaks syllables into letters
    assert english.unknown_words > 0.2 > 0.02 > korean.unknown_words > other.unknown_words
    assert math.isclose(sample.read_bytes, 100_000, rel_tol=0.01)
