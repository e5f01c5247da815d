"""`tpulm recipes`: the named runs."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from tpulm.cli.terminal import console, print_table


def recipes(name: Annotated[str | None, typer.Argument(help="Print this recipe in full.")] = None) -> None:
    """The named runs: what model, trained how long. 'tpulm recipes bert-base' prints one with its source, time and cost.

    Begin a run file with 'extends = "bert-mini"' and write only what differs.
    """
    from tpulm.config import list_recipes, load, recipe_text

    if name is not None:
        print(recipe_text(name), end="")
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
    console.print("\nTime and cost as its head says, mostly on a TPU v3-8 on demand: 'tpulm recipes NAME' prints it in full.")


def _of_head(text: str, name: str, pattern: str) -> str:
    """What the comment at the head of a recipe says under `name`, or "?"."""
    found = re.search(rf"^# {name} +{pattern}", text, re.MULTILINE)
    return found.group(1) if found else "?"
