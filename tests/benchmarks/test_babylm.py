"""The table of the public yardstick (benchmarks/babylm.py), from nothing, on a folder of data in the form of the real one."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def write_archive(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnop"), rng.integers(2, 9))) for _ in range(12_000)]
    documents = [" ".join(rng.choice(words, 30)) + ". " + " ".join(rng.choice(words, 9)) + "." for _ in range(1_000)]
    folder = tmp_path / "data/en"
    folder.mkdir(parents=True)
    (folder / "words8m.txt.xz").write_bytes(lzma.compress("".join(f"{line}\n" for line in documents).encode()))
    pairs = [{"sentence_good": f"{one} {two}.", "sentence_bad": f"{two} {one}."} for one, two in rng.choice(words, (8, 2))]
    write_archive(folder / "blimp_dev.tar.gz", {"blimp/order.jsonl": "".join(json.dumps(pair) + "\n" for pair in pairs)})
    lines = "".join(f"{pair['sentence_bad']}\n{pair['sentence_good']}\n" for pair in pairs)
    write_archive(folder / "zorro_dev.tar.gz", {"zorro/order-of_words.txt": lines})
    for part, count in (("train", 64), ("dev", 16)):
        judged = [f"book\t{number % 2}\t\t{one} {two}.\n" for number, (one, two) in enumerate(rng.choice(words, (count, 2)))]
        (folder / f"cola_{part}.tsv.gz").write_bytes(gzip.compress("".join(judged).encode()))
    return tmp_path / "data"


@pytest.mark.slow
@pytest.mark.parametrize("what", [["--recipe", "quickstart"], ["--lever", "as-it-is", "rows-of-64-then-128", "--cola"]])
def test_each_seed_has_a_row_and_data_is_prepared_once(what, data, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    workdir = tmp_path / "work"
    arguments = ["--workdir", str(workdir), "--data", str(data), *what, "--seeds", "0", "1", "--steps", "5"]
    monkeypatch.setattr(sys, "argv", ["babylm.py", *arguments])
    benchmark = importlib.import_module("babylm")
    for name, (extends, changes) in benchmark.LEVERS.items():
        monkeypatch.setitem(benchmark.LEVERS, name, (extends, changes | {"tokenizer.vocab_size": 4_000}))
    benchmark.main()
    rows = (workdir / "babylm.md").read_text(encoding="utf-8")
    assert rows in capsys.readouterr().out
    names, columns = [name for name in what if not name.startswith("--")], rows.splitlines()[2].count("|")
    for name in names:
        assert all(f"| {name} | {row} |" in rows for row in ("0", "1", "mean of 2"))
    assert columns == (9 if "--cola" in what else 8) and {line.count("|") for line in rows.splitlines()[2:]} == {columns}
    manifests = [path.read_bytes() for path in workdir.glob("*/dataset/manifest.json")]
    assert len(manifests) == 2 * len(names) and len(set(manifests)) == 1
