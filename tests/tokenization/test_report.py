"""The numbers of the report, against texts whose numbers are known."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from made_up import batches, troublesome_text, write_vocabulary
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from command_line import invoke
from encoders import hub_of
from tpulm import tokenization
from tpulm.errors import ConfigError, DataError
from tpulm.tokenization import Tokenization, TokenizerReport
from tpulm.tokenization.report import COMPARISON_HEADER, ScriptCoverage, compare, script_of
from tpulm.tokenization.special import TOKENS


def report(made: Tokenization, texts: Iterable[list[str]], worst: int = 5) -> TokenizerReport:
    return compare({"": made}, texts, worst=worst).reports[""]


def by_script(found: TokenizerReport) -> dict[str, ScriptCoverage]:
    return {item.script: item for item in found.scripts}


def test_counts_by_hand(trained: dict[str, Tokenization]):
    texts = ["the was", "the 龘龘 was ... 漢", "", "bad"]
    found, ids = report(trained["wordpiece"], [texts[:2], texts[2:]]), trained["wordpiece"].encode(texts).ids.tolist()
    assert (found.documents, found.words, found.characters) == (4, 8, 6 + 12 + 3)
    assert (found.tokens, found.tokens_used, found.unknown_tokens) == (len(ids), len(set(ids)), 3)
    assert found.unknown_rate == 3 / found.tokens and found.unknown_texts == (("龘", 2), ("漢", 1))
    assert found.tokens_per_word == found.tokens / 8 and found.tokens_per_character == found.tokens / 21
    latin, han, marks = found.scripts
    assert (latin.script, latin.characters, latin.whole) == ("Latin", 15, 15)
    assert (han.script, han.characters, han.unknown, han.whole) == ("Han", 3, 3, 0)
    assert (marks.script, marks.characters) == ("punctuation", 3)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_characters_in_bytes_are_split_and_nothing_is_unknown(trained: dict[str, Tokenization], algorithm: str):
    found = report(trained[algorithm], [["the 龘 was 龘龘", "the"]])
    han, latin = by_script(found)["Han"], by_script(found)["Latin"]
    assert (han.characters, han.split, han.whole, han.unknown) == (3, 3, 0, 0)
    assert latin.whole == latin.characters and found.unknown_rate == 0.0


def test_the_worst_documents(trained: dict[str, Tokenization]):
    texts = ["the was good " * 3, "q" * 30, "the 龘 龘 was", "the 龘", "龘"]
    found = report(trained["wordpiece"], [texts], worst=2)
    assert [item.number for item in found.most_unknown] == [2, 1]  # most, then the largest share, then the first
    assert found.most_unknown[0].excerpt == "the 龘 龘 was" and found.most_unknown[0].unknown_tokens == 2
    spread = report(trained["bpe"], [texts], worst=1)
    assert [(item.number, item.characters, item.tokens) for item in spread.most_tokens] == [(1, 30, 30)]


def test_no_text_is_an_error(trained: dict[str, Tokenization]):
    for nothing in ([], [[]], [["", " \n"]]):
        with pytest.raises(DataError, match="no text"):
            report(trained["bpe"], nothing)


# -- several tokenizers --


def test_several_are_reported_as_each_alone(trained: dict[str, Tokenization], texts: list[str]):
    found = compare(trained, batches(texts[:600], 7), worst=3)
    assert found.reports == {name: report(made, [texts[:600]], worst=3) for name, made in trained.items()}
    assert [row[0] for row in found.rows()] == list(trained)
    assert {len(row) for row in found.rows()} == {len(COMPARISON_HEADER)}
    assert {len(row) for row in found.cut_rows()} == {2 + len(trained)}


def test_a_vocabulary_gains_nothing_from_unknown_words(trained: dict[str, Tokenization]):
    unknown, known = compare(trained, [["龘龘龘 龘龘龘龘龘"]]), compare(trained, [["was good"]]).reports["wordpiece"]
    (row,) = (row for row in unknown.rows() if row[0] == "wordpiece")
    assert row[3:5] == ("4.000", "1.00")  # 8 characters in 2 words, however many tokens stand for them
    assert not known.unknown_tokens and known.cost == known.tokens


@pytest.mark.slow
def test_cuts_are_those_of_the_library_and_the_most_telling_come_first(trained: dict[str, Tokenization], texts: list[str]):
    found = compare(trained, [texts]).cuts
    counts = Counter(word for text in texts for word in text.split())
    encoders = [(made.plain(), made.special.unknown) for made in trained.values()]
    gaps: dict[str, int] = {}
    for word in counts:
        costs: list[int] = []
        for encoder, unknown in encoders:
            encoding = encoder.encode(f"a {word}", add_special_tokens=False)
            own = [(index, start, stop) for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True) if start]
            costs.append(sum(stop - start if index == unknown else 1 for index, start, stop in own))
        gaps[word] = counts[word] * (max(costs) - min(costs))
    assert len(found) == 20 and [gaps[one.word] for one in found] == sorted(gaps.values(), reverse=True)[:20]
    for one in found:
        assert one.times == counts[one.word]
        for name in ("bpe", "unigram"):  # which know every character
            assert "".join(one.tokens[name]).replace("·", "") == one.word


def test_cuts_by_hand(tmp_path: Path):
    words = {"a": ["red", "##s"], "b": ["red", "reds", "re", "##d"]}
    made = {name: tokenization.load_any(f"{write_vocabulary(tmp_path, *some)}:uncased") for name, some in words.items()}
    found = compare(made, [["Reds reds blue", "reds red"]]).cuts
    assert [(one.word, one.times, dict(one.tokens)) for one in found] == [
        ("reds", 2, {"a": ["red", "s"], "b": ["reds"]}),
        ("Reds", 1, {"a": ["Red", "s"], "b": ["Reds"]}),
    ]
    assert compare({"a": made["a"]}, [["reds"]]).cuts == []


def test_the_command_on_several_and_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("\n".join(KNOWN))
    Path("b.txt").write_text("\n".join([*KNOWN, "ab"]))
    Path("text.txt").write_text("ab ab zz\n")

    def asked(*arguments: str) -> Any:
        return json.loads(invoke("tokenizer", "report", *arguments, "--json", code=0).stdout)

    both = invoke("tokenizer", "report", "a.txt", "b.txt", "--corpus", "text.txt", "--json")
    value = json.loads(both.stdout)
    assert [(name, one["tokens"]) for name, one in value["reports"].items()] == [("a.txt", 5), ("b.txt", 3)]
    assert value["cuts"] == [{"word": "ab", "times": 2, "tokens": {"a.txt": ["a", "b"], "b.txt": ["ab"]}}]
    assert "a|b" in both.stderr
    assert asked("a.txt", "text.txt") == asked("a.txt", "--corpus", "text.txt") == value["reports"]["a.txt"]
    (tmp_path / "model").mkdir()
    shutil.copy("a.txt", tmp_path / "model" / "vocab.txt")
    (tmp_path / "model" / "model.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(tmp_path / "model", tmp_path / "cache"))
    assert asked("klue/bert", "text.txt") == value["reports"]["a.txt"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["vocab.txt"]
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *name, **files: 1 / 0)
    refused = [("klue/bert", "text.txt"), ("a.txt",), ("a.txt", "a.txt", "--corpus", "text.txt")]
    for wrong, message in zip(refused, ("error: .*hf download klue/bert", "error: ", "error: "), strict=True):
        assert re.search(message, invoke("tokenizer", "report", *wrong, code=ConfigError.exit_code).stderr)


# -- counts of one tokenizer --


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=troublesome_text)
def test_any_text_counted_character_by_character(trained: dict[str, Tokenization], text: str):
    """Tokens may begin, end or lie in blanks."""
    for made in trained.values() if text.split() else ():
        unknown_id, encoding = made.special.unknown, made.plain().encode(text, add_special_tokens=False)
        spans = [span for index, span in zip(encoding.ids, encoding.offsets, strict=True) if index == unknown_id]
        unknown = {place for span in spans for place in range(*span)}
        words = [not unknown.isdisjoint(range(*word.span())) for word in re.finditer(r"\S+", text)]
        found, characters = report(made, [[text]]), len("".join(text.split()))
        assert found.unknown_words == sum(words) / len(text.split())
        assert found.unknown_characters == sum(not text[one].isspace() for one in unknown) / characters
        assert (found.tokens, found.unknown_tokens) == (len(encoding.ids), encoding.ids.count(unknown_id))
        assert sum(item.characters for item in found.scripts) == characters


# -- characters that a tokenizer drops --

LETTERS, MERGES = "abelortwĠÃ", [("Ġ", "l"), ("Ġl", "o"), ("Ġlo", "w"), ("e", "r")]  # "Ã" is the first of the two bytes of é


def causal(folder: Path, *, byte_level: bool = True, unknown: str | None = None) -> Tokenization:
    """A causal model's, with these letters alone, which strips control characters."""
    names = [*LETTERS, *("".join(pair) for pair in MERGES), "<unk>", "<end>"]
    made = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, MERGES, unk_token=unknown))
    made.normalizer = normalizers.Replace("\x07", "")
    made.pre_tokenizer = pre_tokenizers.ByteLevel(False) if byte_level else pre_tokenizers.Metaspace("Ġ", "never")
    made.add_special_tokens(["<unk>", "<end>"])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    return tokenization.load_any(str(folder))


