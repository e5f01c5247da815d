from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fake_hub import FakeHub

from tpulm.config import SourceConfig, load
from tpulm.corpus import find_files, read_texts
from tpulm.corpus.readers.hub import _api, splits_of
from tpulm.errors import ConfigError, DataError, Unavailable, WorkFolderMismatch

TEXTS = [f"document {number}: 한국어\nand a line" for number in range(60)]
CARD = """---
configs:
- config_name: plain
  data_files:
  - {split: train, path: "plain/train-*.jsonl"}
  - {split: test, path: "plain/test.jsonl"}
- config_name: again
  data_files: "plain/*.jsonl"
---
"""


def jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text, "n": len(text), "in": {"title": text[:5]}}) + "\n" for text in texts)


@pytest.fixture
def folder(write: Callable[[str, str], Path], tmp_path: Path) -> Path:
    write("ds/README.md", CARD)
    for shard in range(3):
        write(f"ds/plain/train-{shard}.jsonl", jsonl(TEXTS[shard * 20 : shard * 20 + 20]))
    write("ds/plain/test.jsonl", jsonl(TEXTS[:5]))
    return tmp_path / "ds"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Without a card: every file belongs to the split "train"."""
    (tmp_path / "tables/data").mkdir(parents=True)
    for shard in range(2):
        table = pa.table({"id": list(range(30)), "text": TEXTS[shard * 30 : shard * 30 + 30]})
        parquet.write_table(table, tmp_path / f"tables/data/{shard}.parquet", row_group_size=7)
    return tmp_path / "tables"


def source(folder: Path | str, **settings: Any) -> SourceConfig:
    return SourceConfig.model_validate({"path": f"hub:{folder}", "config": "plain"} | settings)


def texts(folder: Path | str, **settings: Any) -> list[str]:
    return [text for batch in read_texts([source(folder, **settings)]) for text in batch]


def test_it_gives_what_the_same_text_in_files_gives(scattered: Callable, write: Callable, folder: Path, tables: Path):
    files = scattered(write("a.jsonl", jsonl(TEXTS)), holdout_fraction=0.2)
    for given, names in (
        (source(folder), [f"plain/train-{shard}.jsonl" for shard in range(3)]),
        (source(tables, config=None), ["data/0.parquet", "data/1.parquet"]),
    ):
        corpus = scattered([given.model_dump()], holdout_fraction=0.2)
        assert corpus.manifest.counts == files.manifest.counts
        assert [item.within for item in corpus.manifest.inputs] == names
        assert corpus.train() == files.train() and corpus.holdout() == files.holdout()
    both = scattered([source(folder), source(tables, config=None)])
    assert both.documents() == files.documents() and both.manifest.counts.documents == 120


def test_splits_columns_and_links(folder: Path, tmp_path: Path):
    assert texts(folder) == TEXTS
    assert texts(folder, split="test") == TEXTS[:5]
    assert texts(folder, split="test", text_field="in.title") == ["docum"] * 5
    (folder / "plain").rename(tmp_path / "elsewhere")
    (folder / "plain").symlink_to(tmp_path / "elsewhere")
    assert texts(folder) == TEXTS


def test_a_folder_relative_to_the_run_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    run = folder.parent / "run.toml"
    run.write_text(
        'extends = "bert-tiny"\n[corpus]\nsources = ["hub:./ds", "tfds:lm1b", "hub:owner/name", '
        '{path = "tfds:wiki40b/ja", data_dir = "prepared"}]\n'
    )
    sources = load(str(run)).corpus.sources
    assert [given.path for given in sources] == [f"hub:{folder}", "tfds:lm1b", "hub:owner/name", "tfds:wiki40b/ja"]
    assert sources[3].data_dir == str(folder.parent / "prepared")
    monkeypatch.chdir(folder.parent)
    assert load("bert-tiny", ["corpus.sources=hub:./ds"]).corpus.sources[0].path == f"hub:{folder}"
    assert texts("./ds") == TEXTS


def test_what_is_not_there(folder: Path):
    for settings, message in (
        *(({"config": None}, "config .*plain, again"), ({"config": "plane"}, "'plane'.*'plain'.*plain, again")),
        *(({"split": "tst"}, "'tst'.*'test'.*train, test"), ({"split": "train[:10%]"}, r"corpus\.max_documents")),
        *(({"revision": "main"}, "revision"), ({"streaming": False}, "streaming")),
        *(({"path": "hub:a/b/c"}, "'hub:a/b/c'.*hub:OWNER/NAME"), ({"path": "hub:a"}, "HF_HUB_OFFLINE(?s:.*)hf download a")),
    ):
        with pytest.raises(Unavailable if "hf download" in message else ConfigError, match=message):
            find_files([source(folder, **settings)])


def test_folders_that_are_no_dataset(folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="/empty holds no files"):
        find_files([source(tmp_path / "empty", config=None)])
    for configs in ("[1]", '[{data_files: "a**"}]', "["):
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
        with pytest.raises(DataError, match="hub:"):
            find_files([source(folder, config=None)])
    (folder / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match="save_to_disk"):
        find_files([source(folder)])


def test_settings_of_other_kinds_are_refused():
    for settings, message in (
        *(({"path": "a.txt", "split": "test"}, r"split .*'a\.txt'"), ({"format": "python", "revision": "x"}, "revision")),
        ({"path": "tfds:lm1b", "revision": "x"}, "revision .*'tfds:lm1b'"),
        *(({"path": "hub:x", "documents": "file"}, "documents .*'hub:x'"), ({"path": "hub:x", "format": "jsonl"}, "'jsonl'")),
        ({"path": "tfds:x", "encoding": "cp949"}, "encoding"),
    ):
        with pytest.raises(ValueError, match=message):
            SourceConfig.model_validate(settings)


LAYOUTS: dict[str, tuple[list[str], str]] = {
    "shards": ([f"data/{name}.parquet" for name in ("train-00000-of-00002", "train-00001-of-00002", "extra-0-of-1")], ""),
    "names": (["a/reviews-train.jsonl", "a/reviews_dev.jsonl", "test.jsonl", "b/eval-2.jsonl", "a/strain.jsonl"], ""),
    "folders": (["x/training/1.csv", "x/valid-2/test.csv", "train.csv", "my.eval/3.csv"], ""),
    "no splits": (["a.txt", "b/c.txt", ".hidden/d.txt", "__e__/f.txt"], ""),
    "several formats": (["a.parquet", "b.parquet", "c.csv", "LICENSE", "README.md"], ""),
    "equally many": (["a.parquet", "c.csv"], ""),
    "compressed": (["train.jsonl.gz", "test.jsonl.zst", "validation.jsonl.zstd"], ""),
    "a folder of the card": (
        ["en/train.csv", "en/test.csv", "ko/train.csv"],
        "- {config_name: ko, data_dir: ko, default: true}\n- {config_name: en}",
    ),
    "patterns of the card": (
        ["p/a.parquet", "p/q/b.parquet", "p/c.parquet", "r.parquet"],
        '- config_name: default\n  data_files: [{split: train, path: ["p/c.*", "p/*"]}, {split: deep, path: "p/**/*.parquet"}]',
    ),
    "one pattern": (["p/a.jsonl", "q.jsonl"], '- {config_name: only, data_files: "p/*"}'),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_are_those_of_the_library_datasets(layout: str, write: Callable, tmp_path: Path):
    """Judge: `datasets`, which resolves the same folder; empty files will do."""
    datasets = pytest.importorskip("datasets")
    names, configs = LAYOUTS[layout]
    card = f"---\nconfigs:\n{configs}\n---\n" if configs else ""
    for name in [*names, *(["README.md"] if card else [])]:
        write(name, card if name == "README.md" else "")
    builder = datasets.load_dataset_builder(str(tmp_path))
    expected = {
        str(split): list(dict.fromkeys(os.path.relpath(str(url), tmp_path) for url in urls))  # it reads some twice
        for split, urls in builder.config.data_files.items()
    }
    found = splits_of(SourceConfig(path=f"hub:{tmp_path}"), sorted(names), card)
    assert found == expected and found


def test_a_folder_that_changed_is_refused(scattered: Callable, folder: Path, tmp_path: Path):
    work = scattered([source(folder)]).workdir
    scattered([source(shutil.copytree(folder, tmp_path / "moved"))], workdir=work)
    changed = shutil.copytree(folder, tmp_path / "changed")
    path = changed / "plain/train-1.jsonl"
    path.write_text(path.read_text().replace("document 21", "document 99"))
    for given, message in (
        (source(folder, split="test"), "files: 3 -> 1"),
        (source(folder, text_field="in.title"), r"train-0\.jsonl, text_field: text -> in\.title"),
        (source(changed), r"train-1\.jsonl: .*content"),
    ):
        with pytest.raises(WorkFolderMismatch, match=message):
            scattered([given], workdir=work)
    shutil.rmtree(folder)
    scattered([source(folder)], workdir=work)  # elsewhere


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub on this machine, which the library takes for its own."""
    from huggingface_hub import constants

    served = FakeHub(folder)
    files = f"{served.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    places = {"ENDPOINT": served.url, "HUGGINGFACE_CO_URL_TEMPLATE": files, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in (places | {"HF_HUB_OFFLINE": False}).items():
        monkeypatch.setattr(constants, name, value)
    _api.cache_clear()
    yield served
    _api.cache_clear()
    served.close()


