"""Where to run: the options that the cloud's commands share, and the settings they make up with cloud.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any

import typer

from tpulm import cloud
from tpulm.cli.options import FieldOptions, SetOptions, option, path_option
from tpulm.cli.terminal import say
from tpulm.errors import ConfigError

WHERE = FieldOptions(
    "tpulm.cloud.settings:CloudSettings",
    ("project", "zones", "bucket", "accelerator", "spot", "service_account"),
    names={"zones": "--zone", "spot": "--spot/--on-demand"},
    panel="Where to run (over cloud.toml)",
)
Where = Annotated[SetOptions, WHERE]
Project = Annotated[SetOptions, WHERE._replace(fields=("project",))]
CloudFile = Annotated[
    PurePath | None, path_option("Where to run. Default: ./cloud.toml if it is there.", "--cloud", panel=WHERE.panel)
]
WorkDirInBucket = Annotated[
    PurePath | None,
    path_option("The work folder in a bucket. Default: gs://BUCKET/NAME of the run.", "--workdir", "-w", metavar="W"),
]
Yes = Annotated[bool, option("Do it without asking.", "--yes", "-y")]


def cloud_settings(
    file: PurePath | None, where: Mapping[str, Any], *, require: Sequence[str] = (), **defaults: Any
) -> cloud.settings.CloudSettings:
    """The settings of the file, with those that are given over them; `defaults` stand in for options that are not."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in where.items()}
    return cloud.settings.load(file, require=require, **{**defaults, **options})


def is_asked() -> bool:
    """Whether somebody is here to be asked."""
    return sys.stdin.isatty()


def confirm(question: str, *, declined: str) -> None:
    """Raises ConfigError without a terminal; ends the command, saying what was `declined`, on a no."""
    if not is_asked():
        raise ConfigError("not a terminal: pass --yes to confirm")
    if not typer.confirm(question, err=True):
        say(declined)
        raise typer.Exit(1)
