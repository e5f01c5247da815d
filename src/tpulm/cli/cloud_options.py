"""Where to run: the options that the cloud's commands share, and the settings they make up with cloud.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any

import typer

from tpulm import cloud
from tpulm.cli.terminal import say
from tpulm.errors import ConfigError
from tpulm.storage import as_path

_where = partial(typer.Option, rich_help_panel="Where to run (over cloud.toml)")

WorkDirInBucket = Annotated[
    PurePath | None,
    typer.Option(
        "--workdir",
        "-w",
        metavar="W",
        parser=as_path,
        help="The work folder in a bucket. Default: gs://BUCKET/NAME of the run.",
    ),
]
CloudFile = Annotated[
    PurePath | None,
    _where("--cloud", metavar="FILE", parser=as_path, help="Where to run. Default: ./cloud.toml if it is there."),
]
Project = Annotated[str | None, _where(metavar="ID", help="The project. Default: GOOGLE_CLOUD_PROJECT, or the login's.")]
Zones = Annotated[
    list[str] | None,
    _where(
        "--zone",
        metavar="ZONE",
        help="Try this zone; 'us-east5-*' for all of a region. Repeatable, tried in order. Default: all with that TPU.",
    ),
]
Bucket = Annotated[str | None, _where(metavar="NAME", help="The bucket of the work folders.")]
AcceleratorType = Annotated[str | None, _where("--accelerator", metavar="TYPE", help="The TPU type, such as v3-8.")]
Spot = Annotated[bool | None, _where("--spot/--on-demand", help="Spot is cheaper and can be taken away at any time.")]
Budget = Annotated[float | None, _where(metavar="DOLLARS", help="What a run may cost.")]
ServiceAccount = Annotated[
    str | None, _where(metavar="EMAIL", help="What the VMs run as. Default: tpulm-worker of the project.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def cloud_settings(given: Mapping[str, Any], *, require: Sequence[str] = (), **defaults: Any) -> cloud.settings.CloudSettings:
    """The settings of the file `cloud_file` with the options over them; `given` are a command's `locals()`, as it begins.

    `defaults` stand in for options that are not given.
    """
    names = ("project", "bucket", "accelerator", "spot", "budget", "service_account")
    options = {name: given[name] if given.get(name) is not None else defaults.get(name) for name in names}
    return cloud.settings.load(given["cloud_file"], require=require, zones=tuple(given.get("zone") or ()), **options)


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
