"""`tpulm recipes`: the named runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpulm.cli.terminal import console, print_table

if TYPE_CHECKING:
    from tpulm.config import RunConfig


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
        config = load(recipe)
        model = config.model
        rows.append(
            (
                recipe,
                f"{model.num_layers} x {model.hidden_size}",
                f"{config.train.batch_size} x {_lengths(config)}",
                f"{config.train.steps:,}",
                config.description,
            )
        )
    print_table("Recipes", rows, header=("name", "layers", "batch", "steps", "what it is"))
    console.print("\nLayers x hidden size; rows of a batch x their length.")
    console.print("'tpulm recipes NAME' prints one in full, with source, time, cost and published score.")


def _lengths(config: RunConfig) -> str:
    """Of the rows, over the phases."""
    from tpulm.config import phases_of

    return ", ".join(dict.fromkeys(str(phase.config.data.sequence_length) for phase in phases_of(config)))
