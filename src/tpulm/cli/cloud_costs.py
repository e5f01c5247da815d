"""`tpulm cloud audit` and `tpulm cloud cost`: what bills, and how much."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tpulm.cli.cloud_options import CloudFile, Project, cloud_settings
from tpulm.cli.cloud_shared import newest_step, pace, seconds_left, total
from tpulm.cli.options import AsJson, WorkDir
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table
from tpulm.errors import CloudRefused, ConfigError
from tpulm.readable import dollars, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpulm.cloud.audit import Audit, Finding
    from tpulm.cloud.supervisor_vm import Watch

_VERDICTS = {"live": "live", "going": "going", "orphan": "ORPHAN", "unknown": "not known"}


def audit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="With --delete: only these, also ones not known whose.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the orphans, and see that they are gone.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    cloud: CloudFile = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Does anything bill that no run needs? Looks at all zones of the project for what runs have left behind:
    TPUs, and VMs of supervisors.

        tpulm cloud audit

        tpulm cloud audit --delete

    A live run's TPU is left alone, whoever supervises it. Whose work folder cannot be read is "not known", and deleted only by
    name. TPUs that tpulm did not make are counted and never touched.

    Exit code 0: nothing is left behind; 1: something is, or may be; 4: the cloud refused to tell.
    """
    from tpulm.cloud.audit import audit as look
    from tpulm.cloud.audit import delete as remove
    from tpulm.cloud.compute import AllResources
    from tpulm.cloud.google_rest import GoogleRest

    if names and not delete:
        raise ConfigError("names are for --delete; without it everything is shown")
    settings = cloud_settings(cloud, project=project)
    api = AllResources(settings.project)
    with drawn_progress() as progress:
        found = look(api, rest=GoogleRest(settings.project, patience_seconds=20.0), progress=progress)
    _show(settings.project, found)
    targets = _targets(found, names) if delete else []
    done = None
    if targets:
        if not yes:
            _ask(targets)
        with drawn_progress() as progress:
            done = remove(api, targets, progress=progress)
        console.print(f"[bold green]{len(done.gone)} deleted[/], and seen to be gone")
        for item in done.left:
            console.print(f"[bold red]still there:[/] {escape(item.name)} in {item.zone}; run this again", soft_wrap=True)
    remaining = [item for item in found.of("orphan", "unknown") if item not in targets]
    if as_json:
        names_of = {"deleted": [item.name for item in done.gone], "left": [item.name for item in done.left]} if done else {}
        print_json({**_as_values(settings.project, found), **names_of})
    if remaining or (done and done.left):
        raise typer.Exit(1)
    if found.silent:
        raise typer.Exit(CloudRefused.exit_code)


def _targets(found: Audit, names: Sequence[str] | None) -> list[Finding]:
    """Raises ConfigError for a name that there is not, or that is a live run's."""
    if not names:
        return found.of("orphan")
    chosen = [item for item in found.findings if item.resource.name in names]
    for name in names:
        mine = [item for item in chosen if item.resource.name == name]
        if not mine:
            raise ConfigError(f"no TPU of ours is named '{name}'; nothing was deleted")
        if any(item.verdict == "live" for item in mine):
            raise ConfigError(f"{name} is the TPU of a live run ({mine[0].why}); end that with 'tpulm cloud down'")
    return chosen


def _ask(targets: Sequence[Finding]) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("nobody is here to be asked; say --yes to have it done")
    if not typer.confirm(f"Delete {', '.join(dict.fromkeys(item.resource.name for item in targets))}?", err=True):
        console.print("nothing was deleted")
        raise typer.Exit(1)


def _show(project: str, found: Audit) -> None:
    now = time.time()
    title = f"{project}: {found.zones} zones looked at"
    console.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    for item in found.findings:
        resource, age = item.resource, item.age(now)
        told = (
            f"{'spot ' * resource.spot}{resource.accelerator}",
            f"{resource.state}{', queued' * (resource.kind == 'queued resource')}",
            "of unknown age" if age is None else f"{duration(age)} old",
            f"{dollars(item.dollars_per_hour)} an hour{f' ({item.price.origin})' if item.price else ''}",
        )
        console.print(
            f"{_VERDICTS[item.verdict]}  {escape(resource.name)} in {resource.zone}: {', '.join(told)}", soft_wrap=True
        )
        console.print(f"    {escape(item.why)}", soft_wrap=True)
    for zone, why in found.silent.items():
        console.print(f"[bold yellow]{zone} could not be looked at:[/] {escape(why)}", soft_wrap=True)
    if found.others:
        console.print(f"{found.others} more are not tpulm's, and are left alone")
    orphans = found.of("orphan")
    if orphans:
        known = [item.dollars_per_hour for item in orphans if item.dollars_per_hour is not None]
        hourly = f"{'at least ' * (len(known) < len(orphans))}{dollars(sum(known))} an hour"
        console.print(
            f"[bold red]{len(orphans)} left behind[/], {hourly}; 'tpulm cloud audit --delete' ends them",
            soft_wrap=True,
        )
    if unknown := found.of("unknown"):
        console.print(
            f"[bold yellow]{len(unknown)} not known whose[/]; 'tpulm cloud audit --delete NAME' ends one", soft_wrap=True
        )
    if not (orphans or unknown or found.silent):
        console.print("[bold green]nothing is left behind[/]")


