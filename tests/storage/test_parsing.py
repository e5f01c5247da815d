"""JSON and TOML of anybody: what is wrong with them is a ValueError, and paths that cannot be are a ConfigError."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tpulm import storage
from tpulm.errors import ConfigError, DataError, StorageError

DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "100 deep"),
        ("[" * 101 + "]" * 101, "100 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "100 deep"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ('{"a": 1e999}', "1e999"),
        (r'{"a": ["\ud83d"]}', r"\(\\ud83d\)"),
        (r'{"\uDC00": 1}', r"\(\\udc00\)"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "'b'"),
        (b'{"a": "\xed\xa0\x80"}', "byte 7"),
        ("{", "line 1 column 2"),
    ],
)
def test_json_that_cannot_be_used(text: bytes | str, message: str):
    with pytest.raises(ValueError, match=message):
        storage.parse_json(text)


def test_json_that_can(tmp_path: Path):
    assert storage.parse_json("[" * 100 + "]" * 100)[0][0] is not None
    assert storage.parse_json(r'{"a": "\ud83d\ude00", "b": "\\ud83d", "c": "[[["}') == {"a": "😀", "b": "\\ud83d", "c": "[[["}
    assert storage.parse_json("\ufeff{}".encode()) == {} == storage.parse_json("{}".encode("utf-16"))
    lenient = storage.parse_json(r'[NaN, "\ud83d"]', strict=False)
    assert math.isnan(lenient[0]) and lenient[1] == "\ud83d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a = {DEEP}", "100 deep"),
        ("a = " + "{a=" * 300 + "1" + "}" * 300, "100 deep"),
        ("a.b = 1\n" + ".".join("a" * 2_000) + " = 1", "100 parts"),
        ("[" + " . ".join("a" * 100_000) + "]\nb = 1", "100 parts"),
        ("x = {" + ".".join(['"a"'] * 2_000) + " = 1}", "100 parts"),
        ("\n".join(f"[{'.'.join('a' * 60)}.{'.'.join('b' * 60)}]" for _ in range(2)), "100 parts"),
    ],
)
def test_nested_toml(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        storage.parse_toml(text)


def test_long_texts_of_toml_are_no_keys():
    assert storage.parse_toml(f'a = "{"b." * 200}"\n[c.d]\ne = [{"1.5, " * 200}]')["c"]["d"]["e"][7] == 1.5


def test_objects_of_files(tmp_path: Path):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(StorageError, match=r"x\.json"):
        storage.read_json(tmp_path / "x.json")
    with pytest.raises(DataError, match=r"x\.json"):
        storage.read_given_object(tmp_path / "x.json")
    assert storage.info(tmp_path / ("x" * 300)) is None, "a name that is too long is nowhere"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a\0b", r"'a\\x00b'"),
        ("a\ud800", r"'a\\ud800'"),
        ("~nobody-of-this-name/x", "~nobody-of-this-name/x: "),
        ("s3://bucket/x", "s3://bucket/x"),
        ("gs:/bucket/x", "slashes"),
        ("gs:///x", "gs:///x"),
        ("gs://b/\udcb0\udca1", r"gs://b/\\+xb0\\+xa1.*UTF-8"),
        *((path, r"\.\.") for path in ("gs://runs/../x", "gs://runs/./x", "gs://runs/x/..")),
    ],
)
def test_what_cannot_be_a_path(path: str, message: str):
    with pytest.raises(ConfigError, match=message):
        storage.exists(path)


def test_a_name_that_is_not_utf8_can_be_one(tmp_path: Path):
    folder = tmp_path / "\udcb0\udca1"
    assert not storage.exists(folder)
    storage.write_json(folder / "x.json", {"path": str(folder)})
    storage.write_atomic(folder / "x.txt", f"{folder}\n")
    assert storage.read_json(folder / "x.json") == {"path": rf"{tmp_path}/\xb0\xa1"}


@pytest.mark.parametrize(
    "name",
    ["a/../w", "./a//w/", "link/../w", "link/w", "../here/w", "none/../w", "w/..", ".", "..", "//", "a b*/../w", "ㅎ/../\\w",
     "./~", "-w"],
)  # fmt: skip
def test_a_path_means_what_it_means_to_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    for folder in ("a", "a b*"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "there" / "below")
    monkeypatch.chdir(tmp_path / "here")
    found = storage.absolute(name)
    assert found.is_absolute() and ".." not in found.parts
    assert os.path.realpath(found) == os.path.realpath(name)
    assert os.path.realpath(storage.as_path(name)) == os.path.realpath(name)
    assert storage.absolute(found) == found
    assert storage.absolute("link/w") == tmp_path / "here" / "link" / "w"  # other links are named as before
    assert storage.absolute("l*/../x") == tmp_path / "here" / "l*" / ".." / "x"  # for glob, which finds there/x
