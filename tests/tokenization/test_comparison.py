"""Several tokenizers on one text, every figure counted again by other means."""

from __future__ import annotations

import gc
import gzip
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tpulm import tokenization
from tpulm.config import SourceConfig
from tpulm.errors import ConfigError, DataError, StorageError
from tpulm.progress import Silent
from tpulm.tokenization import Comparison, TextSample, Tokenization, comparison, load_candidates, save
from tpulm.tokenization.comparison import PERCENTILES, Candidate, Overlap, Reservoir
from tpulm.tokenization.comparison_report import contrast_tables, page, tables
from tpulm.tokenization.contrasts import Contrast, ShownToken

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
    assert not any(outside in written for outside in ("http://", "https://", "@import", "url("))
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
    piece = ShownToken(EVIL, EVIL, True, False)
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


# -- naming the tokenizers --


CASED = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nThe\ncafe\ncafé\n"


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def folder(tmp_path: Path, trained: dict[str, Tokenization]) -> Path:
    """Tokenizers x/ko and x/ja, an export, work folders of runs, two vocabularies."""
    save(trained["wordpiece"], tmp_path / "x" / "ko" / "tokenizer")
    save(trained["bpe"], tmp_path / "x" / "ja" / "tokenizer")
    save(trained["unigram"], tmp_path / "y" / "ja" / "export")
    save(trained["unigram"], tmp_path / "x" / "tokenizer")
    save(trained["bpe"], tmp_path / "x" / "export")
    for workdir, name, algorithm in (("z", "korean-bert", "unigram"), ("unnamed", "run", "bpe")):
        save(trained[algorithm], tmp_path / workdir / "tokenizer")
        save(trained[algorithm], tmp_path / workdir / "export" / "discriminator")
        (tmp_path / workdir / "run.json").write_text(json.dumps({"name": name}))
    for name, text in (("one", CASED), ("two", CASED + "two\n"), ("z/one", CASED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(text, encoding="utf-8")
    return tmp_path


def labels(folder: Path, *given: str) -> list[str]:
    prefix = [text if "=" in text else f"{folder}/{text}" for text in given]
    return [candidate.label for candidate in load_candidates([text.replace("@", f"{folder}/") for text in prefix])]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("x/ko", "x/ja"), ["ko", "ja"]),
        (("x/ko", "x/ja", "y/ja/export"), ["ko", "@x/ja", "@y/ja/export"]),
        (("z", "z/one/vocab.txt"), ["korean-bert", "one"]),
        (("z/tokenizer/tokenizer.json", "two"), ["korean-bert", "two"]),
        (("unnamed", "z/export/discriminator"), ["unnamed", "korean-bert"]),
        (("x/ko/tokenizer/tokenizer.json", "two/vocab.txt"), ["ko", "two"]),
        (("one/vocab.txt", "two/vocab.txt", "x/ja"), ["one", "two", "ja"]),
        (("one", "one:uncased", "two/vocab.txt:whole_cjk"), ["@one", "@one:uncased", "two"]),
        (("x", "x/export"), ["@x", "@x/export"]),
        (("mine=@x/ko", "x/ja"), ["mine", "ja"]),
        (("ja=@x/ko", "x/ja"), ["ja", "@x/ja"]),
    ],
)
def test_labels_are_short_and_unique(folder: Path, given: tuple[str, ...], expected: list[str]):
    assert labels(folder, *given) == [name.replace("@", f"{folder}/") for name in expected]


def test_settings_are_those_of_the_text(folder: Path):
    cased, uncased, lower = load_candidates([f"{folder}/one{settings}" for settings in ("", ":uncased", ":lowercase")])
    words = [
        [one.tokenization.token(index) for index in one.tokenization.encode(["The Café"]).ids]
        for one in (cased, uncased, lower)
    ]
    assert words == [["The", "[UNK]"], ["the", "cafe"], ["the", "café"]]