def _as_values(project: str, found: Audit) -> dict[str, Any]:
    now = time.time()
    findings = [
        {
            **vars(item.resource),
            "labels": dict(item.resource.labels),
            "verdict": item.verdict,
            "why": item.why,
            "age_seconds": item.age(now),
            "dollars_per_hour": item.dollars_per_hour,
            "price": None if item.price is None else vars(item.price),
        }
        for item in found.findings
    ]
    silent = dict(found.silent)
    return {"project": project, "zones": found.zones, "silent": silent, "others": found.others, "findings": findings}


def cost(workdir: WorkDir, as_json: AsJson = False) -> None:
    """What a run in the cloud has cost, what it costs now, and what it will have cost in the end.

        tpulm cloud cost --workdir gs://my-project-tpulm/first

    TPUs at the price of their zone when the run was launched (0 with a grant), from READY until gone; the work folder at the
    price of regional storage. "?" is a price that is not known, and is not counted. Google's bill has the last word: network
    and discounts are not counted.
    """
    from dataclasses import asdict

    from tpulm.cloud import supervisor_vm
    from tpulm.cloud.compute import ComputeApi
    from tpulm.cloud.control import Control
    from tpulm.cloud.prices import saved
    from tpulm.cloud.status import cost as reckon
    from tpulm.cloud.status import launched_with, total_steps

    control = Control(workdir)
    job = control.job()
    with console.status(f"Looking at {workdir} …"):
        newest = max(newest_step(workdir), job.newest_step)
        left = seconds_left(job, pace(workdir), total_steps(workdir), newest)
        found = reckon(job, workdir, now=time.time(), newest_step=newest, seconds_left=left, prices=saved(control.folder))
        watch = supervisor_vm.watch(control, ComputeApi(job.project) if job.project else None)
    budget = launched_with(control).get("budget")
    rows = [
        (
            str(item.attempt),
            item.zone,
            item.ending or "running",
            f"{item.steps:,}",
            duration(item.hours * 3600),
            dollars(item.dollars),
        )
        for item in found.attempts
    ]
    if rows:
        print_table(f"{workdir}", rows, header=("attempt", "zone", "why it ended", "steps", "billed", "cost"))
    why = "no speed yet" if found.hours_left is None else "no price"
    at_end = f"not known: {why}" if found.dollars_at_end is None else dollars(found.dollars_at_end)
    if found.dollars_at_end is not None and found.hours_left:
        at_end += f", after {duration(found.hours_left * 3600)} of training more"
    print_table(
        "" if rows else f"{workdir}",
        {
            "so far": total(found.attempts) + ("" if budget is None else f" of {dollars(budget)}"),
            "now": f"{dollars(found.dollars_per_hour)} an hour" if found.runs else "no TPU is billed",
            "at the end": at_end,
            "prices": "; ".join(map(str, found.prices)) or "as launched; where from is not written down",
            **({} if watch is None else {"supervisor": _supervisor(watch)}),
            "work folder": f"{found.stored.bytes / 1e9:,.2f} GB in {found.stored.objects:,} objects, "
            f"{dollars(found.stored.dollars_per_month)} a month in {found.stored.region} "
            f"({found.stored.prices_source}, {found.stored.prices_as_of})",
        },
    )
    if as_json:
        of_vm = {} if watch is None else {"supervisor": {"hours": watch.hours, "dollars": watch.dollars}}
        print_json({**asdict(found), "budget": budget, **of_vm})


def _supervisor(watch: Watch) -> str:
    price = f"${watch.price.dollars_per_hour} an hour ({watch.price.origin})" if watch.price else "a price not known"
    return (
        f"{dollars(watch.dollars)} more for {duration(watch.hours * 3600)} of {watch.vm.name}, an {watch.vm.machine_type} at "
        f"{price}, without its disk and address"
    )
