"""The numbers of the report, against texts whose numbers are known."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from made_up import batches, troublesome_text
from tokenizers import Tokenizer

from tpulm import tokenization
from tpulm.errors import DataError
from tpulm.tokenization import Tokenization, TokenizerReport, report
from tpulm.tokenization.report import (
    DOCUMENT_HEADER,
    SCRIPT_HEADER,
    Fit,
    ScriptCoverage,
    TextTally,
    TokenTally,
    hidden_characters,
    script_of,
)


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


# -- counts of one tokenizer --


def fit(made: Tokenization, texts: list[str]) -> Fit:
    text_tally, token_tally = TextTally(), TokenTally(made)
    for text in texts:
        text_tally.add(text)
    token_tally.add(texts)
    return token_tally.fit(text_tally)


@pytest.mark.parametrize(
    ("text", "words", "tokens", "characters"),
    [
        ("the was", 0, 0, 0),
        ("the 龘 was", 1, 1, 1),
        ("龘漢the 龘 was.龘.", 3, 4, 4),  # a Han character is a token of its own; the first word has two, the last one
        (" \u3000龘\t\n", 1, 1, 1),
    ],
)
def test_a_word_is_unknown_that_has_an_unknown_token(
    trained: dict[str, Tokenization], text: str, words: int, tokens: int, characters: int
):
    found = fit(trained["wordpiece"], [text])
    assert found.unknown_tokens == tokens
    assert found.unknown_words == words / len(text.split())
    assert found.unknown_characters == characters / len("".join(text.split()))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=troublesome_text)
def test_any_text_counted_character_by_character(trained: dict[str, Tokenization], text: str):
    """Tokens may begin, end or lie in blanks."""
    for made in trained.values():
        if not text.split():
            return
        encoding = made.plain().encode(text, add_special_tokens=False)
        unknown = {
            place
            for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
            if index == made.special.unknown
            for place in range(start, stop)
        }
        words = [not unknown.isdisjoint(range(*word.span())) for word in re.finditer(r"\S+", text)]
        characters = len("".join(text.split()))
        found = fit(made, [text])
        assert found.unknown_words == sum(words) / len(text.split())
        assert found.unknown_characters == sum(not text[one].isspace() for one in unknown) / characters
        assert (found.tokens, found.unknown_tokens) == (len(encoding.ids), encoding.ids.count(made.special.unknown))
        assert sum(item.characters for item in found.scripts) == characters


def test_every_character_is_in_one_column(made: Tokenization, texts: list[str]):
    for item in fit(made, [*texts[:200], "龘 👍🏽 é"]).scripts:
        assert item.characters == item.whole + item.split + item.unknown and min(item.whole, item.split, item.unknown) >= 0


# -- scripts --


@pytest.mark.parametrize(
    ("characters", "script"),
    [
        ("aZéßÅＡªﬁ𝐀ⅷ"[:-1], "Latin"),
        ("가힣ㄱᄀ", "Hangul"),
        ("漢字豈々"[:-1], "Han"),
        ("ひらがな", "Hiragana"),
        ("カタカナｶー", "Katakana"),
        ("Жя", "Cyrillic"),
        ("αΩ", "Greek"),
        ("ا", "Arabic"),
        ("ไ", "Thai"),
        ("09٣½①", "digits"),
        ("\u0301\u3099", "marks"),
        ("!。「", "punctuation"),
        ("+$😀▁", "symbols"),
        ("\x00\u200d\ue000\u0378", "other"),
    ],
)
def test_scripts_by_name(characters: str, script: str):
    assert {script_of(character) for character in characters} == {script}


def test_every_character_has_one():
    assert all(script_of(chr(code)) for code in range(sys.maxunicode + 1))


# -- unknown tokens --


KNOWN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "."]


@pytest.fixture
def tokenizer(tmp_path: Path) -> tokenization.Tokenization:
    (tmp_path / "vocab.txt").write_text("\n".join(KNOWN))
    return tokenization.load(tmp_path / "vocab.txt")


def test_unknown_tokens_with_their_characters_and_words(tokenizer: tokenization.Tokenization):
    found = tokenization.count_unknown(tokenizer, iter([["ab zz .", "zz a"], ["xb zz"]]))
    assert (found.visible, found.hidden) == (12, 8)  # ab [zz] . [zz] a [xb] [zz]
    assert found.characters == ("z", "x")
    assert found.words == ("zz", "xb")
    assert str(found) == "66.7% of the text's characters are unknown (characters z x; words zz, xb)"


def test_text_that_is_known(tokenizer: tokenization.Tokenization):
    assert tokenization.count_unknown(tokenizer, [["ab ba."]]) == (5, 0, 0, 100, (), ())
    assert tokenization.count_unknown(tokenizer, []).fraction == 0.0


def test_words_too_long_for_the_vocabulary_are_judged_by_their_characters(tokenizer: tokenization.Tokenization):
    texts = ["ab a. " * 10 + "ab" * 60, "ba " * 20]
    found = tokenization.count_unknown(tokenizer, [texts])
    library = Tokenizer.from_str(tokenizer.canonical_json)  # the judge
    hidden = [
        stop - start
        for text in texts
        for index, (start, stop) in zip(*_ids_and_offsets(library, text), strict=True)
        if index == tokenizer.special.unknown
    ]
    assert hidden == [120] and (found.hidden, found.long, found.visible) == (120, 120, 200) and found.is_long
    assert str(found) == (
        "60.0% of the text's characters are unknown (words abababababababababab…; a word of more than 100 characters is "
        "unknown as a whole)"
    )
    mixed = tokenization.count_unknown(tokenizer, [["zz " * 100, "ab" * 60]])
    assert (mixed.hidden, mixed.long, mixed.is_long) == (320, 120, False), "a larger vocabulary helps more"


def test_the_size_of_unknown_words_is_measured_on_some(tokenizer: tokenization.Tokenization):
    texts = ["zzz a"] * 1_000
    encoded = tokenizer.encode(texts)
    sizes, each = hidden_characters(tokenizer, texts, encoded, at_most=500)
    assert len(sizes) < 200 and each * sizes.sum() == 3_000


def _ids_and_offsets(library: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoding = library.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets


def test_korean_with_an_english_vocabulary(real_data: Path):
    import gzip
    from itertools import islice

    english = tokenization.load(real_data / "vocab" / "bert_base_uncased_vocab.txt")
    with gzip.open(real_data / "ko" / "nsmc_reviews.txt.gz", "rt", encoding="utf-8") as stream:
        found = tokenization.count_unknown(english, [list(islice(stream, 2_000))])
    assert found.fraction > tokenization.UNKNOWN_REFUSED
    assert "영화" in found.words and "이" in found.characters