def test_a_path_may_have_the_signs(tmp_path: Path):
    for name in ("a=b", "c:uncased"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").write_text(CASED + name, encoding="utf-8")
    one, other = load_candidates([f"{tmp_path}/a=b", f"{tmp_path}/c:uncased"])
    assert (one.label, other.label) == ("a=b", "c:uncased")
    assert [one.tokenization.token(index) for index in other.tokenization.encode(["The"]).ids] == ["The"]


def test_gpt2_files(folder: Path, tmp_path: Path):
    words = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), "utf-8")
    (gpt2 / "merges.txt").write_text("#version: 0.2\n")
    (gpt2 / "config.json").write_text('{"eos_token_id": 0}')
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate([*words, "two"])}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    other = tmp_path / "other"
    other.mkdir()
    tokenizer.save(str(other / "tokenizer.json"))
    (other / "config.json").write_text('{"eos_token_id": 0}')
    found = load_candidates([str(gpt2), str(other), f"{folder}/one"])
    assert [one.tokenization.encode(["ab"]).lengths.tolist() for one in found[:2]] == [[2], [2]]


def test_an_uncased_one_without_the_setting_is_pointed_out(tmp_path: Path, folder: Path):
    (tmp_path / "low.txt").write_text(CASED.replace("The\n", "").replace("café\n", ""), encoding="utf-8")
    notes = Notes()
    load_candidates([f"{tmp_path}/low.txt", f"{folder}/one"], progress=notes)
    assert len(notes.said) == 1 and f"{tmp_path}/low.txt:uncased" in notes.said[0]
    notes = Notes()
    load_candidates([f"{tmp_path}/low.txt:uncased", f"{folder}/one"], progress=notes)
    assert not notes.said


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "needs two tokenizers"),
        (("@one",), "needs two tokenizers"),
        (("@one", "@one"), "are the same tokenizer"),
        (("@one", "a=@one"), "are the same tokenizer"),
        (("@one", "@one/vocab.txt"), "are the same tokenizer"),
        (("@one", "@one:uncasd"), "no setting 'uncasd'.*Did you mean 'uncased'"),
        (("@one", "@x/ko:uncased"), "only a vocab.txt takes settings"),
        (("a=@one", "a=@two"), "two tokenizers are named 'a'"),
        (("@one", "@tow"), "no file or folder .*/tow"),
        (("@one", "@x/kko"), "Did you mean 'ko'"),
        (("@one", ""), "names no tokenizer"),
        (("@one", "s3://bucket/x"), "local or gs://"),
    ],
)
def test_mistakes(folder: Path, given: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load_candidates([text.replace("@", f"{folder}/") for text in given])


def test_a_folder_without_a_tokenizer(folder: Path):
    with pytest.raises(StorageError, match="holds no tokenizer"):
        load_candidates([f"{folder}/one", f"{folder}/y"])


# -- speed --


def test_the_median_of_what_the_clock_says(made: Tokenization, monkeypatch: pytest.MonkeyPatch):
    now, steps = 0.0, iter([1.0, 2.0, 5.0, 4.0, 3.0, 9.0])  # bulk and library in turns: 1, 5, 3 and 2, 4, 9 seconds
    reads = 0

    def clock() -> float:
        nonlocal now, reads
        reads += 1
        now += next(steps) if reads % 2 == 0 else 100.0
        return now

    monkeypatch.setattr(comparison.time, "perf_counter", clock)
    [found] = comparison.measure_speed([made], ["xyz" * 1_000], repetitions=3)
    assert (found.bulk, found.library) == pytest.approx((0.003 / 3.0, 0.003 / 4.0))


def test_every_repetition_is_cold_and_in_turns(trained: dict[str, Tokenization], monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str, int]] = []
    kept: list[Tokenization] = []  # so that no id is given twice
    encode = Tokenization.encode

    def spy(self: Tokenization, texts: list[str]) -> object:
        if texts:
            seen.append((self.algorithm, id(self)))
            kept.append(self)
        return encode(self, texts)

    monkeypatch.setattr(Tokenization, "encode", spy)
    found = comparison.measure_speed([trained["wordpiece"], trained["bpe"]], ["some text"] * 10, repetitions=3)
    assert [name for name, _ in seen] == ["WordPiece", "BPE", "BPE", "WordPiece", "WordPiece", "BPE"]
    assert len({one for _, one in seen}) == 6
    assert all(one.bulk > 0 and one.library > 0 for one in found)


