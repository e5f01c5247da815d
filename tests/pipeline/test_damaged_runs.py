"""Damage to any file of a finished run, or of one to be continued: the same command gives the same model and scores, refuses in
words, or says what it found. What differs silently fails. A failure names file and damage; -s shows counts by kind.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pytest

from toy_runs import Notes
from tpulm import pipeline
from tpulm.config import RunConfig, canonical_json
from tpulm.errors import CheckpointError, TpulmError
from tpulm.pipeline import programs

Run = tuple[RunConfig, Path, pipeline.Summary]
VOLATILE = {"tokens_per_second", "mfu", "attempts", "files", "sha256_of_the_rest"}
SAME_FOR_ALL = ("ocdbt.process_0/d/", "part-0000", "version-")  # of files with such names a few are enough
DAMAGES: dict[str, Callable[[bytes, bytes], bytes | None]] = {
    "flipped": lambda content, other: content[: len(content) // 2] + _flipped(content[len(content) // 2 :]),
    "cut": lambda content, other: content[: len(content) // 2],
    "deleted": lambda content, other: None,
    "swapped": lambda content, other: other,
}


def _flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:] if content else b"\x01"


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Any:
    """All runs here have the same program, or one of a few."""
    known: dict[str, Any] = {}

    def program(
        config: RunConfig, vocabulary: Any, workdir: PurePath, *, read_only: bool, make: Any = programs._program
    ) -> Any:
        key = f"{canonical_json(config)} {vocabulary}"
        if key not in known:
            known[key] = make(config, vocabulary, workdir, read_only=read_only)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "_program", program)
        yield


def made(folder: Path) -> dict[str, Any]:
    """What a run is for: its weights, tokenizer and scores. The model card tells of speed, too, which differs."""
    exported = {path.name: path.read_bytes() for path in (folder / "export").iterdir() if path.name != "README.md"}
    results = {path.name: json.loads(path.read_text()) for path in (folder / "results").iterdir()}
    return exported | {name: {one: values[one] for one in values.keys() - VOLATILE} for name, values in results.items()}


def kinds_of(folder: Path) -> dict[str, list[Path]]:
    """The files below a work folder by kind, which is the first name of their path."""
    found, seen = defaultdict[str, list[Path]](list), Counter[str]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        alike = next((f"{name.parts[:2]}{one}{name.name}" for one in SAME_FOR_ALL if one in str(name)), None)
        alike = str(name.parent) if "/d/" in str(name) else alike
        if alike is None or (seen.update([alike]) or seen[alike] <= 1):
            found[name.parts[0]].append(name)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("begun", ["finished", "continued"])
def test_damage_is_mended_told_or_refused(toy_run: Run, tmp_path: Path, begun: str) -> None:
    config, whole, _ = toy_run
    folder, start, expected = tmp_path / "w", tmp_path / "start", made(whole)
    shutil.copytree(whole, start)
    for name in ("results", "export", "report", "checkpoints/6") if begun == "continued" else ():
        shutil.rmtree(start / name)  # as a kill between two checkpoints leaves it
    counts, wrong = defaultdict[str, Counter[str]](Counter), list[str]()
    for kind, names in kinds_of(start).items():
        for number, name in enumerate(names):
            for damage, change in DAMAGES.items():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(start, folder)
                content = change((start / name).read_bytes(), (start / names[number - 1]).read_bytes())
                (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
                told = Notes()
                try:
                    pipeline.run(config, folder, progress=told)
                except TpulmError as error:
                    outcome = "refused" if len(str(error)) < 1_500 else "a dump"
                except Exception as error:
                    outcome = f"a traceback: {error!r}"
                else:
                    same = made(folder) == expected
                    said = [note for note in told.notes if "continuing from checkpoint" not in note]
                    outcome = ("mended" if said else "no effect") if same else "told" if said else "silent"
                counts[kind][outcome] += 1
                if outcome not in ("refused", "mended", "no effect", "told"):
                    wrong.append(f"{name} {damage}: {outcome}")
    for kind, found in counts.items():
        print(f"{begun} {kind}: {dict(found)}")
    assert not wrong


@pytest.mark.parametrize("lost", ["newest", pytest.param("all", marks=pytest.mark.slow), "deleted"])
def test_training_is_not_done_without_its_last_checkpoint(toy_run: Run, tmp_path: Path, lost: str) -> None:
    """results/train.json says that it is."""
    config, whole, _ = toy_run
    folder = tmp_path / "w"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "export")
    if lost == "deleted":
        shutil.rmtree(folder / "checkpoints")
    for step in {"newest": (6,), "all": (3, 6), "deleted": ()}[lost]:
        (folder / "checkpoints" / str(step) / "state" / "_METADATA").write_bytes(b"")
    if lost == "all":
        with pytest.raises(CheckpointError, match="2 checkpoints"):
            pipeline.run(config, folder)
    told = Notes()
    stages = pipeline.run(config, folder, progress=told).stages
    assert stages["train"] == ("resumed" if lost == "newest" else "done") and stages["evaluate"] == stages["export"] == "done"
    assert lost == "all" or any(str(folder / "checkpoints" / "6") in note for note in told.notes)
    assert made(folder) == made(whole) and pipeline.run(config, folder).nothing_to_do