@pytest.mark.parametrize("byte_level", [True, False])
def test_characters_without_a_token_are_unknown(tmp_path: Path, byte_level: bool):
    texts, made = ["the lower", "hhh", "lxow\x07\nétà"], causal(tmp_path, byte_level=byte_level)
    found, unknowns = report(made, [texts]), tokenization.count_unknown(made, [texts])
    assert dict(found.unknown_texts) == {"h": 4, "x": 1, "é": 1, "à": 1}
    assert (found.unknown_characters, found.unknown_words) == (7 / 19, 4 / 5), "the bell is deleted on purpose"
    real = made.encode(texts).ids.size
    assert (found.tokens, found.unknown_tokens, found.cost) == (real, 0, real + 7)
    latin = by_script(found)["Latin"]
    assert (latin.characters, latin.whole, latin.split, latin.unknown) == (18, 11, 0, 7)
    assert [(item.number, item.unknown_tokens) for item in found.most_unknown] == [(1, 3), (2, 3), (0, 1)]
    assert (unknowns.visible, unknowns.hidden, set(unknowns.characters)) == (19, 7, set("hxéà"))


def test_tokens_around_dropped_characters_are_those_that_exist(tmp_path: Path):
    path = write_vocabulary(tmp_path, "the", "lxow", "tér", "l", "##er").rename(tmp_path / "b.txt")
    made = {"a": causal(tmp_path), "b": tokenization.load_any(str(path))}
    cuts = {one.word: dict(one.tokens) for one in compare(made, [["the lxow", "tér ler"]]).cuts}
    assert cuts == {
        "the": {"a": ["·", "t", "[UNK h]", "e"], "b": ["the"]},
        "lxow": {"a": ["low", "[UNK x]"], "b": ["lxow"]},
        "tér": {"a": ["·", "t", "·", "[UNK é]", "r"], "b": ["tér"]},
    }


