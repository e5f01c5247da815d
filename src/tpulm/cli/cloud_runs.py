"""`tpulm cloud launch`, `supervise`, `stop`, `status`, `logs`, `cost`, `down` and `ssh`: one run in the cloud."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpulm import cloud, storage
from tpulm.cli.options import FieldOptions, RunOptions, SetOptions, WorkDir, option, path_option
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say, show
from tpulm.errors import (
    EXIT_STOPPED,
    CloudRefused,
    ConfigError,
    InUse,
    StorageError,
    StorageRefused,
    StorageUnavailable,
    TpulmError,
    Unavailable,
    shorten,
    some_of,
)
from tpulm.readable import dollars, duration, plural
from tpulm.runtime import interrupt
from tpulm.storage.paths import bucket_and_name

if TYPE_CHECKING:
    from tpulm.config import RunConfig

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
    return cloud.settings.load(file, require=require, **{**defaults, **where})


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


_OF_LOGIN = ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG")  # paths by which google-auth finds credentials
_EXIT_CODES = {"done": 0, "stopped": EXIT_STOPPED, "failed": 1, "refused": CloudRefused.exit_code}


def launch(
    options: RunOptions,
    where: Annotated[SetOptions, WHERE._replace(fields=(*WHERE.fields, "budget"))],
    workdir: WorkDirInBucket = None,
    cloud_file: CloudFile = None,
    plan: Annotated[bool, option("Compile for the TPU first: does it fit, how long, what does it cost?")] = True,
    check: Annotated[bool, option("Look first at what 'tpulm cloud doctor' looks at.")] = True,
    prepare_on_tpu: Annotated[
        bool, option("Prepare tokenizer and dataset on the TPU, which bills meanwhile.", "--prepare-on-tpu")
    ] = False,
    python: Annotated[str | None, option("An interpreter on the VM's image that has this very tpulm.", metavar="PATH")] = None,
    detach: Annotated[bool, option("Supervise it in the background; see status and logs.", "--detach")] = False,
    yes: Yes = False,
) -> None:
    """A run on TPU VMs in the cloud, kept alive until its model is exported, and nothing left billing.

    Plans first, prepares tokenizer and dataset on this machine (into the bucket), creates a spot TPU VM, and watches over it:
    a VM that is preempted is replaced, and the run goes on from its checkpoint.

        tpulm cloud launch electra-small --accelerator v3-8 --bucket my-project-tpulm --budget 100

    Ctrl-C leaves the run as it is, without anybody who replaces a VM: 'tpulm cloud supervise' does, from any machine.
    'tpulm cloud stop' ends it. Launching a run that was stopped, or that failed, goes on with it.
    """
    config = options.load()
    settings = cloud_settings(cloud_file, where, require=("bucket", "accelerator", "zones"))
    folder = workdir or storage.as_path(f"gs://{settings.bucket}/{config.name}")
    cloud.launch.check_folder(folder)
    cloud.launch.check_extras(config, settings)
    if check:
        with console.status(f"Looking at {settings.project} …"):
            cloud.setup.require(settings)
    control = cloud.control.Control(folder)
    job = control.find()
    if job is not None and job.is_over and cloud.launch.is_done(config, folder):
        _end(job, folder)
    named, settings = settings, cloud.launch.offered(settings, cloud.tpu_api.TpuApi(settings.project), note=say)
    if job is not None and job.node is not None:
        launched = settings.model_copy(update={"zones": job.zones})
        cloud.launch.check_budget(launched, job.prices, spent=job.dollars(time.time()))
        say(f"{job.node.name} of this run is recorded in {job.node.zone}: the run is taken up.")
        cloud.launch.reattach(config, folder, launched if named.has_default_zones else settings)
    else:
        with console.status("Looking up prices …"):
            prices = cloud.prices.find_prices(named, settings.zones, note=say)
        if settings.budget is not None:
            settings = settings.model_copy(update={"zones": tuple(prices)})
        by_zone = {zone: price.dollars_per_hour for zone, price in prices.items()}
        cloud.launch.check_budget(settings, by_zone, spent=job.dollars(time.time()) if job else 0.0)
        check_sources(config, folder, on_tpu=prepare_on_tpu)
        estimate = _planned(config, settings, max(by_zone.values(), default=None)) if plan else None
        _confirm_cost(config, settings, folder, prices, estimate, yes=yes)
        staged = cloud.launch.staged(config, folder / "cloud" / "inputs")
        if not prepare_on_tpu or control.is_complete():  # of a complete run that only looks whether it is this one
            prepare_in_bucket(staged, folder)
        with drawn_progress() as progress:
            cloud.launch.launch(staged, folder, settings, prices=by_zone, python=python, progress=progress)
        cloud.prices.save(control.folder, prices)
    if detach:
        _detach(folder)
    else:
        _end(_supervise(folder), folder)


def supervise(workdir: WorkDir, loop: Annotated[bool, option("Go on until the run is over.", "--loop")] = False) -> None:
    """Look at a run once, and do what is due: replace a TPU VM that is gone, keep to the budget, delete what has ended.

        tpulm cloud supervise --workdir gs://my-project-tpulm/first

    For cron, a systemd timer, or a Cloud Run job, every minute or few, on any machine with a login; or once with --loop. While
    another process supervises the run, a pass does nothing.

    Exit code 0: the run is over, done or stopped, and there is nothing more to do; 75: call again; 4: the run is over since the
    cloud refused it, or this login was refused now; 1: the run has failed, or something cannot be deleted.
    """
    try:
        job = _supervise(workdir, once=not loop)
    except (InUse, Unavailable) as error:
        if loop:
            raise
        _log(str(error))
        raise typer.Exit(EXIT_STOPPED) from error
    if job.is_over:
        _show_end(job, workdir)
        raise typer.Exit(0 if job.status == "stopped" else _EXIT_CODES[job.status])
    print_json(job.model_dump(mode="json"))
    raise typer.Exit(EXIT_STOPPED)


def stop(workdir: WorkDir) -> None:
    """Have a run save and stop, and its VM deleted. 'tpulm cloud launch' with the same run goes on."""
    project = cloud.launch.settings_of(workdir).project
    with interrupt.handled():
        job = cloud.teardown.stop(workdir, cloud.tpu_api.TpuApi(project), log=_log)
    _show_end(job, workdir)


# -- steps of a launch --------------------------------------------------------------------------------------------------


def _planned(config: RunConfig, settings: cloud.settings.CloudSettings, per_hour: float | None) -> dict[str, Any]:
    """What `tpulm plan` says of the run; raises ConfigError where it does not fit, CloudRefused where it costs too much."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tpulm.plan.analysis import DoesNotFit
    from tpulm.plan.estimate import plan

    try:
        with drawn_progress() as progress:
            planned = plan(config, settings.kind, progress=progress)
    except DoesNotFit as error:
        raise ConfigError(
            f"{config.name} does not fit {settings.kind.name}: {error}\n"
            f"'tpulm plan … --accelerator {settings.kind.name} --fit' looks for settings that fit"
        ) from error
    cost = planned.dollars(per_hour)
    if cost is not None and settings.budget is not None and cost > settings.budget:
        raise CloudRefused(
            f"{config.name} takes about {duration(3600 * planned.hours)} on {settings.kind.name}, {dollars(cost)}, and the "
            f"budget is {dollars(settings.budget)}; raise it with --budget, or train for fewer steps"
        )
    return {"hours": planned.hours, "dollars": cost, "tokens_per_second": planned.values()["tokens_per_second"]}


