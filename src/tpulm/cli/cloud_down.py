"""`tpulm cloud down`: the end of a run in the cloud, and of what it left."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tpulm.cli.cloud_options import Project
from tpulm.cli.cloud_shared import newest_step, project_of
from tpulm.cli.options import AsJson, WorkDir
from tpulm.cli.terminal import console, drawn_progress, print_json
from tpulm.errors import ConfigError, StorageError, StorageRefused, StorageUnavailable, TpulmError, some_of

if TYPE_CHECKING:
    from tpulm.cloud.job import Job
    from tpulm.cloud.teardown import Files


def down(
    workdir: WorkDir,
    delete_work: Annotated[bool, typer.Option("--delete-work", help="Delete the whole work folder, models and all.")] = False,
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Delete what was prepared from the text: W/corpus and W/dataset.")
    ] = False,
    delete_bucket: Annotated[
        bool, typer.Option("--delete-bucket", help="Delete the bucket, too, if nothing else is in it; with --delete-work.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without having the names typed.")] = False,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """End a run in the cloud: it saves and stops, its TPU is deleted, and all zones are looked at for what may be left.

        tpulm cloud down --workdir gs://my-project-tpulm/first

    The work folder stays, and 'tpulm cloud launch' goes on with it, unless you say what to delete. Ended half-way, the same
    command goes on.
    """
    from tpulm.cloud import teardown

    if delete_bucket and not delete_work:
        raise ConfigError("a bucket is deleted with what is in it: say --delete-work, too")
    found, damage = _job_of(workdir)
    named = project or "" if damage else project_of(workdir, project)  # no guess at where something may bill
    if not named:
        raise ConfigError(f"{damage or 'the project is not known'}; name the project with --project")
    if damage:
        console.print(f"[yellow]{escape(damage)}[/]", soft_wrap=True)
    bucket = f"gs://{teardown.bucket_of(workdir)}"
    if found is None and not damage and not (delete_work or delete_data):
        raise ConfigError(f"{workdir} has no run in the cloud; 'tpulm cloud audit' looks for what bills without one")
    if delete_bucket and (others := teardown.strangers(workdir, deleted=True)):
        raise ConfigError(f"{bucket} holds more than {workdir}: {some_of(others)}; nothing was stopped or deleted")
    if not yes:
        _confirm(workdir, work=delete_work, data=delete_data, bucket=bucket if delete_bucket else "")
    _stop_run(workdir, named, run=found.run if found else None)
    deleted = 0
    if delete_work or delete_data:
        with teardown.unused(workdir), drawn_progress() as progress:
            for files in _to_delete(workdir, work=delete_work, data=delete_data):
                deleted += teardown.delete_files(files, progress=progress)
                progress.note(f"deleted: {files.summary} of {workdir}")
    if delete_bucket:
        if others := teardown.strangers(workdir, deleted=False):
            raise TpulmError(f"{bucket} was not deleted: {some_of(others)} came into it meanwhile")
        teardown.delete_bucket(named, bucket.removeprefix("gs://"))
        console.print(f"deleted: {bucket}", soft_wrap=True)
    if as_json:
        print_json({"workdir": str(workdir), "objects_deleted": deleted, "bucket_deleted": delete_bucket, "left": []})


def _job_of(workdir: PurePath) -> tuple[Job | None, str]:
    """The job, if there is one; and what is wrong with it, if that is so."""
    from tpulm.cloud.control import Control

    try:
        found = Control(workdir).read()
    except (StorageRefused, StorageUnavailable):
        raise
    except StorageError as error:
        return None, str(error)
    return (found[0] if found else None), ""


def _stop_run(workdir: PurePath, project: str, *, run: str | None) -> None:
    """Raises TpulmError unless nothing of it bills."""
    from tpulm import interrupt
    from tpulm.cloud import supervisor_vm, teardown
    from tpulm.cloud.compute import AllResources, ComputeApi
    from tpulm.cloud.control import Control

    compute = ComputeApi(project)
    api = AllResources(project, compute)
    if run is not None:
        with interrupt.handled():
            job = teardown.stop(
                workdir,
                api,
                newest_step=lambda: newest_step(workdir),
                tell=lambda line: console.print(escape(line), soft_wrap=True),
            )
        console.print(f"{job.run} is over: {escape(job.message or job.status)}", soft_wrap=True)
    supervisor_vm.end(Control(workdir), compute, tell=lambda line: console.print(escape(line), soft_wrap=True))
    with drawn_progress() as progress:
        seen = teardown.left(api, workdir, run, progress=progress)
    if seen.resources:
        names = some_of([f"{item.name} in {item.zone} ({item.state})" for item in seen.resources])
        raise TpulmError(f"of {workdir} there still is {names}; 'tpulm cloud audit --delete' ends it")
    if seen.silent:
        raise TpulmError(f"{some_of(seen.silent)} could not be looked at, so something of {workdir} may be left there")
    console.print(f"[bold green]nothing is left that bills[/]: no TPU or VM of it in {seen.zones} zones of {escape(project)}")


def _to_delete(workdir: PurePath, *, work: bool, data: bool) -> list[Files]:
    from tpulm.cloud import teardown

    return [teardown.work_files(workdir)] if work else [teardown.data_files(workdir)] if data else []


def _confirm(workdir: PurePath, *, work: bool, data: bool, bucket: str) -> None:
    """Each is deleted only after its name was typed."""
    wanted = [(str(workdir), files.summary) for files in _to_delete(workdir, work=work, data=False)]
    if data and not work:
        wanted += [(f"{workdir}/dataset", files.summary) for files in _to_delete(workdir, work=False, data=True)]
    if bucket:
        wanted.append((bucket, "the bucket itself"))
    if wanted and not _is_asked():
        raise ConfigError("nobody is here to be asked; say --yes to have it deleted")
    for name, what in wanted:
        typed = typer.prompt(f"Type {name} to delete it for good ({what})", err=True, default="", show_default=False)
        if typed.strip() != name:
            console.print("that is another name: nothing was stopped or deleted")
            raise typer.Exit(1)


def _is_asked() -> bool:
    return sys.stdin.isatty()