# -- how much of which file is read --


def read(sample: TextSample) -> list[str]:
    return [text for documents in sample for text in documents]


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Two files of 10-byte lines, the second three times as long."""
    for name, lines in (("a.txt", 100), ("b.txt", 300)):
        (tmp_path / name).write_text("".join(f"{name} {number:03d}\n" for number in range(lines)))
    return tmp_path


def test_all_of_it(two_files: Path):
    sample = TextSample([SourceConfig(path=str(two_files))], 10**6)
    texts = read(sample)
    assert len(texts) == 400 and texts[100] == "b.txt 000"
    assert sample.is_whole and sample.read_bytes == 400 * 9
    assert str(sample) == "all text of 2 files, 3,600 bytes"
    assert sample.expected_bytes == 4_000


def test_of_each_file_its_share(two_files: Path):
    sample = TextSample([SourceConfig(path=str(two_files))], 400)
    texts = read(sample)
    assert [sum(text.startswith(name) for text in texts) for name in ("a", "b")] == [12, 33]  # 9 bytes each of 100 and 300
    assert texts[0] == "a.txt 000" and texts[12] == "b.txt 000"
    assert not sample.is_whole and sample.read_bytes == 45 * 9
    assert str(sample) == "405 bytes of 2 files: the beginning of each, not a random sample"


def test_what_a_small_file_leaves_goes_to_the_next(tmp_path: Path):
    """A file may hold less text than its size tells: here it is blank lines."""
    (tmp_path / "a.txt").write_text(" \n" * 500)
    (tmp_path / "b.txt").write_text("bbb\n" * 250)
    sample = TextSample([SourceConfig(path=str(tmp_path / name)) for name in ("a.txt", "b.txt")], 600)
    assert set(read(sample)) == {"bbb"} and sample.read_bytes == 600


def test_compressed_text_is_longer_than_its_file(tmp_path: Path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"some words\n" * 10_000))
    sample = TextSample([SourceConfig(path=str(tmp_path))], 50_000)
    assert sample.expected_bytes == 50_000
    assert len(read(sample)) == 5_000


def test_slices_are_small_and_a_document_too_long_is_cut(two_files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "_SLICE_BYTES", 50)
    monkeypatch.setattr(comparison, "LONGEST_DOCUMENT", 5)
    sample = TextSample([SourceConfig(path=str(two_files / "a.txt"))], 10**6)
    slices = list(sample)
    assert [len(documents) for documents in slices] == [10] * 10
    assert {text for documents in slices for text in documents} == {"a.txt"}
    assert sample.cut_documents == 100 and not sample.is_whole
    assert "of 100 documents only the first 5 characters" in str(sample)


def test_fields_and_formats(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"body": "one two"}\n{"body": "three"}\n')
    assert read(TextSample([SourceConfig(path=str(tmp_path), text_field="body")], 1_000)) == ["one two", "three"]


def test_a_missing_file_is_said_with_its_neighbour(two_files: Path):
    with pytest.raises(ConfigError, match=r"no file or folder .*aa\.txt.*Did you mean 'a\.txt'"):
        TextSample([SourceConfig(path=str(two_files / "aa.txt"))], 1_000)


def test_a_reservoir_keeps_a_fair_choice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "_SLICE_BYTES", 10)
    reservoir = Reservoir(100)
    for number in range(1_000):
        reservoir.add([str(number)])
    kept = [int(text) for text in reservoir.texts()]
    assert len(set(kept)) == 10 and 200 < sum(kept) / 10 < 800
    few = Reservoir(100)
    few.add(["a", "b"])
    assert few.texts() == ["a", "b"]
