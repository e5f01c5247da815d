from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.config import CorpusConfig, SourceConfig
from tpulm.corpus import find_files, read_texts, verify
from tpulm.corpus.readers.tfds import deprecations_ignored, plain_wiki40b
from tpulm.errors import ConfigError, DataError, MissingExtra, WorkFolderMismatch

tfds = pytest.importorskip("tensorflow_datasets", reason="the extra tfds is not installed")

TEXTS = [f"document {number}, {'ありがとう' * (number % 7)}.\nand a line" for number in range(300)]


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """Made without a network and without TensorFlow."""

    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="ja"), tfds.core.BuilderConfig(name="ko")]  # noqa: RUF012  its interface

    def _info(self) -> Any:
        features = {
            "text": tfds.features.Text(),
            "meta": {"title": tfds.features.Text(), "size": tfds.features.Scalar(np.int64)},
            "tags": tfds.features.Sequence(tfds.features.Text()),
            "raw": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> Any:
        return {"train": self._generate_examples(TEXTS), "test": self._generate_examples(TEXTS[:10])}

    def _generate_examples(self, texts: list[str]) -> Iterator[tuple[str, Any]]:
        for number, text in enumerate(texts):
            raw = b"ab\xffcd" if number == 3 else text.encode()
            meta = {"title": f"title {number}", "size": number}
            yield f"{number}", {"text": text, "meta": meta, "tags": ["a", "b"], "raw": raw}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    tfds.disable_progress_bar()
    with deprecations_ignored():
        builder = TinyTexts(config="ja", data_dir=str(folder), file_format="array_record")
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return folder


@pytest.fixture
def data_dir(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "tfds")


def source(data_dir: Path | str, path: str = "tfds:tiny_texts/ja", **settings: Any) -> SourceConfig:
    return SourceConfig(path=path, data_dir=str(data_dir), **settings)


def texts(data_dir: Path, path: str = "tfds:tiny_texts/ja", **settings: Any) -> list[str]:
    return [text for batch in read_texts([source(data_dir, path, **settings)]) for text in batch]


def shards(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "tiny_texts/ja/1.2.0").glob("*train*"))


def test_it_gives_what_the_same_text_in_files_gives(scattered: Callable, write: Callable, data_dir: Path):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    files = scattered(write("a.jsonl", "\n".join(lines)), holdout_fraction=0.2)
    corpus = scattered([source(data_dir).model_dump()], holdout_fraction=0.2)
    assert len(corpus.manifest.inputs) == 4 and "tensorflow" not in sys.modules
    assert corpus.manifest.counts == files.manifest.counts
    assert sorted(corpus.train()) == sorted(files.train()) and sorted(corpus.holdout()) == sorted(files.holdout())
    both = scattered([source(data_dir), source(data_dir, split="test")])
    assert both.documents() == files.documents()  # the test split repeats what the other has
    assert both.manifest.counts.documents == 310


def test_splits_and_features(data_dir: Path):
    assert sorted(texts(data_dir)) == sorted(TEXTS)
    assert sorted(texts(data_dir, split="test")) == sorted(TEXTS[:10])
    whole, part, rest = (texts(data_dir, split=split) for split in ("train", "train[:10%]", "train[10%:]"))
    assert len(part) == 30 and part + rest == whole
    assert texts(data_dir, split="train[:30]+test") == part + texts(data_dir, split="test")
    assert texts(data_dir, text_field="meta.title", split="train[:2]")[0].startswith("title ")
    assert texts(data_dir, "tfds:tiny_texts")[:5] == whole[:5]  # its only configuration
    assert texts(data_dir, "tfds:tiny_texts/ja:1.2.0") == whole