def on_hub(**settings: Any) -> list[SourceConfig]:
    return [SourceConfig.model_validate({"path": "hub:owner/texts", "config": "plain"} | settings)]


def test_on_the_hub(hub: FakeHub, folder: Path, tmp_path: Path, scattered: Callable, capfd: pytest.CaptureFixture[str]):
    work, first = tmp_path / "work", hub.commit
    found, files = scattered(on_hub(), workdir=work), scattered([source(folder)])
    assert (found.train(), found.holdout()) == (files.train(), files.holdout())
    assert [item.within for item in found.manifest.inputs] == [f"plain/train-{shard}.jsonl" for shard in range(3)]
    assert {item.sha256 for item in found.manifest.inputs} == {first}
    sizes = [path.stat().st_size for path in folder.glob("plain/train*")]
    assert sum(file.bytes for file in find_files(on_hub(), away=set())) == sum(sizes)
    before = len(hub.requests)
    assert scattered(on_hub(), workdir=work).manifest == found.manifest
    assert not any("jsonl" in request for request in hub.requests[before:])  # nothing is read again
    assert scattered(on_hub(streaming=False)).train() == found.train()
    (folder / "plain/test.jsonl").write_text(jsonl(TEXTS[:4]))
    with pytest.raises(WorkFolderMismatch, match=f"{first} -> {hub.commit}; revision = '{first}'"):
        scattered(on_hub(), workdir=work)
    hub.silent = True
    assert scattered(on_hub(), workdir=work).manifest == found.manifest
    with pytest.raises(Unavailable, match="hub:owner/texts"):
        scattered(on_hub())
    assert capfd.readouterr() == ("", "")


