from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import tensorstore
from test_encode import Every

from toy_runs import Notes
from tpulm import corpus, tokenization
from tpulm.config import CorpusConfig, DataConfig, RunConfig, TokenizerConfig
from tpulm.corpus import CorpusManifest
from tpulm.dataset import Batches, DatasetManifest, evaluation_batches, load_manifest, load_split, sample_rows, summarize
from tpulm.dataset.encode import WordEncoder
from tpulm.dataset.manifest import Encoding, rounded_up
from tpulm.dataset.prepare import prepare
from tpulm.errors import Damaged, DataError, MissingExtra, StorageError, WorkFolderMismatch
from tpulm.runtime.workers import Runner, run_here, run_tasks
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Encoded, analysers, encode

TEXT = "the cat sat on a mat and dogs ran far from old red barns while rain fell over green hills"
WORDS = TEXT.split()
CONFIG = DataConfig(sequence_length=32, block_rows=8, part_bytes=10_000)
SEGMENTS = CONFIG.model_copy(update={"next_sentence": True})
PACKED, CAUSAL = (CONFIG.model_copy(update={"rows": rows}) for rows in ("packed", "causal"))
REDRAWN = SEGMENTS.model_copy(update={"dupe_factor": 2})


class Scattered(NamedTuple):
    """A work folder with a corpus of several parts and a tokenizer."""

    workdir: Path
    manifest: CorpusManifest
    documents: list[str]

    def prepare(self, config: DataConfig, runner: Runner = run_here, **given: Any) -> DatasetManifest:
        path = self.workdir / "tokenizer"
        given |= {"tokenizer": tokenization.load(path), "tokenization_path": path, "corpus_manifest": self.manifest}
        return prepare(config, self.workdir, runner=runner, **given)

    def encoded(self) -> tuple[list[str], Encoded, SpecialTokens]:
        """The documents, each once, their tokens, and the special tokens."""
        made, unique = tokenization.load(self.workdir / "tokenizer"), list(dict.fromkeys(self.documents))
        return unique, made.encode(unique), made.special

    def copy(self, to: Path, config: DataConfig | None = None, **given: Any) -> Scattered:
        """The same in another folder, with its dataset if one is asked for."""
        shutil.copytree(self.workdir, to)
        there = self._replace(workdir=to)
        if config is not None:
            there.prepare(config, **given)
        return there


def scattered_at(workdir: Path, documents: list[str]) -> Scattered:
    text = workdir / "text.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join(documents) + "\n", encoding="utf-8")
    config = CorpusConfig(sources=str(text), holdout_fraction=0.1)  # pyright: ignore[reportArgumentType]
    manifest = corpus.scatter(config, workdir, part_bytes=CONFIG.part_bytes)
    trained = tokenization.train([[TEXT + "."] * 3], TokenizerConfig(vocab_size=60))
    tokenization.save(trained, workdir / "tokenizer")
    return Scattered(workdir, manifest, documents)


@pytest.fixture(scope="module")
def scattered(tmp_path_factory: pytest.TempPathFactory) -> Scattered:
    """About 25 kB in three parts: documents of one to eight sentences, one of them repeated."""
    draw = random.Random(0)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(2, 20))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(draw.randint(1, 8))) for _ in range(120)]
    return scattered_at(tmp_path_factory.mktemp("corpus") / "w", [*documents, documents[0]])


def made_once(config: DataConfig) -> Any:
    """A fixture: the corpus with its dataset, of which tests change copies alone."""

    @pytest.fixture(scope="module")
    def made(scattered: Scattered, tmp_path_factory: pytest.TempPathFactory) -> Scattered:
        return scattered.copy(tmp_path_factory.mktemp("made") / "w", config)

    return made


plain, segments, redrawn, packed, causal = map(made_once, (CONFIG, SEGMENTS, REDRAWN, PACKED, CAUSAL))


def complete(workdir: Path) -> DatasetManifest:
    manifest = load_manifest(workdir)
    assert manifest is not None
    return manifest


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def column_of(workdir: Path, split: str, name: str = "tokens") -> np.ndarray:
    batches = evaluation_batches(load_split(workdir / "dataset" / split), batch_size=1, columns=[name])
    return np.concatenate([batch[name] for batch in batches])


