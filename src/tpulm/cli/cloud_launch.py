"""`tpulm cloud launch`, `attach` and `stop`: a run begun, watched over, and ended."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

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
    WorkDirInBucket,
    Zones,
    cloud_settings,
)
from tpulm.cli.cloud_shared import newest_step
from tpulm.cli.options import AsJson, Init, Overrides, RunFile, WorkDir, load_run, vocabulary_of
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table
from tpulm.errors import EXIT_STOPPED, CloudRefused, ConfigError
from tpulm.readable import dollars, duration
from tpulm.storage import as_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpulm.cloud.job import Job
    from tpulm.cloud.prices import Price
    from tpulm.cloud.settings import CloudSettings
    from tpulm.config import RunConfig

_EXIT_CODES = {"done": 0, "stopped": EXIT_STOPPED, "failed": 1, "refused": CloudRefused.exit_code}


def launch(
    reference: RunFile,
    workdir: WorkDirInBucket = None,
    overrides: Overrides = None,
    init: Init = None,
    cloud: CloudFile = None,
    project: Project = None,
    zone: Zones = None,
    bucket: Bucket = None,
    accelerator: AcceleratorType = None,
    spot: Spot = None,
    budget: Budget = None,
    service_account: ServiceAccount = None,
    supervise: Supervise = None,
    plan: Annotated[bool, typer.Option(help="Compile for the TPU first: does it fit, how long, what does it cost?")] = True,
    check: Annotated[bool, typer.Option(help="Look first at what 'tpulm cloud doctor' looks at.")] = True,
    prepare_on_tpu: Annotated[
        bool, typer.Option("--prepare-on-tpu", help="Prepare tokenizer and dataset on the TPU, which bills meanwhile.")
    ] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="An interpreter on the VM's image that has this very tpulm.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Watch over it in the background; see status and logs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """A run on TPU VMs in the cloud, kept alive until its model is exported, and nothing left billing.

    Plans first, prepares tokenizer and dataset on this machine (into the bucket), creates a spot TPU VM, and watches over it:
    a VM that is preempted is replaced, and the run goes on from its checkpoint.

        tpulm cloud launch electra-small --accelerator v3-8 --bucket my-project-tpulm --budget 100

    Ctrl-C leaves the run as it is, without anybody who replaces a VM: 'tpulm cloud attach' watches over it again, from any
    machine. 'tpulm cloud stop' ends it. Launching a run that was stopped, or that failed, goes on with it.

    --supervise cloud puts whoever watches over it on a small VM of Compute Engine, which deletes itself at the end: this
    machine may be switched off.
    """
    config = load_run(reference, overrides, init)
    settings = cloud_settings(
        cloud,
        require=("bucket", "accelerator", "zones"),
        project=project,
        zones=tuple(zone or ()),
        bucket=bucket,
        accelerator=accelerator,
        spot=spot,
        budget=budget,
        service_account=service_account,
        supervise=supervise,
    )
    from tpulm.cloud import launch as launching
    from tpulm.cloud import prices
    from tpulm.cloud.control import Control
    from tpulm.cloud.tpu_api import TpuApi

    folder = workdir or as_path(f"gs://{settings.bucket}/{config.name}")
    launching.check_folder(folder)
    in_cloud = settings.supervise == "cloud"
    if check:
        _check(settings)
        if in_cloud:
            from tpulm.cloud import supervisor_vm

            supervisor_vm.check(settings)
    control = Control(folder)
    job = found[0] if (found := control.read()) else None
    if job is not None and control.is_complete() and job.is_over:
        _end(job, folder, as_json)
    named, settings = settings, launching.offered(settings, TpuApi(settings.project))
    if job is not None and job.node is not None:
        launching.check_means(settings.model_copy(update={"zones": job.zones}), job.prices, spent=job.dollars(time.time()))
        console.print(f"{job.node.name} of this run is recorded in {job.node.zone}: the run is taken up.", soft_wrap=True)
        launching.take_up(config, folder, settings)
    else:
        with console.status("Looking up prices …"):
            found_prices = prices.of(named, settings.zones, note=lambda text: console.print(escape(text), soft_wrap=True))
        if settings.budget is not None:
            settings = settings.model_copy(update={"zones": tuple(found_prices)})
        by_zone = {zone: price.dollars_per_hour for zone, price in found_prices.items()}
        dearest = max(by_zone.values(), default=None)
        launching.check_means(settings, by_zone, spent=job.dollars(time.time()) if job else 0.0)
        check_sources(config, folder, on_tpu=prepare_on_tpu)
        estimate = _planned(config, settings, dearest) if plan else None
        _agree(config, settings, folder, found_prices, estimate, yes=yes)
        staged = launching.staged(config, folder / "cloud" / "inputs")
        if not prepare_on_tpu:
            prepare(staged, folder)
        with drawn_progress() as progress:
            launching.launch(staged, folder, settings, prices=by_zone, python=python, progress=progress)
        prices.save(control.folder, found_prices)
    if in_cloud:
        _supervise_in_cloud(folder, settings, follow=not detach, as_json=as_json)
    elif detach:
        _detach(folder, as_json)
    else:
        _end(_watch(folder, settings), folder, as_json)


def attach(
    workdir: WorkDir,
    here: Annotated[bool, typer.Option("--here", help="Not to look for a VM that supervises the run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch over a run that was launched, from here or from another machine: until it ends, or Ctrl-C.

    Where a VM supervises it (launch --supervise cloud), this shows what that says, and takes over when the VM is gone.
    """
    from tpulm.cloud.launch import settings_of

    settings = settings_of(workdir)
    job = None if here else _follow(workdir, settings.project)
    _end(job or _watch(workdir, settings), workdir, as_json)