def _confirm_cost(
    config: RunConfig,
    settings: cloud.settings.CloudSettings,
    folder: PurePath,
    prices: Mapping[str, cloud.prices.Price],
    estimate: dict[str, Any] | None,
    *,
    yes: bool,
) -> None:
    unknown = [zone for zone in settings.zones if zone not in prices]
    facts = [*map(str, prices.values()), *([f"not known in {', '.join(unknown)}"] if unknown else [])]
    rows = {
        "run": f"{config.name}, {config.train.steps:,} steps",
        "work folder": str(folder),
        "TPU": f"{'spot ' * settings.spot}{settings.kind.name} in {', '.join(settings.zones)}; project {settings.project}",
        "price": "\n".join(facts),
        "budget": "none: nothing stops it before it is done" if settings.budget is None else dollars(settings.budget),
    }
    if estimate is not None:
        cost = dollars(estimate["dollars"])
        speed = f"{estimate['tokens_per_second']:,.0f} tokens/s"
        rows["estimate"] = f"{duration(3600 * estimate['hours'])} of training, {cost}, {speed}"
    print_table("To be launched", rows, to=console)
    if not yes and not (is_asked() and typer.confirm("Launch it?", err=True)):
        raise ConfigError("nothing was launched; --yes launches without asking")


def check_sources(config: RunConfig, folder: PurePath, *, on_tpu: bool) -> None:
    """Raises ConfigError for a corpus, a vocabulary or a starting model that is not there, before anything that takes long."""
    from tpulm.config.schema import DATASETS
    from tpulm.corpus.sources import find_files, refuse_unused_settings
    from tpulm.pipeline.preparation import check_named_inputs
    from tpulm.workfolder import is_prepared

    datasets = [source.path for source in config.corpus.sources if source.format in DATASETS]
    local = [source.path for source in config.corpus.sources if source.path and not storage.is_remote(source.path)]
    if on_tpu and datasets:
        raise ConfigError(f"--prepare-on-tpu: {datasets[0]} is read with packages that workers do not have; leave it out")
    if on_tpu and local:
        raise ConfigError(f"--prepare-on-tpu: {local[0]} is on this machine; copy the corpus to a bucket and name it there")
    if (start := config.train.start_from) is not None and not storage.is_remote(start) and storage.exists(start):
        from tpulm.convert.huggingface import model_folder

        model_folder(start)  # raises for an export that is older than its checkpoint, which stays here
    if not is_prepared(folder, "dataset"):
        check_named_inputs(config)
        refuse_unused_settings(config.corpus.sources, find_files(config.corpus.sources))