def counted(tokens: np.ndarray, special: SpecialTokens) -> list[int]:
    """How often each token of the text occurs."""
    return np.bincount(tokens[~np.isin(tokens, [special.pad, special.cls, special.sep])], minlength=100).tolist()


def test_packed_rows_hold_the_corpus(packed: Scattered) -> None:
    manifest = complete(packed.workdir)
    assert manifest.train.rows.dtype == "uint16" and packed.manifest.num_parts == 3
    assert not manifest.notes, "no warning of single sentences"
    unique, encoded, special = packed.encoded()
    rows = np.concatenate([column_of(packed.workdir, split) for split in ("train", "holdout")])
    assert counted(rows, special) == np.bincount(encoded.ids, minlength=100).tolist()
    counts = manifest.train.counts + manifest.holdout.counts
    assert (counts.documents, counts.duplicates) == (len(unique), 1)
    assert (counts.characters, counts.bytes) == (sum(map(len, unique)), sum(len(text.encode()) for text in unique))
    assert (counts.tokens, counts.rows, counts.padding) == (encoded.ids.size, len(rows), (rows == special.pad).sum())
    assert counts.unknown_tokens == (encoded.ids == special.unknown).sum() > 0, "capital letters are not in the vocabulary"
    assert manifest.train.counts.documents > manifest.holdout.counts.documents > 0
    assert manifest.train.padding_fraction == manifest.train.counts.padding / (manifest.train.counts.rows * 32)
    assert manifest.train.tokens_per_character == pytest.approx(manifest.train.counts.tokens / manifest.train.counts.characters)
    assert manifest.corpus["documents"] == len(packed.documents)


def test_sentences_may_be_documents_of_their_own(scattered: Scattered, tmp_path: Path) -> None:
    apart = scattered.copy(tmp_path / "w", PACKED.model_copy(update={"split_sentences": True}))
    tokenizer = tokenization.load(apart.workdir / "tokenizer")
    found = np.concatenate([column_of(apart.workdir, split).ravel() for split in ("train", "holdout")])
    sentences = [one for document in dict.fromkeys(apart.documents) for one in corpus.split_sentences(document)]
    expected = np.bincount([tokenizer.encode([one]).ids[0] for one in sentences], minlength=60)
    assert len(sentences) > 2 * len(apart.documents)
    assert (np.bincount(found[np.flatnonzero(found[:-1] == tokenizer.special.cls) + 1], minlength=60) >= expected).all()


def test_lengths_of_documents_are_told_nearly(packed: Scattered) -> None:
    """Beside NumPy's quantiles of all of them: the same, or up to an eighth more, as the lengths were counted."""
    manifest = complete(packed.workdir)
    counts, (unique, encoded, _) = manifest.train.counts + manifest.holdout.counts, packed.encoded()
    for told, lengths in (
        (counts.length_quantiles(counts.character_lengths), list(map(len, unique))),
        (counts.length_quantiles(counts.token_lengths), encoded.lengths),
    ):
        shares, bounds = zip(*told, strict=True)
        exact = np.quantile(lengths, shares, method="inverted_cdf")
        assert shares == (0.1, 0.5, 0.9, 1.0) and (exact <= bounds).all() and (bounds < 1.125 * exact).all()


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 33, 129, 10**9 + 1])
def test_a_length_is_rounded_up_to_four_binary_digits(length: int) -> None:
    [bound] = rounded_up(np.array([length]))
    assert length <= bound <= 1.125 * length and len(f"{bound:b}".rstrip("0")) <= 4


def test_segments_hold_the_corpus_and_say_which_are_random(segments: Scattered) -> None:
    manifest = complete(segments.workdir)
    assert not manifest.notes, "no warning of single sentences"
    counts = manifest.train.counts
    labels = column_of(segments.workdir, "train", "next_sentence")
    assert labels.dtype == np.int8 and int(labels.sum()) == counts.random_next_rows
    assert 0.4 < labels.mean() < 0.8
    assert (counts + manifest.holdout.counts).tokens == segments.encoded()[1].ids.size
    split = load_split(segments.workdir / "dataset" / "train")
    batch = Batches(split, batch_size=4, seed=0, columns=["next_sentence"]).batch(0)
    kinds = {name: (array.shape, array.dtype.name) for name, array in batch.items()}
    assert kinds == {"tokens": ((4, 32), "uint16"), "next_sentence": ((4,), "int8")}


