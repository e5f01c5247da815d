"""Every recipe resolves to the configuration on record, and its head comment says what a user wants to know first.

After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/config, then look at the difference and commit it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tpulm import config

GOLDEN = Path(__file__).parent / "golden"
RECIPES = config.list_recipes()


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


@pytest.mark.parametrize("name", ["bert-mini", "electra-small"])
def test_a_recipe_can_be_shortened_without_touching_its_warm_up(name: str):
    run = config.load(name, ["train.steps=600", "train.batch_size=64", "data.sequence_length=64"])
    assert run.train.steps == 600
