"""The numbers of the report, against texts whose numbers are known."""

from __future__ import annotations

import pytest
from made_up import batches

from tpulm.errors import DataError
from tpulm.tokenization import Tokenization, TokenizerReport, report
from tpulm.tokenization.report import DOCUMENT_HEADER, SCRIPT_HEADER, ScriptCoverage


def by_script(found: TokenizerReport) -> dict[str, ScriptCoverage]:
    return {item.script: item for item in found.scripts}


def test_counts_by_hand(trained: dict[str, Tokenization]):
    made = trained["wordpiece"]
    texts = ["the was", "the 龘龘 was ... 漢", "", "bad"]
    found = report(made, [texts[:2], texts[2:]])
    assert (found.documents, found.words, found.characters) == (4, 8, 6 + 12 + 3)
    assert found.tokens == made.encode(texts).ids.size
    assert found.unknown_tokens == 3 and found.unknown_rate == 3 / found.tokens
    assert found.tokens_per_word == found.tokens / 8 and found.tokens_per_character == found.tokens / 21
    assert found.tokens_used == len(set(made.encode(texts).ids.tolist()))
    assert found.unknown_texts == (("龘", 2), ("漢", 1))
    scripts = by_script(found)
    assert (scripts["Han"].characters, scripts["Han"].unknown, scripts["Han"].coverage) == (3, 3, 0.0)
    assert (scripts["Latin"].characters, scripts["Latin"].whole) == (15, 15)
    assert scripts["punctuation"].characters == 3
    assert [item.script for item in found.scripts] == ["Latin", "Han", "punctuation"]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_characters_in_bytes_are_split_and_nothing_is_unknown(trained: dict[str, Tokenization], algorithm: str):
    found = report(trained[algorithm], [["the 龘 was 龘龘", "the"]])
    han = by_script(found)["Han"]
    assert (han.characters, han.split, han.whole, han.unknown) == (3, 3, 0, 0)
    assert by_script(found)["Latin"].coverage == 1.0
    assert found.unknown_rate == 0.0


def test_the_worst_documents(trained: dict[str, Tokenization]):
    texts = ["the was good " * 3, "q" * 30, "the 龘 龘 was", "the 龘", "龘"]
    found = report(trained["wordpiece"], [texts], worst=2)
    assert [item.number for item in found.most_unknown] == [2, 1]  # most, then the largest share, then the first
    assert found.most_unknown[0].excerpt == "the 龘 龘 was" and found.most_unknown[0].unknown_tokens == 2
    spread = report(trained["bpe"], [texts], worst=1)
    assert [(item.number, item.characters, item.tokens) for item in spread.most_tokens] == [(1, 30, 30)]


def test_batches_do_not_matter(made: Tokenization, texts: list[str]):
    assert report(made, batches(texts, 7), worst=3) == report(made, [texts], worst=3)


def test_special_names_and_surrogates_are_text(made: Tokenization):
    found = report(made, [["[MASK]", "a\ud800"]])
    assert found.documents == 2 and found.characters == 8


def test_rows_are_ready_to_be_drawn(made: Tokenization, texts: list[str]):
    found = report(made, [[*texts, "龘" * 70]])
    assert all(len(row) == 2 for row in found.summary_rows())
    assert all(len(row) == len(SCRIPT_HEADER) for row in found.script_rows())
    assert found.document_rows() and all(len(row) == len(DOCUMENT_HEADER) for row in found.document_rows())
    assert all(
        isinstance(cell, str) for row in [*found.summary_rows(), *found.script_rows(), *found.document_rows()] for cell in row
    )
    assert all(len(item.excerpt) <= 60 for item in found.most_tokens)


@pytest.mark.parametrize("nothing", [[], [[]], [["", " \n"]]])
def test_no_text_is_an_error(made: Tokenization, nothing: list[list[str]]):
    with pytest.raises(DataError, match="no text to report on"):
        report(made, nothing)
