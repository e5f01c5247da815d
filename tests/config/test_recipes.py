"""Every recipe resolves to the configuration on record, and its head comment says what a user wants to know first; every
example is a run that could begin, and says how.

After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/config, then look at the difference and commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tpulm import config

REPOSITORY = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
RECIPES = config.list_recipes()
EXAMPLES = sorted(file for file in REPOSITORY.glob("examples/*.toml") if file.name != "cloud.toml")  # which is no run


def test_each_recipe_is_on_record():
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == RECIPES or os.environ.get("TPULM_UPDATE_GOLDEN")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_resolves_as_recorded(name: str):
    loaded = config.load(name)
    found = config.canonical_json(loaded)
    file = GOLDEN / f"{name}.json"
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "if this is wanted: TPULM_UPDATE_GOLDEN=1 pytest tests/config"
    assert config.from_json(found) == loaded


@pytest.mark.parametrize("name", RECIPES)
def test_the_head_comment_states_what_to_expect(name: str):
    head = re.match(r"(#.*\n)+", config.recipe_text(name))
    assert head is not None
    for heading in ("Source", "Model", "Expected", "Cost", "Departures"):
        assert re.search(rf"^# {heading}  ", head.group(), re.MULTILINE), f"{name}.toml has no '{heading}' in its head comment"
    assert re.search(r"^# (Published|Score)  ", head.group(), re.MULTILINE)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_resolves_and_names_its_own_command(file: Path):
    run = config.load(file)
    assert run.name == file.stem and run.corpus.sources and run.language is not None
    assert f"tpulm run examples/{file.name} --workdir " in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_run_file_of_the_front_page_names_nothing_but_its_text(page: str, tmp_path: Path):
    block = re.search(r"```toml[^\n]*\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "run.toml").write_text(block[1], encoding="utf-8")
    run, recipe = config.load(tmp_path / "run.toml"), config.load("laptop-bert")
    assert (run.tokenizer, run.data, run.model, run.train) == (recipe.tokenizer, recipe.data, recipe.model, recipe.train)