def stop(workdir: WorkDir, as_json: AsJson = False) -> None:
    """Have a run save and stop, and its VM deleted. 'tpulm cloud launch' with the same run goes on."""
    from tpulm import interrupt
    from tpulm.cloud import supervisor_vm, teardown
    from tpulm.cloud.compute import ComputeApi
    from tpulm.cloud.control import Control
    from tpulm.cloud.launch import settings_of
    from tpulm.cloud.tpu_api import TpuApi

    project = settings_of(workdir).project
    with interrupt.handled():
        job = teardown.stop(workdir, TpuApi(project), newest_step=lambda: newest_step(workdir), tell=_tell)
        supervisor_vm.end(Control(workdir), ComputeApi(project), tell=_tell)
    _show(job, workdir)
    if as_json:
        print_json(job.model_dump(mode="json"))


# -- steps of a launch --------------------------------------------------------------------------------------------------


def _check(settings: CloudSettings) -> None:
    """Raises CloudRefused with all that is wrong, and what to do about it."""
    from tpulm.cloud.doctor import examine

    with console.status(f"Looking at {settings.project} …"):
        wrong = [check for check in examine(settings) if check.ok is False]
    if wrong:
        listed = "\n".join(f"  {check.name}: {check.found}" + (f"; {check.remedy}" if check.remedy else "") for check in wrong)
        raise CloudRefused(
            f"nothing was launched:\n{listed}\n'tpulm cloud doctor' shows all that is looked at; --no-check launches even so"
        )


def _planned(config: RunConfig, settings: CloudSettings, per_hour: float | None) -> dict[str, Any]:
    """What `tpulm plan` says of the run; raises ConfigError where it does not fit, CloudRefused where it costs too much."""
    import os

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tpulm.plan import DoesNotFit, plan

    try:
        with drawn_progress() as progress:
            made = plan(config, settings.kind, **vocabulary_of(config), progress=progress)
    except DoesNotFit as error:
        raise ConfigError(
            f"{config.name} does not fit {settings.kind.name}: {error}\n"
            f"'tpulm plan … --accelerator {settings.kind.name} --fit' looks for settings that fit"
        ) from error
    cost = made.dollars(per_hour)
    if cost is not None and settings.budget is not None and cost > settings.budget:
        raise CloudRefused(
            f"{config.name} takes about {duration(3600 * made.hours)} on {settings.kind.name}, {dollars(cost)}, and the budget "
            f"is {dollars(settings.budget)}; raise it with --budget, or train for fewer steps"
        )
    return {"hours": made.hours, "dollars": cost, "tokens_per_second": made.values()["tokens_per_second"]}


def _agree(
    config: RunConfig,
    settings: CloudSettings,
    folder: PurePath,
    prices: Mapping[str, Price],
    estimate: dict[str, Any] | None,
    *,
    yes: bool,
) -> None:
    unknown = [zone for zone in settings.zones if zone not in prices]
    told = [*map(str, prices.values()), *([f"not known in {', '.join(unknown)}"] if unknown else [])]
    rows = {
        "run": f"{config.name}, {config.train.steps:,} steps",
        "work folder": str(folder),
        "TPU": f"{'spot ' * settings.spot}{settings.kind.name} in {', '.join(settings.zones)}; project {settings.project}",
        "price": "\n".join(told),
        "budget": "none: nothing stops it before it is done" if settings.budget is None else dollars(settings.budget),
    }
    if estimate is not None:
        cost = dollars(estimate["dollars"])
        speed = f"{estimate['tokens_per_second']:,.0f} tokens/s"
        rows["estimate"] = f"{duration(3600 * estimate['hours'])} of training, {cost}, {speed}"
    print_table("To be launched", rows)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Launch it?", err=True)):
        raise ConfigError("nothing was launched; --yes launches without asking")


