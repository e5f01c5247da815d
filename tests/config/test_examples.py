"""Every example is a run that could begin, and says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpulm import config

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(file for file in FOLDER.glob("*.toml") if file.name != "cloud.toml")  # which is no run: tests/cloud reads it


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_resolves_and_names_its_own_command(file: Path):
    run = config.load(file)
    assert run.name == file.stem
    assert run.corpus.sources
    assert run.language is not None
    assert f"tpulm run examples/{file.name} --workdir " in file.read_text(encoding="utf-8")
