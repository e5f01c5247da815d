"""`tpulm cloud smoke`: one small VM in a real project, against what this package takes for granted."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tpulm.cli.cloud_options import AcceleratorType, Bucket, CloudFile, Project, ServiceAccount, Spot, Zones, cloud_settings
from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, drawn_progress, print_json
from tpulm.errors import CloudRefused
from tpulm.readable import dollars

SMALLEST = "v5litepod-1"
_MARKS = {True: "[green]ok[/]", False: "[bold red]NO[/]", None: "[yellow]? [/]"}


def smoke(
    budget: Annotated[float, typer.Option(min=0.01, metavar="DOLLARS", help="What it may cost at most.")] = 2.0,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The transcript, without ids, for a bug report.")] = Path(
        "tpulm-smoke.txt"
    ),
    compute: Annotated[
        bool, typer.Option("--compute", help="An e2-micro, too, which Compute Engine must delete by itself.")
    ] = False,
    cloud: CloudFile = None,
    project: Project = None,
    zone: Zones = None,
    bucket: Bucket = None,
    accelerator: AcceleratorType = None,
    spot: Spot = None,
    service_account: ServiceAccount = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """One small TPU VM in your project, for some minutes and cents: does Google answer as tpulm takes it to?

    Creates a spot v5litepod-1 (or --accelerator), has it report what it sees and delete itself, looks how a queued resource is
    deleted, and compares, a line each: prices, quota names, refusals, metadata, preemption flag, log, self-deletion. It deletes
    everything, and writes a transcript without ids that can be attached to a bug report.

        tpulm cloud smoke --bucket my-project-tpulm --budget 2

    Ends with exit code 4 when a line is not as expected.
    """
    from importlib import metadata

    from tpulm import interrupt, storage
    from tpulm.cloud import launch
    from tpulm.cloud.google_rest import GoogleRest
    from tpulm.cloud.smoke import Line, Smoke, transcript
    from tpulm.cloud.tpu_api import TpuApi

    settings = cloud_settings(
        cloud,
        require=("bucket",),
        project=project,
        zones=tuple(zone or ()),
        bucket=bucket,
        accelerator=accelerator or SMALLEST,
        spot=spot,
        budget=budget,
        service_account=service_account,
    )
    api = TpuApi(settings.project)
    settings = launch.offered(settings, api)
    if not yes:
        what = f"creates a {'spot ' * settings.spot}{settings.accelerator} in {settings.project}, for at most {dollars(budget)}"
        typer.confirm(f"This {what}. Go on?", abort=True, err=True)
    lines: list[Line] = []
    with drawn_progress() as progress, interrupt.handled():

        def tell(line: Line) -> None:
            lines.append(line)
            console.print(f"{_MARKS[line.ok]}  {escape(line.what)}: {escape(line.found)}", soft_wrap=True, highlight=False)

        made = Smoke(settings, api, GoogleRest(settings.project), tell, with_compute=compute, progress=progress)
        try:
            made.run()
        finally:
            about = f"tpulm {metadata.version('tpulm')} cloud smoke, {settings.accelerator}, Python {platform.python_version()}"
            storage.write_atomic(to, transcript(lines, made, about=about))
    wrong = [line.what for line in lines if line.ok is False]
    console.print(f"\nit cost {dollars(made.spent)} at most; the transcript is {to}", soft_wrap=True)
    if as_json:
        print_json({"ok": not wrong, "dollars": made.spent, "lines": [vars(line) for line in lines], "facts": made.facts})
    if wrong:
        console.print(f"[bold red]not as expected: {', '.join(wrong)}[/]; a report with {to} helps everybody", soft_wrap=True)
        raise typer.Exit(CloudRefused.exit_code)
    console.print("[bold green]Google answers as expected[/]")