def check_sources(config: RunConfig, folder: PurePath, *, on_tpu: bool) -> None:
    """Raises ConfigError for a corpus that is not there, before anything that takes long."""
    from tpulm import storage
    from tpulm.config.source import DATASETS
    from tpulm.corpus import find_files

    datasets = [source.path for source in config.corpus.sources if source.format in DATASETS]
    local = [source.path for source in config.corpus.sources if source.path and not storage.is_remote(source.path)]
    if on_tpu and datasets:
        raise ConfigError(
            f"--prepare-on-tpu: {datasets[0]} is read with packages that workers do not have; leave the option out, and the "
            "dataset is prepared from here"
        )
    if on_tpu and local:
        raise ConfigError(f"--prepare-on-tpu: {local[0]} is on this machine; copy the corpus to a bucket and name it there")
    if not storage.exists(folder / "dataset" / "manifest.json"):
        find_files(config.corpus.sources)


def prepare(config: RunConfig, folder: PurePath) -> None:
    """Tokenizer and dataset in the bucket."""
    from tpulm import preparation, workfolder

    with drawn_progress() as progress, workfolder.working_in(config, folder, stage="dataset", progress=progress) as work:
        preparation.prepare(config, work.path, progress=progress)


def _watch(folder: PurePath, settings: CloudSettings) -> Job:
    from tpulm import interrupt
    from tpulm.cloud import launch as launching
    from tpulm.cloud.tpu_api import TpuApi

    supervisor = launching.supervisor(
        folder, settings, TpuApi(settings.project), newest_step=lambda: newest_step(folder), tell=_tell
    )
    with interrupt.handled():
        return supervisor.run()


def _supervise_in_cloud(folder: PurePath, settings: CloudSettings, *, follow: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from tpulm.cloud import supervisor_vm
    from tpulm.cloud.compute import ComputeApi

    vm = supervisor_vm.start(folder, settings, compute=ComputeApi(settings.project), tell=_tell)
    console.print(f"{vm} supervises the run: this machine may be switched off.", soft_wrap=True)
    console.print(f"'tpulm cloud status --workdir {folder}' says how it goes, from anywhere.", soft_wrap=True)
    if follow:
        _end(_follow(folder, settings.project) or _watch(folder, settings), folder, as_json)
    elif as_json:
        print_json({"workdir": str(folder), "supervisor": asdict(vm)})


def _follow(folder: PurePath, project: str) -> Job | None:
    """What the VM says that supervises a run, to the end of the run; None where no VM does, or not any more."""
    from tpulm import interrupt
    from tpulm.cloud import supervisor_vm
    from tpulm.cloud.compute import ComputeApi
    from tpulm.cloud.control import Control

    control = Control(folder)
    if supervisor_vm.recorded(control) is None:
        return None
    with interrupt.handled():
        job = supervisor_vm.follow(control, ComputeApi(project), write=_write, tell=_tell)
    if job is None:
        _tell("its VM is gone: the run is supervised from here")
    return job


def _write(content: bytes) -> None:
    sys.stderr.write(content.decode("utf-8", "replace"))
    sys.stderr.flush()


def _tell(line: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(line)}", highlight=False, soft_wrap=True)


def _detach(folder: PurePath, as_json: bool) -> None:
    """A process of its own that outlives this one and its terminal."""
    from tpulm.train.compile_cache import cache_folder

    log = cache_folder("supervisors") / f"{folder.name}-{int(time.time())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        command = [sys.executable, "-m", "tpulm", "cloud", "attach", "--workdir", str(folder)]
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd=Path.home()
        )
    console.print(f"Process {started.pid} of this machine watches over it, and writes to {log}.", soft_wrap=True)
    console.print(
        f"This machine has to stay up. 'tpulm cloud status --workdir {folder}' says how it goes, from anywhere.", soft_wrap=True
    )
    if as_json:
        print_json({"workdir": str(folder), "process": started.pid, "log": str(log)})


def _end(job: Job, folder: PurePath, as_json: bool) -> None:
    _show(job, folder)
    if as_json:
        print_json(job.model_dump(mode="json"))
    raise typer.Exit(_EXIT_CODES.get(job.status, 1))


def _show(job: Job, folder: PurePath | None) -> None:
    rows = [
        (
            f"{attempt.number}, {attempt.zone}",
            attempt.ending,
            f"{attempt.first_step:,} to {attempt.last_step:,}",
            dollars(attempt.dollars),
            attempt.detail,
        )
        for attempt in job.attempts
    ]
    print_table("Attempts", rows, header=("attempt", "ended", "steps", "cost", ""))
    said = escape(job.message or "no VM is left")
    console.print(f"\n[bold]{job.status}[/]: {said}", highlight=False, soft_wrap=True)
    where = f"The model is in {folder}/export." if job.status == "done" else f"The work folder is {folder}."
    console.print(escape(where), highlight=False, soft_wrap=True)