def prepare_in_bucket(config: RunConfig, folder: PurePath) -> None:
    """Tokenizer and dataset in the bucket."""
    from tpulm import workfolder
    from tpulm.pipeline import preparation

    with drawn_progress() as progress, workfolder.working_in(config, folder, stage="dataset", progress=progress) as work:
        preparation.prepare_data(config, work.path, progress=progress)


def _supervise(folder: PurePath, *, once: bool = False) -> cloud.job.Job:
    settings = cloud.launch.settings_of(folder)
    supervisor = cloud.launch.supervisor(folder, settings, cloud.tpu_api.TpuApi(settings.project), log=_log)
    with interrupt.handled():
        return supervisor.run_once() if once else supervisor.run()


def _detach(folder: PurePath) -> None:
    """A process of its own that outlives this one and its terminal."""
    log = storage.cache_folder("supervisors") / f"{folder.name}-{int(time.time())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        command = [sys.executable, "-m", "tpulm", "cloud", "supervise", "--loop", "--workdir", str(folder)]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        named = {name: str(Path(os.environ[name]).absolute()) for name in _OF_LOGIN if os.environ.get(name)}
        environment = {**os.environ, **named}  # they may be relative to this folder
        started = subprocess.Popen(command, **streams, start_new_session=True, cwd=Path.home(), env=environment)
    show(f"Process {started.pid} of this machine supervises it, and writes to {log}.")
    show(f"This machine has to stay up. 'tpulm cloud status --workdir {folder}' says how it goes, from anywhere.")
    print_json({"workdir": str(folder), "process": started.pid, "log": str(log)})