def test_on_the_hub_with_a_limit_and_refusals(hub: FakeHub, folder: Path, scattered: Callable):
    (folder / "plain/train-3.jsonl.gz").write_bytes(gzip.compress(jsonl(["never read"]).encode()))
    (folder / "README.md").write_text(CARD.replace("train-*.jsonl", "train-*"))
    assert scattered(on_hub(), max_documents=25).documents() == sorted(TEXTS[:25])
    assert not any(request.startswith("GET") and "train-3" in request for request in hub.requests)
    for settings, message in (
        ({"revision": "x"}, "hub:owner/texts .*revision 'x'"),
        ({"path": "hub:owner/none"}, "'owner/none'"),
        ({"config": None}, "config .*plain"),
    ):
        with pytest.raises(ConfigError, match=message):
            scattered(on_hub(**settings))
    (folder / "more.txt").write_text("another commit")
    hub.gated = True
    with pytest.raises(ConfigError, match=r"gated: .*/owner/texts"):
        scattered(on_hub())


def test_what_the_hub_has_converted(hub: FakeHub, folder: Path, tables: Path, tmp_path: Path, scattered: Callable):
    """Where a dataset has no files that can be read; and no part in place of a whole."""
    (folder / "texts.py").write_text("")  # a program that makes the dataset
    with pytest.raises(ConfigError, match=r"hub:owner/texts .*tables"):
        scattered(on_hub())
    hub.converted = tmp_path / "converted"
    for name, shard in (("plain/train", 0), ("plain/partial-test", 1)):
        (hub.converted / name).mkdir(parents=True)
        shutil.copy(tables / f"data/{shard}.parquet", hub.converted / name / "0000.parquet")
    found = scattered(on_hub())
    assert found.documents() == sorted(TEXTS[:30])
    assert [item.within for item in found.manifest.inputs] == ["plain/train/0000.parquet"]
    with pytest.raises(ConfigError, match="5 GB of 'test'"):
        scattered(on_hub(split="test"))
    assert scattered(on_hub(split="test", revision="refs/convert/parquet")).documents() == sorted(TEXTS[30:])
