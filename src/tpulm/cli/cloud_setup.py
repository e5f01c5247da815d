"""`tpulm cloud doctor` and `tpulm cloud setup`: is everything there, and making what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tpulm.cli.cloud_options import (
    AcceleratorType,
    Bucket,
    Budget,
    CloudFile,
    Project,
    ServiceAccount,
    Spot,
    Supervise,
    Zones,
    cloud_settings,
)
from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, print_json, print_table
from tpulm.errors import CloudRefused, ConfigError

if TYPE_CHECKING:
    from tpulm.cloud.doctor import Check
    from tpulm.cloud.setup import Step

_MARKS = {True: "ok", False: "NO", None: "?"}


def doctor(
    cloud: CloudFile = None,
    project: Project = None,
    zone: Zones = None,
    bucket: Bucket = None,
    accelerator: AcceleratorType = None,
    spot: Spot = None,
    budget: Budget = None,
    service_account: ServiceAccount = None,
    as_json: AsJson = False,
) -> None:
    """Is everything there for a run in the cloud? Looks at all of it, changes nothing, and says what to do.

    Login, project, billing, APIs, the TPU type in its zones, quota, price, the bucket and where it is, the account that the VMs
    run as and its rights, and your own.

        tpulm cloud doctor --accelerator v3-8 --bucket my-project-tpulm

    With a cloud.toml in this folder (examples/cloud.toml) 'tpulm cloud doctor' is enough. Ends with exit code 4 when something
    is missing.
    """
    from tpulm.cloud.doctor import examine

    settings = cloud_settings(
        cloud,
        project=project,
        zones=tuple(zone or ()),
        bucket=bucket,
        accelerator=accelerator,
        spot=spot,
        budget=budget,
        service_account=service_account,
    )
    with console.status(f"Looking at {settings.project} …"):
        checks = examine(settings)
    missing = [check for check in checks if check.ok is False]
    _show(f"{settings.project}{_by(cloud)}, for runs on Cloud TPU", checks)
    if as_json:
        print_json({"ok": not missing, "project": settings.project, "checks": [vars(check) for check in checks]})
    if missing:
        raise typer.Exit(CloudRefused.exit_code)


def _by(cloud: PurePath | None) -> str:
    from tpulm.cloud.settings import find

    file = find(cloud)
    return f" ({file})" if file else ""


def _show(title: str, checks: Sequence[Check]) -> None:
    rows = [("!" if check.ok and check.remedy else _MARKS[check.ok], check.name, check.found) for check in checks]
    print_table(title, rows)
    missing, unsure = [check for check in checks if check.ok is False], [check for check in checks if check.ok is None]
    if any(check.remedy for check in checks):
        console.print("\n[bold]What to do[/]")
    for remedy in dict.fromkeys(check.remedy for check in [*missing, *unsure, *checks] if check.remedy):
        names = ", ".join(check.name for check in checks if check.remedy == remedy)
        console.print(f"{escape(names)}:\n    {escape(remedy)}", soft_wrap=True)  # whole, to be copied
    unchecked = f"; {len(unsure)} could not be checked" if unsure else ""
    if missing:
        console.print(f"\n[bold red]{len(missing)} of {len(checks)} are not as they should be{unchecked}[/]")
    else:
        console.print(f"\n[bold green]nothing wrong was found[/]{unchecked}")


def setup(
    cloud: CloudFile = None,
    project: Project = None,
    zone: Zones = None,
    bucket: Bucket = None,
    accelerator: AcceleratorType = None,
    service_account: ServiceAccount = None,
    supervise: Supervise = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make what is missing: APIs, the bucket, the account of the VMs, and its rights. Says what it will do, and asks.

        tpulm cloud setup --accelerator v3-8 --bucket my-project-tpulm

    The bucket is made in the region of the first zone, private, and without soft delete. The VMs get an account of their own,
    without a key, which may read and write the bucket and delete TPUs, and nothing else. What is there already stays as it is,
    grants of others included; run again, it goes on where it stopped. Billing and quota are Google's to give: see 'tpulm cloud
    doctor'. With --supervise cloud, or supervise = "cloud" in cloud.toml, also the account of the supervisor's VM.
    """
    from tpulm.cloud.setup import apply, steps

    settings = cloud_settings(
        cloud,
        require=("bucket",),
        project=project,
        zones=tuple(zone or ()),
        bucket=bucket,
        accelerator=accelerator,
        service_account=service_account,
        supervise=supervise,
    )
    with console.status(f"Looking at {settings.project} …"):
        found = steps(settings)
    if found:
        print_table(f"To do in {settings.project}", [(str(n), step.what, step.detail) for n, step in enumerate(found, 1)])
        if not yes:
            _ask(len(found))
        apply(found, tell=_tell)
        console.print("[bold green]done[/]; 'tpulm cloud doctor' looks at all of it")
    else:
        console.print(f"[bold green]nothing to do[/]: {escape(settings.project)} has what runs need")
    if as_json:
        print_json({"project": settings.project, "done": [step.what for step in found]})


def _ask(count: int) -> None:
    if not _is_asked():
        raise ConfigError("nobody is here to be asked; say --yes to have it done")
    if not typer.confirm(f"Do these {count}?" if count > 1 else "Do it?", err=True):
        console.print("nothing was changed")
        raise typer.Exit(1)


def _is_asked() -> bool:
    return sys.stdin.isatty()


def _tell(step: Step) -> None:
    console.print(f"{escape(step.what)} …", soft_wrap=True)