def _end(job: cloud.job.Job, folder: PurePath) -> None:
    _show_end(job, folder)
    raise typer.Exit(_EXIT_CODES.get(job.status, 1))


def _show_end(job: cloud.job.Job, folder: PurePath) -> None:
    _show_attempts(job, cloud.status.spent(job, now=time.time(), newest_step=job.newest_step))
    show(f": {job.message or 'no VM is left'}", lead=f"\n{job.status}", style="bold")
    show(f"The model is in {folder}/export." if job.status == "done" else f"The work folder is {folder}.")
    print_json(job.model_dump(mode="json"))


# -- output ------------------------------------------------------------------------------------------------------------


def _log(line: str) -> None:
    say(f" {line}", lead=time.strftime("%H:%M:%S"), style="dim")


def _write(content: bytes) -> None:
    """A log, to stdout."""
    if content:
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()


# -- status -------------------------------------------------------------------------------------------------------------

Worker = Annotated[int, option("The worker, of several hosts; 0 is the first.", min=0, metavar="I")]


def status(workdir: WorkDir) -> None:
    """How a run in the cloud stands: its TPU, its workers, its checkpoints, its attempts, and what it has cost.

        tpulm cloud status --workdir gs://my-project-tpulm/first

    From any machine that may read the bucket; it changes nothing. Says so when the run goes on but nothing looks after it.
    """
    with console.status(f"Looking at {workdir} …"):
        api = cloud.tpu_api.TpuApi(cloud.control.Control(workdir).job().project)
        status = cloud.status.read_status(workdir, api, _speed(workdir))
    _show_status(workdir, status)
    print_json(_status_values(status))


def _speed(workdir: PurePath) -> cloud.status.Speed | None:
    from tpulm.train.metrics import read_metrics

    try:
        return cloud.status.speed_of((record.step, record.values) for record in read_metrics(workdir) if record.kind == "train")
    except (TpulmError, KeyError):
        return None


def _show_status(workdir: PurePath, status: cloud.status.RunStatus) -> None:
    """At most eight lines of 80 columns; --json has the rest."""
    job, node, now = status.job, status.job.node, time.time()
    attempts = cloud.status.spent(job, now=now, newest_step=status.newest_step, prices=status.prices)
    tpu, speed, place = f"{'spot ' * job.spot}{job.accelerator}", "", ""
    if node is not None:
        place, node_status = f", {node.name} in {node.zone}", status.node
        tpu += f", not known: {status.unseen}" if node_status is None else f", {node_status.state or 'gone, or not there yet'}"
    if status.heartbeats:
        states = Counter(beat.state or "alive" for beat in status.heartbeats)
        tpu += "; workers: " + ", ".join(f"{count} {state}" for state, count in states.items())
        tpu += f", {duration(now - min(beat.time for beat in status.heartbeats))} ago"
    if status.speed is not None and job.status != "done":
        tokens, left = status.speed.tokens_per_second, status.seconds_left
        speed = f"{1 / status.speed.seconds_per_step:,.2f} steps/s{f', {tokens:,.0f} tokens/s' if tokens else ''}"
        speed += "" if left is None else f"; {duration(left)} and {dollars(left / 3600 * job.dollars_per_hour)} to the end"
    endings = Counter(item.ending or "running" for item in attempts)
    known = sum(item.dollars or 0.0 for item in attempts)
    rows = {
        "TPU": tpu,
        "step": f"{status.step:,} of {'?' if status.steps is None else f'{status.steps:,}'}"
        + (f" ({status.step / status.steps:.0%})" if status.steps else "")
        + (f", checkpoint {status.newest_step:,}" if status.newest_step else ", no checkpoint yet"),
        "speed": speed,
        "spent": _total(attempts)
        + (", no budget" if status.budget is None else f" of {dollars(status.budget)}; {dollars(status.budget - known)} left"),
        "attempts": ", ".join(f"{count} {ending}" for ending, count in endings.items()),
        "the last": shorten(job.attempts[-1].detail, 60, quoted=False) if job.attempts and not job.is_over else "",
    }
    print_table(f"{workdir}: {job.status}{place}", {name: value for name, value in rows.items() if value})
    show(f"{'next':<10}{_next(workdir, status, now)}")


