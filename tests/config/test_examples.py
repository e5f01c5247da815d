"""Every example is a run that could begin, and says how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpulm import config

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "examples"
EXAMPLES = sorted(file for file in FOLDER.glob("*.toml") if file.name != "cloud.toml")  # which is no run: tests/cloud reads it


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_resolves_and_names_its_own_command(file: Path):
    run = config.load(file)
    assert run.name == file.stem
    assert run.corpus.sources
    assert run.language is not None
    assert f"tpulm run examples/{file.name} --workdir " in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_run_file_of_the_front_page_names_nothing_but_its_text(page: str, tmp_path: Path):
    block = re.search(r"```toml[^\n]*\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "run.toml").write_text(block[1], encoding="utf-8")
    run, recipe = config.load(tmp_path / "run.toml"), config.load("laptop-bert")
    assert (run.tokenizer, run.data, run.model, run.train) == (recipe.tokenizer, recipe.data, recipe.model, recipe.train)
