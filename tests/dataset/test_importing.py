"""TFRecords become W/dataset: every record once, the same bytes however it was interrupted, and nothing held out trained on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_prepare import digests
from tfrecords import LENGTH, Features, Row, bert, electra, random_rows, write_records, write_vocabulary

from toy_runs import Notes
from tpulm import tokenization
from tpulm.config import TokenizerConfig
from tpulm.dataset import DatasetManifest, evaluation_batches, importing, load_manifest, load_split, sample_rows
from tpulm.dataset.importing import import_tfrecords
from tpulm.dataset.pretraining_records import Kind
from tpulm.dataset.tfrecord import read_records
from tpulm.errors import ConfigError, DataError, WorkFolderMismatch
from tpulm.tokenization import Tokenization

ROWS = random_rows(300, single=0.1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenization:
    path = write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    return tokenization.load(path, TokenizerConfig(lowercase=True))


@pytest.fixture
def imported(tmp_path: Path, tokenizer: Tokenization) -> Callable[..., DatasetManifest]:
    """imported([records of a file, …], to="w", kind="bert", …) -> what `import_tfrecords` makes of these files."""

    def import_files(
        files: Sequence[Sequence[Features]], to: str = "w", kind: Kind = "bert", **settings: Any
    ) -> DatasetManifest:
        paths = write_files(tmp_path / f"{to}.data", files)
        return import_tfrecords(paths, tmp_path / to, kind=kind, tokenizer=tokenizer, **settings)

    return import_files


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stretches a file, and several parts."""
    monkeypatch.setattr(importing, "RANGE_BYTES", 10_000)
    monkeypatch.setattr(importing, "PART_BYTES", 30_000)


def write_files(folder: Path, files: Sequence[Sequence[Features]]) -> list[str]:
    return [str(write_records(folder / f"a.tfrecord-{n}-of-9", records)) for n, records in enumerate(files)]


def rows_in(workdir: Path, split: str) -> list[tuple[tuple[int, ...], int]]:
    batches = evaluation_batches(load_split(workdir / "dataset" / split), batch_size=1, columns=["next_sentence"])
    return [(tuple(batch["tokens"][0].tolist()), int(batch.get("next_sentence", [0])[0])) for batch in batches]


def as_stored(rows: Sequence[Row]) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(row.tokens), row.random_next) for row in rows}


@pytest.mark.usefixtures("small")
def test_every_row_is_there_once(imported: Callable, tmp_path: Path, tokenizer: Tokenization) -> None:
    """Four masked copies of each row, as dupe_factor makes them, in three files."""
    records = [bert(row, seed) for seed in range(4) for row in ROWS]
    random.Random(0).shuffle(records)
    manifest = imported([records[:400], [], records[400:]], holdout_fraction=0.1, hold_out="rows", workers=1)
    train, holdout = (rows_in(tmp_path / "w", split) for split in ("train", "holdout"))
    assert sorted(train + holdout) == sorted(as_stored(ROWS))
    assert 0.04 < len(holdout) / len(as_stored(ROWS)) < 0.2
    assert len(manifest.train.parts) > 4
    counts = manifest.train.counts + manifest.holdout.counts
    counted = {"files": 3, "records": 1200, "duplicates": counts.duplicates}
    assert manifest.corpus == {"imported": "bert", **counted, "held_out_files": [], "holdout_shared_8_grams": 0.0}
    assert counts.duplicates + counts.rows == 1200
    tokens = [ids for row, _ in as_stored(ROWS) for ids in row]
    assert counts.random_next_rows == sum(label for _, label in as_stored(ROWS))
    assert (counts.tokens, counts.padding) == (sum(token not in (0, 2, 3) for token in tokens), tokens.count(0))
    row = manifest.train.rows
    assert (row.kind, row.sequence_length, row.dtype) == ("segments", LENGTH, "uint16")
    assert row.columns == ("tokens", "next_sentence")
    assert not (tmp_path / "w" / "dataset" / "pieces").exists()
    assert tokenization.load(tmp_path / "w" / "tokenizer").fingerprint == tokenizer.fingerprint


def test_characters_are_those_of_the_decoded_segments(imported: Callable, tokenizer: Tokenization) -> None:
    manifest = imported([[bert(row) for row in ROWS[:20]]])
    texts = [tokenizer.decode(part) for row in ROWS[:20] for part in (row.first, row.second)]
    counts = manifest.train.counts + manifest.holdout.counts
    assert (counts.rows, counts.characters, counts.bytes) == (20, sum(map(len, texts)), sum(map(len, texts)))
    assert manifest.holdout.counts.rows == 1, "at least one"