def test_unknown_tokens_of_a_causal_model_are_counted(tmp_path: Path):
    found = report(causal(tmp_path, unknown="<unk>"), [["the lower hot"]])
    assert (found.unknown_tokens, found.unknown_texts, found.unknown_words) == (2, (("h", 2),), 2 / 3)


# -- scripts --


def test_scripts_by_name():
    examples = [
        ("aZéßÅＡªﬁ𝐀", "Latin"), ("가힣ㄱᄀ", "Hangul"), ("漢字豈", "Han"), ("ひらがな", "Hiragana"),
        ("カタカナｶー", "Katakana"), ("Жя", "Cyrillic"), ("αΩ", "Greek"), ("ا", "Arabic"), ("ไ", "Thai"),
        ("09٣½①", "digits"), ("\u0301\u3099", "marks"), ("!。「", "punctuation"), ("+$😀▁", "symbols"),
        ("\x00\u200d\ue000\u0378", "other"),
    ]  # fmt: skip
    for characters, script in examples:
        assert {script_of(character) for character in characters} == {script}


# -- unknown tokens --


OF_TWO_LETTERS = ("a", "b", "##a", "##b", ".")
KNOWN = [*TOKENS, *OF_TWO_LETTERS]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenization:
    return tokenization.load(write_vocabulary(tmp_path, *OF_TWO_LETTERS))


def test_unknown_tokens_with_their_characters_and_words(tokenizer: Tokenization):
    found = tokenization.count_unknown(tokenizer, iter([["ab zz .", "zz a"], ["xb zz"]]))
    assert (found.visible, found.hidden) == (12, 8)  # ab [zz] . [zz] a [xb] [zz]
    assert (found.characters, found.words) == (("z", "x"), ("zz", "xb"))
    assert str(found) == "66.7% of the text's characters are unknown (characters z x; words zz, xb)"
    assert tokenization.count_unknown(tokenizer, [["ab ba."]]) == (5, 0, 0, 100, (), (), ())
    assert tokenization.count_unknown(tokenizer, []).fraction == 0.0


def test_unknown_characters_that_the_vocabulary_writes_otherwise(tmp_path: Path):
    path = write_vocabulary(tmp_path, *OF_TWO_LETTERS, "\u314b")  # as people type it; KLUE-NER has the NFKC form
    found = tokenization.count_unknown(tokenization.load(path), [["a \u110f\u110f z"]])
    assert str(found).endswith("; the vocabulary has \u314b U+314B for \u110f U+110F: replace them)")


def test_words_too_long_for_the_vocabulary_are_judged_by_their_characters(tokenizer: Tokenization):
    texts = ["ab a. " * 10 + "ab" * 60, "ba " * 20]
    found = tokenization.count_unknown(tokenizer, [texts])
    library, hidden = Tokenizer.from_str(tokenizer.canonical_json), []  # the judge
    for encoding in library.encode_batch(texts, add_special_tokens=False):
        pairs = zip(encoding.ids, encoding.offsets, strict=True)
        hidden += [stop - start for index, (start, stop) in pairs if index == tokenizer.special.unknown]
    assert hidden == [120] and (found.hidden, found.long, found.visible) == (120, 120, 200) and found.is_long
    assert str(found).startswith("60.0%")
    mixed = tokenization.count_unknown(tokenizer, [["zz " * 100, "ab" * 60]])
    assert (mixed.hidden, mixed.long, mixed.is_long) == (320, 120, False), "a larger vocabulary helps more"


def test_korean_with_an_english_vocabulary(real_data: Path):
    english = tokenization.load(real_data / "vocab" / "bert_base_uncased_vocab.txt")
    with gzip.open(real_data / "ko" / "nsmc_reviews.txt.gz", "rt", encoding="utf-8") as stream:
        found = tokenization.count_unknown(english, [list(islice(stream, 300))])
    assert found.fraction > tokenization.UNKNOWN_REFUSED
    assert "영화" in found.words and "이" in found.characters