def _next(workdir: PurePath, status: cloud.status.RunStatus, now: float) -> str:
    """What happens next, and who sees to it."""
    job, node = status.job, status.job.node
    if job.is_over:
        return f"the model is in {workdir}/export" if job.status == "done" else f"nothing: {job.message}"
    if status.needs_supervisor:
        return f"unsupervised: tpulm cloud supervise --loop -w {workdir}"
    if node is None:
        what = f"another attempt in {duration(max(0.0, job.not_before - now))}"
    elif job.wanted == "stopped" or node.asked_because or node.ending:
        what = "it saves if it still runs, and its TPU is deleted"
    else:
        what = "it trains; then its TPU is deleted"
    return f"{what} (by {status.supervisor or 'the next pass'})"


def _show_attempts(job: cloud.job.Job, attempts: Sequence[cloud.status.Spent]) -> None:
    if not job.begun:
        show("no attempt has begun yet")
        return
    rows = []
    for item, cost in zip(job.begun, attempts, strict=True):
        moments = (item.intended_at, item.ready_at, getattr(item, "ended_at", None))
        times = (_moment(at, after=None if n == 0 else item.intended_at) for n, at in enumerate(moments))
        counted = (f"{cost.steps:,}", duration(cost.hours * 3600), dollars(cost.dollars))
        rows.append((f"{cost.attempt}, {cost.zone}", *times, item.ending or "running", *counted))
    print_table("Attempts", rows, header=("attempt", "begun", "ready", "ended", "why", "steps", "billed", "cost"))
    if job.attempts and job.status != "done":
        show(f"the last one ended because: {job.attempts[-1].detail}")


def _total(attempts: Sequence[cloud.status.Spent]) -> str:
    """What they have cost together; "at least" that where a price is not known."""
    known = [item.dollars for item in attempts if item.dollars is not None]
    return "at least " * (len(known) < len(attempts)) + dollars(sum(known))


def _moment(at: float | None, *, after: float | None) -> str:
    """In local time; without the day where that is the day of `after`."""
    if at is None:
        return "-"
    local = time.localtime(at)
    same_day = after is not None and time.localtime(after)[:3] == local[:3]
    return time.strftime("%H:%M" if same_day else "%m-%d %H:%M", local)


def _status_values(status: cloud.status.RunStatus) -> dict[str, Any]:
    job, now = status.job, time.time()
    attempts = cloud.status.spent(job, now=now, newest_step=status.newest_step, prices=status.prices)
    return {
        **job.model_dump(mode="json", exclude={"attempts", "format"}),
        "attempts": [item.model_dump(mode="json") for item in job.attempts],
        "running": [vars(item) for item in attempts if not item.ending],
        **{
            name: getattr(status, name)
            for name in ("supervisor", "needs_supervisor", "last_pass", "steps", "seconds_left", "budget")
        },
        "state": status.node.state if status.node else None,
        "state_unknown_because": status.unseen or None,
        "workers": [
            {"worker": beat.worker, "state": beat.state, "seconds_since_heartbeat": now - beat.time}
            for beat in status.heartbeats
        ],
        "checkpoint_step": status.newest_step,
        "steps_per_second": None if status.speed is None else 1 / status.speed.seconds_per_step,
        "dollars": job.dollars(now),
    }