def test_no_copy_of_a_held_out_row_is_trained_on(imported: Callable, tmp_path: Path) -> None:
    """Rows with both labels too: they differ, but their text is one."""
    rows = [row._replace(random_next=label) for row in random_rows(100) for label in (0, 1)]
    manifest = imported([[bert(row) for row in rows]], holdout_fraction=0.3)
    train, holdout = ({tokens for tokens, _ in rows_in(tmp_path / "w", split)} for split in ("train", "holdout"))
    assert train.isdisjoint(holdout) and len(holdout) > 10
    assert manifest.train.counts.duplicates == 200 - len(as_stored(rows))


@pytest.mark.usefixtures("small")
def test_names_places_and_workers_do_not_matter(imported: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_WORTH_A_POOL_BYTES", 1000)
    files = [[bert(row, seed) for row in ROWS[seed * 100 : seed * 100 + 150]] for seed in range(3)]
    imported(files, "a", workers=1)
    imported(files[::-1], "b", workers=2)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


KILLED = """
import sys
from tpulm import config, tokenization
from tpulm.dataset import importing
importing.RANGE_BYTES, importing.PART_BYTES = 10_000, 30_000
workdir, vocabulary, *paths = sys.argv[1:]
made = tokenization.load(vocabulary, config.TokenizerConfig(lowercase=True))
importing.import_tfrecords(paths, workdir, kind="bert", tokenizer=made, hold_out="rows", workers=1)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_killed_at_any_moment_and_run_again_it_gives_the_same_bytes(
    imported: Callable, tmp_path: Path, user_environment: dict[str, str]
) -> None:
    files = [[bert(row, seed) for row in ROWS] for seed in range(4)]
    paths = write_files(tmp_path / "data", files)
    imported(files, "whole", hold_out="rows", workers=1)
    write_vocabulary(tmp_path / "vocab.txt")
    folder = tmp_path / "w" / "dataset"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "w"), str(tmp_path / "vocab.txt"), *paths]
    for moment in ("pieces/000003.json", "train/part-00001"):
        process = subprocess.Popen(command, env=user_environment)
        while process.poll() is None and not list(folder.glob(moment)):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL)
    imported(files, hold_out="rows", workers=1)
    assert digests(tmp_path / "w") == digests(tmp_path / "whole")


def shared_grams(train: set[tuple[int, ...]], holdout: set[tuple[int, ...]]) -> float:
    def grams(tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        found = [tokens[place : place + 8] for place in range(len(tokens) - 7)]
        return [gram for gram in found if not {0, 2, 3} & set(gram)]

    known = {gram for tokens in train for gram in grams(tokens)}
    held = [gram for tokens in holdout for gram in grams(tokens)]
    return sum(gram in known for gram in held) / len(held)


def test_whole_files_are_held_out_and_what_they_share_is_measured(imported: Callable, tmp_path: Path) -> None:
    """Ten files; a third of the rows is in two files, and other rows are longer by a token in one than in the other."""
    letters = random.Random(3)
    rows = [Row(tuple(letters.choices(range(5, 31), k=12))) for _ in range(300)]
    longer = [Row((*row.first, 7)) for row in rows[150:]]
    files = [[*rows[n * 30 : n * 30 + 40], *longer[n * 15 : n * 15 + 15]] for n in range(9)] + [longer[135:] + rows[270:]]
    records = [[electra(row) for row in some] for some in files]
    manifest = imported(records, kind="electra", holdout_fraction=0.2)
    train, holdout = ({tokens for tokens, _ in rows_in(tmp_path / "w", split)} for split in ("train", "holdout"))
    contents = [{tuple(row.tokens) for row in some} for some in files]
    held = [some for some in contents if some & holdout]
    others = set().union(*(some for some in contents if some not in held))
    assert 1 <= len(held) <= 2 and len(manifest.corpus["held_out_files"]) == len(held)
    assert holdout == set().union(*held) - others and train == others
    assert manifest.train.rows.columns == ("tokens",)
    assert [row.random_next for row in sample_rows(tmp_path / "w", "train", count=2)] == [None, None]
    assert manifest.corpus["holdout_shared_8_grams"] == pytest.approx(shared_grams(train, holdout))
    assert 0.1 < manifest.corpus["holdout_shared_8_grams"] < 1
    assert f"{len(held)} of 10 files are held out" in manifest.notes[0]
    with pytest.raises(WorkFolderMismatch, match="held_out"):
        imported(records, kind="electra", holdout_fraction=0.2, hold_out="rows")
    with pytest.raises(DataError, match="held out"):
        imported([[electra(row) for row in order] for order in (rows, rows[::-1])], "same", kind="electra")


@pytest.mark.parametrize(("hold_out", "notes"), [("files", 1), ("rows", 0)])
def test_more_than_asked_is_held_out_and_the_other_way_is_told(imported: Callable, hold_out: str, notes: int) -> None:
    progress = Notes()
    imported([[bert(row) for row in ROWS[:30]], [bert(row) for row in ROWS[30:120]]], hold_out=hold_out, progress=progress)
    told = [note for note in progress.notes if "--hold-out rows" in note]
    assert len(told) == notes and all("25% of the rows are held out, not 1%" in note for note in told)
    assert any("so few that chance moves its scores" in note and "--holdout-fraction 0." in note for note in progress.notes)


def test_other_records_are_refused(imported: Callable) -> None:
    files = [[bert(row) for row in ROWS[:20]], [bert(row) for row in ROWS[20:40]]]
    imported(files)
    with pytest.raises(WorkFolderMismatch, match=r"files\.count: 2 -> 1[\s\S]*another --to, or delete \S+/dataset to make it"):
        imported(files[:1])
    with pytest.raises(WorkFolderMismatch, match=r"holdout_fraction: 0\.01 -> 0\.5"):
        imported(files, holdout_fraction=0.5)


@pytest.mark.usefixtures("small")
def test_damage_and_wrong_records_are_refused_with_their_number(tmp_path: Path, tokenizer: Tokenization) -> None:
    def import_into(name: str) -> DatasetManifest:
        return import_tfrecords([str(path)], tmp_path / name, kind="bert", tokenizer=tokenizer, workers=1)

    path = write_records(tmp_path / "a.tfrecord", [bert(row) for row in ROWS])
    whole = path.read_bytes()
    target = list(read_records(str(path)))[200]
    path.write_bytes(whole[: target.offset + 50])
    with pytest.raises(DataError, match=rf"a\.tfrecord, record 201 \(byte {target.offset:,}\)"):
        import_into("cut")
    assert not (tmp_path / "cut" / "dataset").exists(), "found before anything was begun"
    flipped = bytearray(whole)
    flipped[target.offset + 50] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(DataError, match=rf"a\.tfrecord, record 201 \(byte {target.offset:,}\)"):
        import_into("flipped")
    assert load_manifest(tmp_path / "flipped") is None
    write_records(path, [*(bert(row) for row in ROWS[:200]), bert(ROWS[0]) | {"segment_ids": [1] * LENGTH}])
    with pytest.raises(DataError, match=rf"a\.tfrecord, record 201 \(byte {target.offset:,}\): segment_ids"):
        import_into("wrong")


def test_too_little_and_impossible_settings_are_refused(imported: Callable) -> None:
    same = [[bert(ROWS[0], seed) for seed in range(5)]]
    short = [[{"input_ids": [2, 5, 3], "input_mask": [1] * 3, "segment_ids": [0] * 3}]]
    for name, files, settings, message in (
        ("same", same, {}, r"1 different.*4 exact"),
        ("empty", [[], []], {}, r"empty\.data/a\.tfrecord-0"),
        ("all", same, {"holdout_fraction": 1.0}, r"1\.0; .*0\.01"),
        ("short", short, {"kind": "electra"}, " 3 tokens, not 8 to"),
    ):
        with pytest.raises(ConfigError if name == "all" else DataError, match=message):
            imported(files, name, **settings)


def test_the_text_of_google_s_sample_comes_back(real_data: Path, tmp_path: Path) -> None:
    """Each segment is a stretch of the sample text's tokens, and so of its words as the vocabulary decodes them."""
    fixture = real_data / "fixtures" / "bert_tfrecord"
    uncased = TokenizerConfig(lowercase=True, strip_accents=True)
    made = tokenization.load(fixture / "vocab.txt", uncased)
    manifest = import_tfrecords([str(fixture / "tf_examples.tfrecord")], tmp_path, kind="bert", tokenizer=made)
    documents = (fixture / "sample_text.txt").read_text(encoding="utf-8").split("\n\n")
    originals = [f" {' '.join(map(str, made.encode_one(text, special_tokens=False)))} " for text in documents]
    texts = [made.decode(np.fromstring(original, int, sep=" ")) for original in originals]
    segments = set()
    for tokens, _ in (*rows_in(tmp_path, "train"), *rows_in(tmp_path, "holdout")):
        text = np.array(tokens)
        for segment in np.split(text, np.flatnonzero(text == made.special.sep) + 1)[:-1]:
            segments.add(tuple(segment[segment != made.special.cls][:-1].tolist()))
    for segment in segments:
        assert any(f" {' '.join(map(str, segment))} " in original for original in originals), made.decode(segment)
        assert any(made.decode(segment).removeprefix("##") in text for text in texts)
    counts = manifest.train.counts + manifest.holdout.counts
    assert (manifest.corpus["records"], counts.rows + counts.duplicates, counts.unknown_tokens) == (60, 60, 0)
    assert 0.15 < manifest.train.tokens_per_character < 0.35
