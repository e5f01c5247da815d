"""The settings as models: every default is valid, every field documented by its name's unit or a comment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic import ValidationError

from tpulm.cloud.settings import CloudSettings
from tpulm.config import load, schema
from tpulm.config.finetune import TASKS, FinetuneConfig
from tpulm.config.reference import groups_of, type_words
from tpulm.errors import ConfigError

MODELS = [item for item in vars(schema).values() if isinstance(item, type) and issubclass(item, schema.Settings)]


@pytest.mark.parametrize(("recipe", "kind"), [("laptop-lm", "packed"), ("quickstart", "causal")])
def test_rows_of_another_architecture_are_refused(recipe: str, kind: str):
    with pytest.raises(ConfigError, match=f"rows = '{kind}' does not go with"):
        load(recipe, {"data.rows": kind, "corpus.sources": ["x.txt"]})


@pytest.mark.parametrize(("model", "name"), [(model, name) for model in MODELS for name in model.removed])
def test_a_removed_setting_may_have_its_default_alone(model: type[schema.Settings], name: str):
    """A run.json of version 0.2 has it; another value is what this version does not do."""
    assert model.model_validate({name: model.removed[name].default}) == model()
    with pytest.raises(ValidationError, match=name):
        model.model_validate({name: 0.5})


INTEGERS = [
    (model, name)
    for model in (*MODELS, FinetuneConfig)
    for name, hint in get_type_hints(model, include_extras=True).items()
    if name in model.model_fields and schema.settings_class(hint) is None and "whole number" in type_words(hint)
]


def test_whole_numbers_are_bounded():
    for model, name in INTEGERS:
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: [10**20] if isinstance(model.model_fields[name].default, tuple) else 10**20})
        assert (name, "less_than_equal") in [(*error["loc"][:1], error["type"]) for error in refused.value.errors()]


OF_ONE_TASK = {
    "qa": {"doc_stride": 64, "max_answer_length": 5, "null_score_diff_threshold": 0.0, "answer_metric": "klue"},
    "regression": {"f1_threshold": 3.0},
    "classification": {"class_weights": "balanced"},
}


@pytest.mark.parametrize("task", OF_ONE_TASK)
def test_settings_of_one_task_are_refused_by_the_others(task: str):
    for name, value in OF_ONE_TASK[task].items():
        FinetuneConfig.model_validate({"task": task, name: value})
        for other in set(TASKS) - {task}:
            FinetuneConfig.model_validate({"task": other, name: None})
            with pytest.raises(ValidationError, match=rf"{name} .*{task}, and the task is {other}"):
                FinetuneConfig.model_validate({"task": other, name: value})


def test_text_without_nul():
    for model, name in ((schema.RunConfig, "name"), (schema.SourceConfig, "path"), (FinetuneConfig, "metric")):
        with pytest.raises(ValidationError, match="NUL"):
            model.model_validate({name: "a\0b"})


def test_each_setting_earns_its_place():
    """It stands in a recipe, an example or a page that somebody wrote, unless `tpulm import` sets it."""
    root = Path(__file__).parents[2]
    pages = [path for path in root.glob("docs/**/*.md") if path.name not in ("settings.md", "recipes.md")]
    files = [*pages, root / "README.md", *root.glob("examples/*"), *root.glob("src/tpulm/recipes/*.toml")]
    words = {word for path in files if path.is_file() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    models = (schema.RunConfig, FinetuneConfig, CloudSettings)
    settings = [setting for model in models for group in groups_of(model) for setting in group.settings]
    assert [one.name for one in settings if one.name not in words and not one.meaning.startswith("set by import")] == []