def test_the_number_of_workers_does_not_matter(scattered: Scattered, segments: Scattered, tmp_path: Path) -> None:
    other = scattered.copy(tmp_path / "elsewhere", SEGMENTS, runner=partial(run_tasks, workers=2))
    assert digests(other.workdir / "dataset") == digests(segments.workdir / "dataset")


def epochs(workdir: Path, count: int) -> list[dict[str, np.ndarray]]:
    """The rows of the first epochs of training."""
    split = load_split(workdir / "dataset" / "train")
    found, cursor = [], 0
    for epoch in range(count):
        rows = sum(part.version_rows[epoch % split.num_versions] for part in split.parts)
        found.append(Batches(split, batch_size=rows, seed=0, columns=["next_sentence"]).batch(cursor))
        cursor += rows
    return found


@pytest.mark.parametrize(("name", "config"), [("plain", CONFIG), ("packed", PACKED), ("causal", CAUSAL)])
def test_versions_of_the_text_are_drawn_differently(
    request: pytest.FixtureRequest, scattered: Scattered, tmp_path: Path, name: str, config: DataConfig
) -> None:
    once: Scattered = request.getfixturevalue(name)
    thrice = scattered.copy(tmp_path / "w", config.model_copy(update={"dupe_factor": 3}))
    first, manifest = complete(once.workdir), complete(thrice.workdir)
    special = tokenization.load(thrice.workdir / "tokenizer").special
    assert (manifest.train.num_versions, manifest.holdout.num_versions) == (3, 1)
    assert (manifest.train.counts, manifest.holdout.counts) == (first.train.counts, first.holdout.counts)
    alone, three = digests(once.workdir / "dataset"), digests(thrice.workdir / "dataset")
    arrays = {name for name in alone if ".zarr/" in name}
    assert arrays and all(three[name] == alone[name] for name in arrays), "the first version is what there is without"
    each = [summarize(folder.workdir, "train").bytes_per_token for folder in (once, thrice)]
    assert each[1] == pytest.approx(each[0], rel=0.05)

    found = [epoch["tokens"] for epoch in epochs(thrice.workdir, 4)]
    content = [tokens[:, 1:] if name == "causal" else tokens for tokens in found]  # whose first token is the row's before
    counts = [counted(tokens, special) for tokens in content]
    assert sum(counts[0]) == manifest.train.counts.tokens and counts == [counts[0]] * 4
    sorted_rows = [sorted(map(bytes, tokens)) for tokens in found]
    assert sorted_rows[3] == sorted_rows[0] and found[3].tolist() != found[0].tolist()
    for one, other in itertools.combinations(sorted_rows[:3], 2):
        assert len(set(one) & set(other)) < 0.75 * len(one)


def test_pairs_are_drawn_again_in_each_version(redrawn: Scattered, segments: Scattered) -> None:
    """Other second segments stand after the same texts, other rows aim at short lengths, and first segments hold them all."""
    special = tokenization.load(redrawn.workdir / "tokenizer").special
    firsts, pairs = [], []
    for epoch in epochs(redrawn.workdir, 2):
        ends = np.argmax(epoch["tokens"] == special.sep, axis=1)
        taken = [row[1:end] for row, end in zip(epoch["tokens"], ends, strict=True)]
        taken += [epoch["tokens"][row, ends[row] + 1 :] for row in np.flatnonzero(epoch["next_sentence"] == 0)]
        firsts.append(counted(np.concatenate(taken), special))
        pairs.append(set(map(bytes, epoch["tokens"])))
    assert firsts[1] == firsts[0] and sum(firsts[0]) == complete(segments.workdir).train.counts.tokens
    assert len(pairs[0] & pairs[1]) < 0.2 * len(pairs[0])


