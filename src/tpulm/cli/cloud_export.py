"""`tpulm cloud export`: a run for other engines."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from tpulm.cli.cloud_launch import check_sources, prepare
from tpulm.cli.cloud_options import AcceleratorType, Bucket, CloudFile, Project, Spot, WorkDirInBucket, Zones, cloud_settings
from tpulm.cli.commands import Commands
from tpulm.cli.options import Init, Overrides, RunFile, load_run
from tpulm.cli.terminal import console, drawn_progress
from tpulm.errors import ConfigError
from tpulm.storage import as_path

if TYPE_CHECKING:
    from tpulm.cloud.export import Staged
    from tpulm.cloud.settings import CloudSettings

app = Commands(help="A run for other engines: the same run file, bucket and checkpoints.", no_args_is_help=True)

To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write it here. Default: stdout.")]


@app.command()
def skypilot(
    reference: RunFile,
    workdir: WorkDirInBucket = None,
    to: To = None,
    overrides: Overrides = None,
    init: Init = None,
    cloud: CloudFile = None,
    project: Project = None,
    zone: Zones = None,
    bucket: Bucket = None,
    accelerator: AcceleratorType = None,
    spot: Spot = None,
) -> None:
    """A managed job for SkyPilot, which looks for TPUs in several regions, and replaces those that are preempted.

    Tokenizer and dataset are prepared on this machine, into the bucket.

        tpulm cloud export skypilot electra-small --accelerator v6e-8 --bucket my-project-tpulm --to job.yaml

        sky jobs launch job.yaml

    SkyPilot knows nothing of the budget in cloud.toml.
    """
    from tpulm.cloud import export

    settings = cloud_settings(
        cloud,
        require=("bucket", "accelerator", "zones"),
        project=project,
        zones=tuple(zone or ()),
        bucket=bucket,
        accelerator=accelerator,
        spot=spot,
    )
    _write(export.skypilot(_stage(reference, overrides, init, workdir, settings), settings), to, settings)


@app.command()
def jobset(
    reference: RunFile,
    workdir: WorkDirInBucket = None,
    to: To = None,
    image: Annotated[
        str | None, typer.Option(metavar="NAME", help="A container image with bash and python3. Default: Python's own.")
    ] = None,
    overrides: Overrides = None,
    init: Init = None,
    cloud: CloudFile = None,
    project: Project = None,
    bucket: Bucket = None,
    accelerator: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="A TPU type, such as v6e-8, or the GPUs of a node: nvidia-h100-80gb:8."),
    ] = None,
    spot: Spot = None,
) -> None:
    """A JobSet for Google Kubernetes Engine: a TPU slice, of TPU7x too, or the GPUs of one node.

    Tokenizer and dataset are prepared on this machine, into the bucket. The file says what a cluster needs once.

        tpulm cloud export jobset electra-small --accelerator v6e-16 --bucket my-project-tpulm --to job.yaml

        kubectl apply -f job.yaml

    Kubernetes knows nothing of the budget in cloud.toml.
    """
    from tpulm.cloud import export

    settings = cloud_settings(cloud, require=("bucket",), project=project, bucket=bucket, spot=spot)
    named = accelerator or settings.accelerator
    if not named:
        raise ConfigError('accelerator is not set: write accelerator = "v6e-8" in cloud.toml, or give --accelerator')
    kind = export.accelerator(named)
    staged = _stage(reference, overrides, init, workdir, settings)
    _write(export.jobset(staged, settings, kind, image=image), to, settings)


def _stage(
    reference: str, overrides: list[str] | None, init: PurePath | None, workdir: PurePath | None, settings: CloudSettings
) -> Staged:
    """As a launch does: what the run needs into its work folder, prepared here."""
    config = load_run(reference, overrides, init)
    from tpulm.cloud import export, launch

    folder = workdir or as_path(f"gs://{settings.bucket}/{config.name}")
    launch.check_folder(folder)
    check_sources(config, folder, on_tpu=False)
    staged = launch.staged(config, folder / "cloud" / "inputs")
    prepare(staged, folder)
    with drawn_progress() as progress:
        return export.stage(staged, folder, settings, progress=progress)


def _write(text: str, to: Path | None, settings: CloudSettings) -> None:
    if to is None:
        sys.stdout.write(text)
    else:
        from tpulm import storage

        storage.write_atomic(to, text)
        console.print(f"written to {to}: {text.splitlines()[0].lstrip('# ').replace('FILE', str(to))}", soft_wrap=True)
    if settings.budget is not None or settings.deadline_hours is not None:
        said = "budget and deadline_hours hold for 'tpulm cloud launch' alone: nobody watches them here."
        console.print(f"[yellow]{said}[/]", soft_wrap=True)
