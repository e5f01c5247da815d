"""What a path of a configuration stands for is the same on this machine and in Cloud Storage."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.corpus.paths import find_paths, name_within
from tpulm.errors import ConfigError
from tpulm.storage.causes import client

FILES = (
    "b.txt", "a.txt.gz", "sub/c.jsonl", "sub/deep/d.txt", "sub/deep/deeper/e.txt", ".hidden.txt", "sub/.git/e.txt",
    "sub/.f.txt", "sub-x/f.txt", "data [1].txt", "한국어 100%.txt", "many/0001.txt", "many/0002.txt", "many/0010.txt",
    "many/x1.csv", "many/x2.csv", "many/x3.csv",
)  # fmt: skip
FOUND = (
    "", "b.txt", "sub", "sub/", "*.txt", "*", "**", "**/*.txt", "**/deep/*.txt", "sub/*", "sub/**", "sub/**/*.txt",
    "sub*/*.txt", "s*", "*/deep", "?.txt", "[ab].txt*", "[!b].txt*", "many/000[12].txt", "many/*.csv", "many/00?0.txt",
    ".hidden.txt", "sub/.git", "sub/.git/*.txt", "data [1].txt", "한국어 100%.txt", "한*", "*/*/d.txt",
)  # fmt: skip
MISSING = (
    "a.txt", "sub/x.jsonl", "sub/deep/dd.txt", "nowhere/at/all.txt", "subb", "b.txt/x", "*.parquet", "sub/*.parquet",
    "none/**/*.txt", "many/*.json", "many/0003.txt", "sub/deep/d.txt/*", "zzz",
)  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for name in FILES:
        storage.write_atomic(folder / name, name)
    return folder


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    """The same, in a bucket that lasts as long as the module."""
    with pytest.MonkeyPatch.context() as patch, Emulator() as emulator:
        storage.forget_clients()
        for name, value in emulator.environment.items():
            patch.setenv(name, value)
        emulator.create_bucket("runs")
        for name in FILES:
            storage.write_atomic(f"gs://runs/texts/{name}", name)
        yield "gs://runs/texts"
        storage.forget_clients()


def names(folder: str | Path, pattern: str) -> list[str]:
    found = find_paths(f"{folder}/{pattern}")
    assert all(info.size == len(storage.read_bytes(path)) for path, info in found.items())
    return [path.removeprefix(f"{folder}/") for path in found]


def complaint(folder: str | Path, pattern: str) -> str:
    with pytest.raises(ConfigError) as refused:
        find_paths(f"{folder}/{pattern}")
    return str(refused.value).replace(str(folder), "FOLDER")


@pytest.mark.parametrize("pattern", FOUND)
def test_the_same_files_in_the_same_order(disk: Path, cloud: str, pattern: str):
    assert names(cloud, pattern) == names(disk, pattern) != []


def test_globs_are_what_they_match(disk: Path):
    in_sub = ["sub/c.jsonl", "sub/deep/d.txt", "sub/deep/deeper/e.txt"]
    assert names(disk, "sub/*") == in_sub and names(disk, "s*") == [*in_sub, "sub-x/f.txt"]
    assert names(disk, "[ab].txt*") == ["a.txt.gz", "b.txt"] and names(disk, ".hidden.txt") == [".hidden.txt"]
    assert names(disk, "**/*.txt")[0] == "b.txt" and {*in_sub[1:], "sub-x/f.txt"} < set(names(disk, "**/*.txt"))


@pytest.mark.parametrize("pattern", MISSING)
def test_the_same_complaint_with_what_is_near(disk: Path, cloud: str, pattern: str):
    assert complaint(cloud, pattern) == complaint(disk, pattern)


def test_hidden_files_are_found_by_name_alone(cloud: str):
    assert not any(re.search(r"(^|/)\.", name) for name in names(cloud, "**"))
    assert names(cloud, "sub/.git/e.txt") == ["sub/.git/e.txt"]


def test_a_whole_bucket_and_a_mistyped_folder_of_it(cloud: str):
    assert list(find_paths("gs://runs")) == [f"gs://runs/texts/{name}" for name in names(cloud, "")]
    assert list(find_paths("gs://runs/*/b.txt")) == ["gs://runs/texts/b.txt"]
    for path, message in (("gs://runs/text", r"gs://runs/text\..*'texts'"), ("gs://ru*/texts/b.txt", r"'ru\*'")):
        with pytest.raises(ConfigError, match=message):
            find_paths(path)


def test_names_that_look_like_the_one_given(tmp_path: Path) -> None:
    """macOS decomposes names (NFD), and a link may lead to itself."""
    (tmp_path / unicodedata.normalize("NFD", "한글.txt")).touch()
    (tmp_path / "loop").symlink_to("loop")
    for name, message in (("한글.txt", "Unicode"), ("loop", "link")):
        with pytest.raises(ConfigError, match=message):
            find_paths(str(tmp_path / name))


def test_a_folder_that_exists_is_no_wildcard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a shell, which takes a name between quotes as it stands."""
    for name in ("x[1]*/a.txt", "x1*/a.txt", "~a.txt", "x[1]*/sub/[b].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    assert list(find_paths(f"{tmp_path}/x[1]*/*.txt")) == [f"{tmp_path}/x[1]*/a.txt"]
    assert list(find_paths(f"{tmp_path}/x[1]*/**/*.txt")) == [f"{tmp_path}/x[1]*/a.txt", f"{tmp_path}/x[1]*/sub/[b].txt"]
    assert name_within(f"{tmp_path}/x[1]*/sub/[b].txt", f"{tmp_path}/x[1]*/*/*.txt") == "sub/[b].txt"
    assert list(find_paths(f"{tmp_path}/x[12]*/*.txt")) == [f"{tmp_path}/x1*/a.txt"]
    monkeypatch.chdir(tmp_path)
    assert list(find_paths("x1*/*")) == ["x1*/a.txt"]
    (found,) = find_paths("*.txt")
    assert storage.read_bytes(found) == b"text"  # and no home of a user


def test_what_only_a_bucket_can_have(gcs: Emulator):
    """Nothing at all; names with two slashes, which no disk has; and ** within a name, which no listing answers."""
    for path in ("gs://runs/x", "gs://runs"):
        with pytest.raises(ConfigError, match=path):
            find_paths(path)
    for folder, name in (("t", "a//b.txt"), ("u", "/b.txt")):
        client().bucket("runs").blob(f"{folder}/{name}").upload_from_string("text")
        with pytest.raises(ConfigError, match=f"{folder}/{name}"):
            find_paths(f"gs://runs/{folder}")
        storage.write_atomic(f"gs://runs/{folder}/c.txt", "text")
        assert list(find_paths(f"gs://runs/{folder}/*.txt")) == [f"gs://runs/{folder}/c.txt"]
    with pytest.raises(ConfigError, match=r"\*\*"):
        find_paths("gs://runs/t**/*.txt")


def test_what_spark_writes_beside_the_data_is_no_data(tmp_path: Path):
    """pyarrow.dataset ignores names that begin with "_" or "."; here only the ones that Spark and pyarrow give."""
    (tmp_path / "lang=ko").mkdir()
    for name in ("_SUCCESS", "_metadata", "lang=ko/_common_metadata", "lang=ko/.part-0.parquet.crc", "lang=ko/part-0.parquet"):
        (tmp_path / name).write_bytes(b"PAR1\xec")
    (tmp_path / "_notes.txt").write_text("text")
    assert list(find_paths(str(tmp_path))) == [str(tmp_path / name) for name in ("_notes.txt", "lang=ko/part-0.parquet")]
    assert list(find_paths(str(tmp_path / "_metadata"))) == [str(tmp_path / "_metadata")]