@pytest.mark.skipif(encode.tokie is None, reason="no wheel of tokie for this platform")
def test_the_manifest_says_which_encoded_and_a_difference_makes_it_the_library(
    scattered: Scattered, packed: Scattered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, compared = complete(packed.workdir), len(scattered.documents)  # all of them are less than the sample
    assert found.encoding == Encoding(by=encode.ENGINE, compared=compared)
    monkeypatch.setattr(encode, "same", lambda ours, theirs: False)
    with pytest.warns(UserWarning, match=encode.ENGINE):
        made = scattered.copy(tmp_path / "w").prepare(PACKED)
    assert made.encoding == Encoding(by=encode.LIBRARY, compared=compared) and made.fingerprint == found.fingerprint


def test_a_complete_dataset_is_left_alone(packed: Scattered) -> None:
    before = {path: path.stat().st_mtime_ns for path in (packed.workdir / "dataset").rglob("*")}
    assert packed.prepare(PACKED) == complete(packed.workdir)
    assert {path: path.stat().st_mtime_ns for path in (packed.workdir / "dataset").rglob("*")} == before


def test_other_inputs_are_refused_by_name(packed: Scattered) -> None:
    with pytest.raises(WorkFolderMismatch, match=r"sequence_length: 32 -> 64"):
        packed.prepare(PACKED.model_copy(update={"sequence_length": 64}))
    changed = packed._replace(manifest=packed.manifest.model_copy(update={"fingerprint": "another"}))
    with pytest.raises(WorkFolderMismatch, match=r"corpus: .* -> .another"):
        changed.prepare(PACKED)


def test_parts_made_from_other_inputs_are_built_anew(scattered: Scattered, packed: Scattered, tmp_path: Path) -> None:
    other = scattered.copy(tmp_path / "w", PACKED.model_copy(update={"sequence_length": 64}))
    for name in ("inputs.json", "manifest.json"):
        (other.workdir / "dataset" / name).unlink()
    other.prepare(PACKED)
    assert digests(other.workdir / "dataset") == digests(packed.workdir / "dataset")


def test_a_tokenizer_exchanged_meanwhile_is_refused(scattered: Scattered, tmp_path: Path) -> None:
    other = scattered.copy(tmp_path / "w")
    folder = other.workdir / "tokenizer"

    def exchange_first(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        trained = tokenization.train([[TEXT + "."] * 3], TokenizerConfig(vocab_size=50))
        shutil.rmtree(folder)
        tokenization.save(trained, folder)
        return run_here(function, tasks)

    with pytest.raises(WorkFolderMismatch, match="fingerprint"):
        other.prepare(PACKED, runner=exchange_first)


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_rows_that_were_not_written_are_not_read(packed: Scattered, tmp_path: Path, split: str) -> None:
    """Rows in another order are as valid an array; a dataset of an older version has no checksums, and goes on."""
    folder = packed.copy(tmp_path / "w").workdir / "dataset" / split
    assert list(evaluation_batches(load_split(folder), batch_size=64))
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{folder / 'part-00002' / 'tokens.zarr'}"}).result()
    array[...] = np.flipud(array.read().result())
    with pytest.raises(StorageError, match=f"{split}/part-00002"):
        list(evaluation_batches(load_split(folder), batch_size=64))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sha256_of_the_rest"]
    for part in manifest["parts"]:
        del part["checksums"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert list(evaluation_batches(load_split(folder), batch_size=64))


@pytest.mark.parametrize("name", ["manifest.json", "holdout/manifest.json", "train/manifest.json", "swapped"])
def test_a_manifest_is_what_was_written(packed: Scattered, tmp_path: Path, name: str) -> None:
    workdir = packed.copy(tmp_path / "w").workdir
    dataset = workdir / "dataset"
    if name == "swapped":
        shutil.copy(dataset / "train" / "manifest.json", dataset / "holdout" / "manifest.json")
    else:
        path = dataset / name
        text = path.read_text()
        place = text.index('"characters": ') + len('"characters": ')
        path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    with pytest.raises(Damaged):
        load_manifest(workdir)


def test_an_empty_holdout_is_refused(tmp_path: Path) -> None:
    alone = scattered_at(tmp_path / "w", ["the cat sat on the mat."])
    with pytest.raises(DataError, match="holdout"):
        alone.prepare(PACKED)
    assert load_manifest(alone.workdir) is None


def test_a_holdout_too_small_to_score_is_noted(tmp_path: Path) -> None:
    """The fraction that is proposed holds out enough."""
    texts, notes = [f"the cat sat on the mat {number} times." for number in range(3_000)], Notes()
    few = scattered_at(tmp_path / "few", texts).prepare(PACKED, progress=notes)
    (said,) = [note for note in notes.notes if note.startswith("the holdout is ")]
    assert f"with {few.holdout.counts.tokens:,} tokens" in said
    fraction = float(said.rpartition("corpus.holdout_fraction = ")[2])
    assert 5_000 < fraction * (few.train.counts.tokens + few.holdout.counts.tokens) < 6_000


def test_causal_rows_hold_the_corpus(causal: Scattered) -> None:
    manifest, content = complete(causal.workdir), 0
    _, encoded, special = causal.encoded()
    for split in (manifest.train, manifest.holdout):
        rows, counts = column_of(causal.workdir, split.split), split.counts
        assert not (rows == special.cls).any()
        assert (counts.rows, counts.padding) == (len(rows), (rows == special.pad).sum())
        labels = rows[:, 1:][rows[:, 1:] != special.pad]
        assert labels.size == counts.tokens + counts.documents, "each token and each end of a text is predicted once"
        assert counts.copied_tokens == np.isin(rows[:, 0], [special.pad, special.sep], invert=True).sum()
        content += counts.tokens
    assert content == encoded.ids.size


def test_inspection(segments: Scattered) -> None:
    manifest = complete(segments.workdir)
    summary = summarize(segments.workdir, "train")
    assert summary.counts == manifest.train.counts and summary.parts == 3
    assert summary.bytes_per_token > 0 and 0 < summary.padding_fraction < 1
    rows = sample_rows(segments.workdir, "train", count=5, seed=1)
    assert [row.number for row in rows] == sorted({row.number for row in rows}) and len(rows) == 5
    split = load_split(segments.workdir / "dataset" / "train")
    batches = list(evaluation_batches(split, batch_size=1, columns=["next_sentence"]))
    for row in rows:
        np.testing.assert_array_equal(row.tokens, batches[row.number]["tokens"][0])
        assert row.random_next == bool(batches[row.number]["next_sentence"][0])
    assert len(sample_rows(segments.workdir, "holdout", count=10**6)) == manifest.holdout.counts.rows
    with pytest.raises(DataError, match="tpulm dataset prepare"):
        summarize(segments.workdir / "nowhere", "train")


@pytest.mark.parametrize("next_sentence", [False, True])
def test_rows_of_single_sentences_are_warned_of_before_and_after(tmp_path: Path, next_sentence: bool) -> None:
    draw = random.Random(1)
    documents = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(300)]
    documents += [". ".join(map(str.capitalize, pair)) + "." for pair in zip(documents[:40], documents[40:80], strict=True)]
    corpus_, heard = scattered_at(tmp_path / "w", documents), Notes()
    manifest = corpus_.prepare(CONFIG.model_copy(update={"next_sentence": next_sentence}), progress=heard)
    counts = manifest.train.counts
    assert 0.85 < counts.one_sentence_documents / counts.documents < 0.92
    rows = column_of(corpus_.workdir, "train")
    special = tokenization.load(corpus_.workdir / "tokenizer").special
    text = 1 - np.isin(rows, [special.pad, special.cls, special.sep]).mean()
    (warning,) = manifest.notes
    assert f"{text:.0%}" in warning and ("of the pairs are random" in warning) == next_sentence
    assert warning in heard.notes and heard.notes[0].startswith("warning, by a sample: 8")


def written(ids: np.ndarray, starts: np.ndarray) -> str:
    return "".join(f" {index}{'*' if start else ''} " for index, start in zip(ids.tolist(), starts.tolist(), strict=True))


@pytest.mark.parametrize("rows", ["segments", "packed"])
def test_a_dataset_says_where_words_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str) -> None:
    monkeypatch.setattr(analysers, "load", lambda name: Every(5))
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "fugashi": "1", "unidic-lite": "2"})
    rng = random.Random(1)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(3, 30))) + "." for _ in range(150)]
    scattered = scattered_at(tmp_path / "w", documents)
    again = scattered.copy(tmp_path / "again")
    config = CONFIG.model_copy(update={"rows": rows, "word_boundaries": "mecab"})
    manifest = scattered.prepare(config)
    assert manifest.inputs["analyser"] == {"name": "mecab", "fugashi": "1", "unidic-lite": "2"}
    folder = scattered.workdir / "dataset"
    assert manifest.train.rows.columns == ("tokens", "word_start")

    made = tokenization.load(scattered.workdir / "tokenizer")
    table = np.zeros(made.vocab_size, bool)
    given: dict[str, Any] = {"columns": ["word_start"], "of_tokens": {"word_start": table}}
    batch = Batches(load_split(folder / "train"), batch_size=16, seed=0, **given).batch(0)
    assert batch["word_start"].dtype == np.int8 and batch["word_start"].shape == (16, 32), "the column, not the table"
    special = np.isin(batch["tokens"], list(set(made.special) - {made.special.unknown}))
    assert not batch["word_start"][special].any() and 0.1 < batch["word_start"][~special].mean() < 0.9

    # Every run of tokens in a row lies in one of the documents, with the same beginnings of words.
    encoded, begins = WordEncoder(made, "mecab").encode(documents)
    ends = np.cumsum(encoded.lengths)[:-1]
    split = zip(np.split(encoded.ids, ends), np.split(begins, ends), strict=True)
    texts = [written(*document) for document in split]
    found = 0
    for tokens, starts in zip(batch["tokens"], batch["word_start"], strict=True):
        marks = np.flatnonzero(np.isin(tokens, [made.special.cls, made.special.sep])).tolist()
        runs = [slice(first + 1, last) for first, last in itertools.pairwise(marks) if last > first + 1]
        assert all(any(written(tokens[run], starts[run]) in text for text in texts) for run in runs)
        found += len(runs)
    assert found >= 16

    held_out = load_split(folder / "holdout")
    for names in ((), ("next_sentence",), ("word_start",)):  # only those that are asked for, and there
        read = next(iter(evaluation_batches(held_out, batch_size=4, columns=names)))
        assert set(read) == set(Batches(held_out, batch_size=4, seed=0, columns=names).batch(0))
        assert set(read) == {"tokens", *names} - {"next_sentence"}
    row = sample_rows(scattered.workdir, "train", count=1)[0]
    assert row.word_start is not None and row.word_start.shape == (32,)

    monkeypatch.setattr("tpulm.dataset.encode._WORD_CHARACTERS_AT_ONCE", 50)
    again.prepare(config)
    assert digests(again.workdir / "dataset") == digests(folder)

    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "fugashi": "1", "unidic-lite": "3"})
    with pytest.raises(WorkFolderMismatch, match=r"analyser\.unidic-lite: .2. -> .3"):
        scattered.prepare(config)


