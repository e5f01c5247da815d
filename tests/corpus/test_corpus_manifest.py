import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tpulm.corpus import Counts, load_manifest
from tpulm.errors import StorageError


def test_counts_add_up_by_reason():
    one = Counts(documents=1, bytes=2, characters=3, skipped={"empty": 1})
    two = Counts(documents=10, bytes=20, characters=30, skipped={"empty": 2, "broken_file": 1})
    assert one + two == Counts(documents=11, bytes=22, characters=33, skipped={"broken_file": 1, "empty": 3})


def test_it_survives_json_and_holds_no_time_in_its_fingerprint(scattered: Callable, write: Callable):
    path = write("a.txt", "one\ntwo\nthree")
    corpus = scattered(path)
    path.touch()
    assert load_manifest(corpus.workdir) == corpus.manifest
    assert scattered(path).manifest.fingerprint == corpus.manifest.fingerprint


def test_none_where_there_is_none(tmp_path: Path):
    assert load_manifest(tmp_path) is None


def test_another_format_version_is_refused(scattered: Callable, write: Callable):
    corpus = scattered(write("a.txt", "one\ntwo"))
    path = corpus.workdir / "corpus" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(StorageError, match="format version 99"):
        load_manifest(corpus.workdir)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a JSON object"),
        ('{"format_version": 4, "config": {}}', "is damaged or was edited (part_bytes: Field required)"),
        ("[" * 5_000, "brackets are nested"),
    ],
)
def test_a_damaged_one_is_no_traceback(tmp_path: Path, content: str, message: str):
    path = tmp_path / "corpus" / "manifest.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(StorageError) as failure:
        load_manifest(tmp_path)
    assert message in str(failure.value) and str(path) in str(failure.value)
