"""Arguments and options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # pydantic's models cost a fifth of a second, which --help need not pay
    from tpulm.config import RunConfig

RunFile = Annotated[
    str, typer.Argument(metavar="RUN", help="A run file (.toml), or a recipe's name such as bert-mini ('tpulm recipes').")
]
WorkDir = Annotated[
    Path, typer.Option("--workdir", "-w", metavar="W", help="The work folder: made if absent, continued if not.")
]
Workfolder = Annotated[Path, typer.Argument(metavar="W", help="The work folder of a run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, such as --set train.steps=1000. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]


def load_run(reference: str, overrides: list[str] | None) -> RunConfig:
    from tpulm.config import load

    return load(reference, overrides or [])