def test_a_dataset_needs_one_version_of_the_analyser_and_a_complete_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(function: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "2"})
        return run_here(function, tasks)

    scattered = scattered_at(tmp_path / "w", ["the cat sat on a mat.", "dogs ran far.", "old red barns."] * 9 + ["rain fell."])
    config = DataConfig(sequence_length=32, part_bytes=10_000, word_boundaries="kiwi")
    missing = Mock(side_effect=MissingExtra("no"))
    monkeypatch.setattr(analysers, "versions", missing)
    with pytest.raises(MissingExtra):
        scattered.prepare(config)
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "1"})
    monkeypatch.setattr(analysers, "load", lambda name: Every(5))
    with pytest.raises(WorkFolderMismatch, match="'2'"):
        scattered.prepare(config, runner=elsewhere)  # another version builds nothing
    monkeypatch.setattr(analysers, "versions", lambda name: {"name": name, "kiwipiepy": "1"})
    made = scattered.prepare(config)
    monkeypatch.setattr(analysers, "versions", missing)
    assert scattered.prepare(config) == made


def test_boundaries_without_a_use_are_refused() -> None:
    words = {"word_boundaries": "kiwi"}
    causal = {"data": words | {"rows": "causal"}, "model": {"architecture": "decoder", "norm_position": "pre"}}
    for settings, said in (({"data": words}, r"objective\.whole_words"), (causal, r"data\.word_bound")):
        with pytest.raises(ValueError, match=said):
            RunConfig.model_validate(settings)
    RunConfig.model_validate({"data": words, "train": {"objective": {"whole_words": True}}})
