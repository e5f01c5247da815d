"""`tpulm cloud status`, `logs` and `ssh`: a run in the cloud, looked at from any machine."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tpulm.cli.cloud_options import Project
from tpulm.cli.cloud_shared import api_of, moment, newest_step, pace, project_of, seconds_left, step_of, total
from tpulm.cli.options import AsJson, WorkDir
from tpulm.cli.terminal import console, print_json, print_table
from tpulm.errors import ConfigError, TpulmError
from tpulm.readable import dollars, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpulm.cli.cloud_shared import Pace
    from tpulm.cloud.control import Control
    from tpulm.cloud.job import Job
    from tpulm.cloud.status import RunStatus, Spent
    from tpulm.cloud.supervisor_vm import Watch

Worker = Annotated[int, typer.Option(min=0, metavar="I", help="The worker, of several hosts; 0 is the first.")]


def status(workdir: WorkDir, project: Project = None, as_json: AsJson = False) -> None:
    """How a run in the cloud stands: its TPU, its workers, its checkpoints, its attempts, and what it has cost.

        tpulm cloud status --workdir gs://my-project-tpulm/first

    From any machine that may read the bucket; it changes nothing. Says so when the run goes on but nothing looks after it.
    """
    from tpulm.cloud import supervisor_vm
    from tpulm.cloud.compute import ComputeApi
    from tpulm.cloud.control import Control
    from tpulm.cloud.status import read_status

    with console.status(f"Looking at {workdir} …"):
        api = api_of(workdir, project)
        found = read_status(workdir, api, newest_step=lambda: newest_step(workdir))
        watch = supervisor_vm.watch(Control(workdir), ComputeApi(api.project) if api else None)
        speed = pace(workdir)
    _show(workdir, found, watch, speed)
    if as_json:
        print_json(_as_values(found, watch, speed))


def _show(workdir: PurePath, found: RunStatus, watch: Watch | None, speed: Pace | None) -> None:
    from tpulm.cloud.status import spent

    job, now = found.job, time.time()
    attempts = spent(job, now=now, newest_step=found.newest_step, prices=found.prices)
    step = step_of(job, speed, found.newest_step)
    percent = f" ({step / found.steps:.0%})" if found.steps else ""
    rows = {
        "run": f"{job.run}: {job.status}" + (", to be stopped" if job.status == "active" and job.wanted == "stopped" else ""),
        "message": job.message,
        "supervisor": _supervisor(found, watch),
        "TPU": f"{'spot ' * job.spot}{job.accelerator}"
        + (f", {job.node.name} in {job.node.zone}" if job.node else ", none now"),
        "state": _state(found),
        "workers": ", ".join(
            f"{beat.worker}: {beat.state or 'alive'}, {duration(now - beat.time)} ago" for beat in found.beats
        ),
        "step": f"{step:,} of {'?' if found.steps is None else f'{found.steps:,}'}{percent}",
        "checkpoint": f"step {found.newest_step:,}" if found.newest_step else "none yet",
        "model": f"{workdir}/export" if job.status == "done" else "",
        "speed": _speed(found, speed),
        "cost": total(attempts) + (f" of {dollars(found.budget)}" if found.budget is not None else ", no budget"),
    }
    print_table(f"{workdir}", {name: value for name, value in rows.items() if value})
    _show_attempts(job, attempts)
    if _needs_supervisor(found, watch):
        console.print(
            f"\n[bold yellow]nothing supervises this run[/]: what is preempted stays so, and nobody watches the budget. "
            f"Take it up with:\n    tpulm cloud attach --workdir {escape(str(workdir))}",
            soft_wrap=True,
        )


def _supervisor(found: RunStatus, watch: Watch | None) -> str:
    from tpulm.cloud.supervisor_vm import in_words

    if watch is not None and not (found.job.is_over and watch.state is None) and (watch.is_of_use or not found.supervisor):
        return in_words(watch)
    return found.supervisor or ("none" if found.needs_supervisor else "")


def _needs_supervisor(found: RunStatus, watch: Watch | None) -> bool:
    return found.needs_supervisor and not (watch is not None and watch.is_beginning)


def _state(found: RunStatus) -> str:
    if found.job.node is None:
        return ""
    if found.sight is None:
        return f"not known: {found.unseen} (last seen: {found.job.node.state or 'nothing'})"
    if found.sight.state is None:
        return f"gone, or not there yet (last seen: {found.job.node.state or 'nothing'})"
    return f"{found.sight.state}, {found.sight.workers} worker{'s' * (found.sight.workers != 1)}"


def _speed(found: RunStatus, speed: Pace | None) -> str:
    left = seconds_left(found.job, speed, found.steps, found.newest_step)
    if speed is None or found.job.status == "done":
        return ""
    tokens = f", {speed.tokens_per_second:,.0f} tokens/s" if speed.tokens_per_second else ""
    remaining = "" if left is None else f"; {duration(left)} of training left"
    return f"{1 / speed.seconds_per_step:,.2f} steps/s{tokens}{remaining}"


def _show_attempts(job: Job, attempts: Sequence[Spent]) -> None:
    from tpulm.cloud.job import Node

    if not (job.attempts or job.node):
        console.print("no attempt has begun yet")
        return
    costs = {item.attempt: item for item in attempts}
    rows = []
    for item in [*job.attempts, *([job.node] if job.node else [])]:
        number, ended = (item.attempt, None) if isinstance(item, Node) else (item.number, item.ended_at)
        begun = item.intended_at
        times = (moment(begun), moment(item.ready_at, after=begun), moment(ended, after=begun))
        one = costs[number]
        why = item.ending or "running"
        rows.append((f"{number}, {item.zone}", *times, why, f"{one.steps:,}", dollars(one.dollars)))
    print_table("", rows, header=("attempt", "begun", "ready", "ended", "why", "steps", "cost"))
    if job.attempts and job.status == "active":
        console.print(f"the last one ended because: {escape(job.attempts[-1].detail)}", soft_wrap=True)


def _as_values(found: RunStatus, watch: Watch | None, speed: Pace | None) -> dict[str, Any]:
    from dataclasses import asdict

    from tpulm.cloud.status import spent

    job, now = found.job, time.time()
    attempts = spent(job, now=now, newest_step=found.newest_step, prices=found.prices)
    return {
        **job.model_dump(mode="json", exclude={"attempts", "format"}),
        "attempts": [item.model_dump(mode="json") for item in job.attempts],
        "running": [vars(item) for item in attempts if not item.ending],
        "supervisor": found.supervisor,
        "needs_supervisor": _needs_supervisor(found, watch),
        "supervisor_vm": None if watch is None else asdict(watch),
        "state": found.sight.state if found.sight else None,
        "state_unknown_because": found.unseen or None,
        "workers": [
            {"worker": beat.worker, "state": beat.state, "seconds_since_heartbeat": now - beat.time} for beat in found.beats
        ],
        "checkpoint_step": found.newest_step,
        "steps": found.steps,
        "steps_per_second": None if speed is None else 1 / speed.seconds_per_step,
        "seconds_left": seconds_left(found.job, speed, found.steps, found.newest_step),
        "dollars": job.dollars(now),
        "budget": found.budget,
    }


def logs(
    workdir: WorkDir,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, across attempts, until the run is over.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, metavar="N", help="This attempt. Default: the newest.")] = None,
    worker: Worker = 0,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="What the VM says that supervises the run.")] = False,
) -> None:
    """What the trainer prints, as it lies in the bucket: the last 4 MiB of each attempt and worker.

        tpulm cloud logs --workdir gs://my-project-tpulm/first -f

    The log goes to stdout, everything else to stderr. Workers send theirs every 15 seconds.
    """
    from tpulm import storage
    from tpulm.cloud import logs as reading
    from tpulm.cloud.control import Control

    control = Control(workdir)
    if supervisor:
        _supervisor_log(control, follow=follow)
        return
    if follow:
        gaps = reading.follow(control, worker, attempt=attempt, write=_write, tell=_tell)
        if gaps:
            _tell(f"some of the log was lost {gaps} time{'s' * (gaps > 1)}")
        return
    number = reading.attempt_of(control.job(), attempt)
    path = reading.log_path(control, number, worker)
    if storage.info(path) is None:
        raise TpulmError(f"worker {worker} of attempt {number} has sent no log: there is no {path}")
    _tell(f"attempt {number}, worker {worker}")
    _write(storage.read_bytes(path))


def _supervisor_log(control: Control, *, follow: bool) -> None:
    from tpulm import storage
    from tpulm.cloud import supervisor_vm
    from tpulm.cloud.compute import ComputeApi

    vm, path = supervisor_vm.recorded(control), supervisor_vm.log_path(control)
    if vm is None:
        raise TpulmError("no VM supervises this run; 'tpulm cloud launch --supervise cloud' has one do it")
    if follow:
        if supervisor_vm.follow(control, ComputeApi(vm.project), write=_write, tell=_tell) is None:
            _tell("its VM is gone: nobody supervises this run; 'tpulm cloud attach' does")
        return
    if storage.info(path) is None:
        raise TpulmError(f"{vm} has sent no log yet: there is no {path}")
    _write(storage.read_bytes(path))


def _write(content: bytes) -> None:
    if content:
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()


def _tell(line: str) -> None:
    console.print(f"[bold]{escape(line)}[/]", soft_wrap=True)


def ssh(workdir: WorkDir, worker: Worker = 0, project: Project = None) -> None:
    """Print the gcloud command that opens a shell on a worker, and nothing else.

        $(tpulm cloud ssh --workdir gs://my-project-tpulm/first)

    It needs gcloud, and a network that lets ssh in; nothing else of tpulm does.
    """
    from tpulm.cloud.control import Control

    job = Control(workdir).job()
    node = job.node
    if node is None:
        why = f"the run is over ({job.status}): {job.message}" if job.status != "active" else "it waits for its next attempt"
        raise TpulmError(f"{job.run} has no TPU now: {why}")
    if not node.requested:
        raise TpulmError(f"{node.name} has not been created yet; 'tpulm cloud status' tells when it is")
    if node.ending is not None:
        raise TpulmError(f"{node.name} is being deleted ({node.ending}): {node.detail}")
    named = project_of(workdir, project)
    if not named:
        raise ConfigError("the project is not known; name it with --project")
    command = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", node.name]
    print(shlex.join([*command, "--zone", node.zone, "--project", named, "--worker", str(worker)]))