def test_the_place_by_default_and_the_newest_version_by_numbers(data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    assert len(find_files([SourceConfig(path="tfds:tiny_texts/ja")])) == 4
    for version in ("1.10.0", "1.9.0"):
        shutil.copytree(data_dir / "tiny_texts/ja/1.2.0", data_dir / f"tiny_texts/ja/{version}")
    assert find_files([source(data_dir)])[0].within.startswith("tiny_texts/ja/1.10.0/")


def test_what_is_not_there(data_dir: Path):
    for settings, message in (
        ({"split": "tain"}, r"'tain'.*'train'\?"), ({"split": "train[:10]+train[20:30]"}, "twice"),
        ({"path": "tfds:"}, "'tfds:'"), ({"path": "tfds:a/b/c"}, "tfds:a/b/c"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            find_files([source(data_dir, **settings)])


def test_features_that_are_no_text(data_dir: Path):
    messages = {"txt": r"'text'\?.*meta\.title", "meta": "features of its own", "meta.size": "int64", "tags": "a list"}
    for field, message in messages.items():
        with pytest.raises(DataError, match=message):
            texts(data_dir, text_field=field, on_error="skip")


def test_bytes_that_are_not_utf8(data_dir: Path, scattered: Callable):
    with pytest.raises(DataError, match=r"train\.array_record-.*, record \d+: 'raw' .*byte 2"):
        texts(data_dir, text_field="raw")
    corpus = scattered([source(data_dir, text_field="raw", on_error="skip")])
    assert corpus.manifest.counts.documents == 299 and corpus.manifest.counts.skipped == {"undecodable": 1}


def test_broken_shards(data_dir: Path):
    first = shards(data_dir)[0]
    content = first.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"nothing of the kind"):
        first.write_bytes(broken)
        with pytest.raises(DataError, match="ArrayRecord"):
            texts(data_dir)
        assert 0 < len(texts(data_dir, on_error="skip")) < len(TEXTS)
    first.unlink()
    with pytest.raises(ConfigError, match=r"tiny_texts-train\.array_record-00000-of-00004"):
        find_files([source(data_dir)])


def test_tfrecords_are_refused_with_the_way_out(data_dir: Path):
    described = data_dir / "tiny_texts/ja/1.2.0/dataset_info.json"
    described.write_text(described.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ConfigError, match=r"tfrecord(?s:.*)--file_format=array_record"):
        find_files([source(data_dir)])


def test_a_dataset_that_changed_is_refused(scattered: Callable, data_dir: Path, tmp_path: Path):
    work = scattered([source(data_dir)]).workdir
    scattered([source(shutil.copytree(data_dir, tmp_path / "moved"))], workdir=work)
    with pytest.raises(WorkFolderMismatch, match=r"split: train -> train\[:300\]"):
        scattered([source(data_dir, split="train[:300]")], workdir=work)
    second, third = shards(data_dir)[1:3]
    contents = second.read_bytes(), third.read_bytes()
    third.write_bytes(contents[0])
    second.write_bytes(contents[1])
    with pytest.raises(WorkFolderMismatch, match=r"00001-of-00004: .*content"):
        scattered([source(data_dir)], workdir=work)


def test_a_finished_corpus_needs_neither_dataset_nor_package(scattered: Callable, data_dir: Path, tmp_path: Path):
    corpus = scattered([source(data_dir)])
    gone, here = (CorpusConfig(sources=(source(folder),)) for folder in (tmp_path / "nowhere", data_dir))
    verify(corpus.manifest, gone, corpus.workdir, part_bytes=16_000_000)
    assert not (tmp_path / "nowhere").exists()  # nothing was prepared
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow_datasets", None)
        verify(corpus.manifest, here, corpus.workdir, part_bytes=16_000_000)
        with pytest.raises(MissingExtra, match=r"\[tfds\]"):
            find_files([source(data_dir)])


def test_it_is_prepared_where_that_needs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert sorted(texts(tmp_path, "tfds:tiny_texts/ko")) == sorted(TEXTS)
    assert (tmp_path / "tiny_texts/ko/1.2.0").is_dir() and capsys.readouterr().out == ""


def test_it_cannot_be_prepared_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=OSError("the host is not known")))
    said = {"ag_news_subset": "not answer|needs the package", "lm1b": "needs TensorFlow", "wiki40b/ja": "without TensorFlow"}
    for path, message in said.items():
        with pytest.raises(ConfigError, match=message) as failure:
            find_files([source(tmp_path, f"tfds:{path}")])
        assert f"tfds build {path} --file_format=array_record --data_dir=FOLDER" in str(failure.value)


def test_in_a_bucket(gcs: Emulator, data_dir: Path, scattered: Callable):
    storage.copy_files(data_dir, storage.as_path("gs://runs/tfds"))
    there = scattered([source("gs://runs/tfds")])
    assert there.manifest.fingerprint == scattered([source(data_dir)]).manifest.fingerprint


def test_markers_of_wiki40b_become_lines():
    text = "\n_START_ARTICLE_\nTitle\n_START_SECTION_\nHead\n_START_PARAGRAPH_\nOne._NEWLINE_Two."
    assert plain_wiki40b(text) == "Title\nHead\nOne.\nTwo."
