"""docs/settings.md and docs/recipes.md, from the code: `python docs/generate.py` writes them.

They are tracked, so that they can be read without building the site; a test fails where they are out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

from tpulm import config
from tpulm.cloud.settings import CloudSettings
from tpulm.config.reference import Group, groups_of

SETTINGS_HEAD = """# Settings

Everything a run file may set, made from `src/tpulm/config/schema.py`. A run file is TOML; `--set train.steps=1000` on the
command line overrides one value. An unknown name is an error that suggests the nearest. `"none"` unsets what may be none.
`tpulm settings WORD` finds settings by their names and meanings.
"""
FINETUNE_HEAD = """
## Fine-tuning

The settings of [fine-tuning](fine-tuning.md), made from `src/tpulm/config/finetune.py`: `tpulm finetune --set patience=5`,
`tpulm.Classifier(model, patience=5)`. `checkpoint.…` and `hardware.…` are those of `[train.checkpoint]` and `[hardware]` above.
"""
CLOUD_HEAD = """
## cloud.toml

Where runs in [the cloud](cloud.md) take place, made from `src/tpulm/cloud/settings.py`.
"""
RECIPES_HEAD = """# Recipes

A recipe is a run file that comes with tpulm: `extends = "bert-mini"` in your own file, or `tpulm run bert-mini` with `--set`.
"""


def pages() -> dict[str, str]:
    return {"settings.md": settings_page(), "recipes.md": recipes_page()}


def settings_page() -> str:
    parts = [SETTINGS_HEAD, *map(_section, groups_of(config.RunConfig))]
    parts += [FINETUNE_HEAD, _list(next(groups_of(config.FinetuneConfig))), CLOUD_HEAD, _list(next(groups_of(CloudSettings)))]
    return "\n".join(parts) + "\n"


def recipes_page() -> str:
    recipes = [f"\n## {name}\n\n```ini\n{config.recipe_text(name).rstrip()}\n```" for name in config.list_recipes()]
    return "\n".join([RECIPES_HEAD.rstrip(), *recipes]) + "\n"


def _section(group: Group) -> str:
    title = (f"`[[{group.name}]]`" if group.many else f"`[{group.name}]`") if group.name else "The run itself"
    return "\n".join(filter(None, [f"\n## {title}\n", group.meaning and f"{_escaped(group.meaning)}\n", _list(group)]))


def _list(group: Group) -> str:
    """A list, not a table: nothing of it is ever off the screen."""
    lines = []
    for one in group.settings:
        meaning = f"<br>{_escaped(one.meaning)}" if one.meaning else ""
        default = "required" if one.default == "required" else f"default `{one.default}`"
        lines.append(f"- **`{one.name}`**: {one.type}; {default}{meaning}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """What Markdown would take for a tag is shown as code."""
    return re.sub(r"<\w+>", r"`\g<0>`", text)


if __name__ == "__main__":
    for page, text in pages().items():
        (Path(__file__).parent / page).write_text(text)
