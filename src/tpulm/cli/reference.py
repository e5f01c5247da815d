"""`tpulm recipes` and `tpulm settings`: the named runs, and what run files, fine-tuning and cloud.toml may say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.padding import Padding

from tpulm.cli import terminal
from tpulm.cli.options import argument
from tpulm.cli.terminal import print_json, print_table, say, show, write
from tpulm.errors import ConfigError, suggest

if TYPE_CHECKING:
    from tpulm.config.reference import Setting


def recipes(name: Annotated[str | None, argument("Print this recipe in full.")] = None) -> None:
    """The named runs: what model, trained how long. 'tpulm recipes bert-base' prints one with its source, time and cost.

    Begin a run file with 'extends = "bert-mini"' and write only what differs.
    """
    from tpulm.config import list_recipes, load, recipe_text

    if name is not None:
        write(recipe_text(name))
        return
    rows = []
    for recipe in list_recipes():
        model = load(recipe).model
        head = recipe_text(recipe)
        rows.append(
            (
                recipe,
                f"{model.architecture} {model.num_layers} x {model.hidden_size}",
                _of_head(head, "Expected", r"(?:\d+ runs?: |at least |about )*([\d.]+ (?:s|min|h|days?))\b"),
                _of_head(head, "Cost", r"(?:from )?(\$[\d,.]+|none)"),
            )
        )
    print_table("Recipes", rows, header=("name", "layers x hidden size", "time", "cost"))
    say("\nTime and cost as its head says, mostly on a TPU v3-8 on demand.\n'tpulm recipes NAME' prints it in full.")


def _of_head(text: str, name: str, pattern: str) -> str:
    """What the comment at the head of a recipe says under `name`, or "?"."""
    match = re.search(rf"^# {name} +{pattern}", text, re.MULTILINE)
    return match.group(1) if match else "?"


def settings(
    words: Annotated[
        list[str] | None, argument("Only those with all of these in the name or the meaning.", "[WORD...]")
    ] = None,
) -> None:
    """Every setting with its type, default and meaning: of a run file, of fine-tuning and of cloud.toml.

    'tpulm settings warmup' finds those that have to do with warm-up. 'none' is written "none" in a file.
    """
    from tpulm.cloud.settings import CloudSettings
    from tpulm.config import FinetuneConfig, RunConfig
    from tpulm.config.reference import groups_of

    settings_by_title = {
        title: [
            setting._replace(name=f"{group.name}.{setting.name}".lstrip("."))
            for group in groups_of(model)
            for setting in group.settings
            if not (model is FinetuneConfig and group.name)  # those of a run file again
        ]
        for title, model in (
            ("A run file, or --set NAME=VALUE", RunConfig),
            ("Fine-tuning: tpulm finetune --set NAME=VALUE", FinetuneConfig),
            ("cloud.toml", CloudSettings),
        )
    }
    query = " ".join(words or [])

    def plain(text: str) -> str:
        return text.casefold().replace("-", "_")

    def matches(setting: Setting) -> bool:
        return all(word in plain(f"{setting.name} {setting.type} {setting.meaning}") for word in plain(query).split())

    chosen = {title: [one for one in some if matches(one)] for title, some in settings_by_title.items()}
    if not any(chosen.values()):
        names = [one.name for some in settings_by_title.values() for one in some]
        parts = {part for name in names for part in (name, *re.split(r"[._]", name))}
        raise ConfigError(f"no setting has '{query}' in its name, values or meaning.{suggest(query, sorted(parts))}")
    for title, some in chosen.items():
        if some:
            show(title, style="bold underline")
        if terminal.results.width == terminal.UNFOLDED:  # a line each, for grep
            print_table("", [(one.name, f"{one.type}; {one.default_words}", one.meaning) for one in some])
            continue
        for one in some:
            show(one.name, style="bold")
            for text in (f"[cyan]{escape(one.type)}[/]; {escape(one.default_words)}", escape(one.meaning)):
                if text:
                    terminal.results.print(Padding(text, (0, 0, 0, 4)))
    print_json({"settings": [{"of": title, **one._asdict()} for title, some in chosen.items() for one in some]})