def logs(
    workdir: WorkDir,
    follow: Annotated[bool, option("Go on, across attempts, until the run is over.", "--follow", "-f")] = False,
    attempt: Annotated[int | None, option("This attempt. Default: the newest.", min=1, metavar="N")] = None,
    worker: Worker = 0,
) -> None:
    """What the trainer prints, as it lies in the bucket: the last 4 MiB of each attempt and worker.

        tpulm cloud logs --workdir gs://my-project-tpulm/first -f

    The log goes to stdout, notes to stderr. Workers send theirs every 15 seconds.
    """
    control = cloud.control.Control(workdir)
    if follow:
        if gaps := cloud.status.follow(control, worker, attempt=attempt, write=_write, log=partial(say, style="bold")):
            say(f"some of the log was lost {plural(gaps, 'time')}", style="bold")
        return
    number = cloud.status.attempt_of(control.job(), attempt)
    path = cloud.status.log_path(control, number, worker)
    if storage.info(path) is None:
        raise TpulmError(f"worker {worker} of attempt {number} has sent no log: there is no {path}")
    say(f"attempt {number}, worker {worker}", style="bold")
    _write(storage.read_bytes(path))


def ssh(workdir: WorkDir, worker: Worker = 0) -> None:
    """Print the gcloud command that opens a shell on a worker, and nothing else.

        $(tpulm cloud ssh --workdir gs://my-project-tpulm/first)

    It needs gcloud, and a network that lets ssh in; nothing else of tpulm does.
    """
    job = cloud.control.Control(workdir).job()
    node = job.node
    if node is None:
        why = f"the run is over ({job.status}): {job.message}" if job.status != "active" else "it waits for its next attempt"
        raise TpulmError(f"{job.run} has no TPU now: {why}")
    if not node.requested:
        raise TpulmError(f"{node.name} has not been created yet; 'tpulm cloud status' tells when it is")
    if node.ending is not None:
        raise TpulmError(f"{node.name} is being deleted ({node.ending}): {node.detail}")
    command = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", node.name]
    print(shlex.join([*command, "--zone", node.zone, "--project", job.project, "--worker", str(worker)]))


def cost(workdir: WorkDir) -> None:
    """What a run in the cloud has cost, what it costs now, and what it will have cost in the end.

        tpulm cloud cost --workdir gs://my-project-tpulm/first

    TPUs at the price of their zone when the run was launched (0 with a grant), from READY until gone; the work folder at the
    price of regional storage. "?" is a price that is not known, and is not counted. Google's bill has the last word: network
    and discounts are not counted.
    """
    with console.status(f"Looking at {workdir} …"):
        status = cloud.status.read_status(workdir, None, _speed(workdir))
        cost, job = cloud.status.cost_of(status, workdir, now=time.time()), status.job
    _show_attempts(job, cost.attempts)
    why = "no speed yet" if cost.hours_left is None else "no price"
    at_end = f"not known: {why}" if cost.dollars_at_end is None else dollars(cost.dollars_at_end)
    if cost.dollars_at_end is not None and cost.hours_left:
        at_end += f", after {duration(cost.hours_left * 3600)} of training more"
    rows = {
        "so far": _total(cost.attempts) + ("" if status.budget is None else f" of {dollars(status.budget)}"),
        "now": f"{dollars(cost.dollars_per_hour)} an hour" if cost.runs else "no TPU is billed",
        "at the end": at_end,
        "prices": "; ".join(map(str, cost.prices)) or "as launched; where from is not written down",
    }
    rows["work folder"] = (
        f"{cost.stored.bytes / 1e9:,.2f} GB in {cost.stored.objects:,} objects, "
        f"{dollars(cost.stored.dollars_per_month)} a month in {cost.stored.region} "
        f"({cost.stored.prices_source}, {cost.stored.prices_as_of})"
    )
    print_table(f"{workdir}", rows)
    print_json({**asdict(cost), "budget": status.budget})


def down(
    workdir: WorkDir,
    where: Project,
    delete_work: Annotated[bool, option("Delete the whole work folder, models and all.", "--delete-work")] = False,
    delete_data: Annotated[
        bool, option("Delete what was prepared from the text: W/corpus and W/dataset.", "--delete-data")
    ] = False,
    delete_bucket: Annotated[
        bool, option("Delete the bucket, too, if nothing else is in it; with --delete-work.", "--delete-bucket")
    ] = False,
    yes: Annotated[bool, option("Delete without having the names typed.", "--yes", "-y")] = False,
) -> None:
    """End a run in the cloud: it saves and stops, its TPU is deleted, and all zones are looked at for what may be left.

        tpulm cloud down --workdir gs://my-project-tpulm/first

    The work folder stays, and 'tpulm cloud launch' goes on with it, unless you say what to delete. Ended half-way, the same
    command goes on.
    """
    if delete_bucket and not delete_work:
        raise ConfigError("a bucket is deleted with what is in it: say --delete-work, too")
    teardown = cloud.teardown
    job, damage = _job_of(workdir)
    project, launched = where.get("project"), job.project if job else ""
    if job is None and not damage:
        launched = str(cloud.control.Control(workdir).launched_with().get("project") or "")
    if project and launched and project != launched:
        raise ConfigError(f"{workdir} was launched in the project {launched}, not in {project}; leave --project out")
    named = launched or project or ("" if damage else cloud.settings.default_project())  # no guess at where something may bill
    if not named:
        raise ConfigError(f"{damage or 'the project is not known'}; name the project with --project")
    if damage:
        say(damage, style="yellow")
    bucket = f"gs://{bucket_and_name(workdir)[0]}"
    if job is None and not damage and not (delete_work or delete_data):
        raise ConfigError(f"{workdir} has no run in the cloud; 'tpulm cloud audit' looks for what bills without one")
    if delete_bucket and (others := teardown.foreign_objects(workdir, deleted=True)):
        raise ConfigError(f"{bucket} holds more than {workdir}: {some_of(others)}; nothing was stopped or deleted")

    def files() -> cloud.teardown.Files | None:
        return teardown.files_of(workdir, data_only=not delete_work) if delete_work or delete_data else None

    if not yes and (doomed := files()) is not None:
        if not is_asked():
            raise ConfigError("not a terminal: pass --yes to confirm")
        names = {str(workdir) if delete_work else f"{workdir}/dataset": doomed.summary}
        for name, what in (names | ({bucket: "the bucket itself"} if delete_bucket else {})).items():
            typed = typer.prompt(f"Type {name} to delete it for good ({what})", err=True, default="", show_default=False)
            if typed.strip() != name:
                say("that is another name: nothing was stopped or deleted")
                raise typer.Exit(1)
    with drawn_progress() as progress:
        zones = teardown.end(workdir, named, run=job.run if job else None, log=say, progress=progress)
    show(f": no TPU or VM of it in {zones} zones of {named}", lead="nothing is left that bills", style="bold green")
    deleted = 0
    if delete_work or delete_data:
        with teardown.locked_for_deletion(workdir), drawn_progress() as progress:
            if (left := files()) is not None:  # a run that saved when it stopped has more than before
                deleted = teardown.delete_files(left, progress=progress)
                progress.note(f"deleted: {left.summary} of {workdir}")
    if delete_bucket:
        if others := teardown.foreign_objects(workdir, deleted=False):
            raise TpulmError(f"{bucket} was not deleted: {some_of(others)} came into it meanwhile")
        teardown.delete_bucket(named, bucket.removeprefix("gs://"))
        show(f"deleted: {bucket}")
    print_json({"workdir": str(workdir), "objects_deleted": deleted, "bucket_deleted": delete_bucket, "left": []})


def _job_of(workdir: PurePath) -> tuple[cloud.job.Job | None, str]:
    """The job, if there is one; and what is wrong with it, if that is so."""
    try:
        return cloud.control.Control(workdir).find(), ""
    except (StorageRefused, StorageUnavailable):
        raise
    except StorageError as error:
        return None, str(error)
