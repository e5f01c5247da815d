"""`tpulm cloud`: a project made ready and looked at, a run for other engines, and the cloud for now without the cloud."""

from __future__ import annotations

import errno
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePath
from typing import Annotated, Any

import typer

from tpulm import cloud, storage
from tpulm.cli import cloud_runs
from tpulm.cli.cloud_runs import WHERE, CloudFile, Project, Where, WorkDirInBucket, Yes, cloud_settings, prepare_in_bucket
from tpulm.cli.options import Commands, RunOptions, SetOptions, argument, option, path_option
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say, show, wants_json, write
from tpulm.errors import CloudRefused, ConfigError, MissingExtra, installing
from tpulm.readable import dollars, duration
from tpulm.runtime import interrupt

PROJECT = "tpulm-emulator"


def emulator(
    port: Annotated[int, option("Where it listens on 127.0.0.1; 0 for any free port.", min=0, max=65535)] = 9023,
    folder: Annotated[
        Path | None, option("Keep buckets and objects here, for the next time. Default: in memory.", metavar="F")
    ] = None,
    bucket: Annotated[list[str] | None, option("Create this bucket. Repeatable.", metavar="NAME")] = None,
    project: Annotated[str, option("The project that there is, with everything enabled.", metavar="ID")] = PROJECT,
) -> None:
    """Cloud Storage and Cloud TPU on this machine, until Ctrl-C: the same clients and gs:// paths, no account, no cost.

    It prints the variables that point a shell at it, with the token that it wants in every address:

        tpulm cloud emulator --bucket runs > emulator.sh & sleep 2

        . ./emulator.sh

        tpulm run electra-small --workdir gs://runs/first

    Faults to rehearse with are set while it runs:

        curl -d '{"error_rate": 0.05, "latency_seconds": 0.02}' $STORAGE_EMULATOR_HOST/_control/faults

        curl -d '{"node": "run-a1", "grace_seconds": 5}' $STORAGE_EMULATOR_HOST/_control/tpu/preempt
    """
    try:
        from cloud_emulator import Emulator, EmulatorError
        from cloud_emulator.server import keep_private
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the emulator needs {error.name}: {installing('emulator')}") from None

    with interrupt.handled():
        try:
            server = Emulator(folder, port, project)
            for name in sorted(set(bucket or []) - set(server.bucket_names())):
                server.create_bucket(name)
            server.start()
        except EmulatorError as error:
            raise ConfigError(str(error)) from None
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            reason = "is in use" if error.errno == errno.EADDRINUSE else "needs privileges"
            raise ConfigError(f"port {port} of 127.0.0.1 {reason}; name another with --port, or --port 0 for any") from None
        try:
            where = f"kept in {folder}" if folder else "kept in memory only"
            names = ", ".join(f"gs://{name}" for name in server.bucket_names()) or "none yet; --bucket NAME creates one"
            say(f"Cloud Storage and Cloud TPU, emulated at {server.url}")
            say(f"project: {project}; buckets: {names}; objects are {where}")
            say(f"its state, in a browser: {server.url}/_control/page")
            keep_private(sys.stdout)
            if wants_json():
                print_json(
                    {"url": server.url, "project": project, "buckets": server.bucket_names(), "environment": server.environment}
                )
            else:
                say("a shell that has evaluated the following lines talks to it; Ctrl-C ends it")
                exports = (f"export {name}={shlex.quote(value)}" for name, value in server.environment.items())
                print("\n".join(exports), flush=True)
            while not interrupt.requested():
                time.sleep(0.1)
        finally:
            server.stop()


_MARKS = {True: "ok", False: "NO", None: "?"}


def doctor(where: Where, cloud_file: CloudFile = None) -> None:
    """Is everything there for a run in the cloud? What 'tpulm cloud setup' looks at, without changing anything.

    Login, project, billing, APIs, the TPU type in its zones, quota, the bucket and where it is, the account that the VMs run as
    and its rights, and your own. Ends with exit code 4 when something is missing.

        tpulm cloud doctor --accelerator v3-8 --bucket my-project-tpulm
    """
    settings, checks = _check_project(where, cloud_file)
    missing = [check for check in checks if check.ok is False]
    values = [{"name": check.name, "ok": check.ok, "found": check.found, "remedy": check.remedy} for check in checks]
    print_json({"ok": not missing, "project": settings.project, "checks": values})
    if missing:
        raise typer.Exit(CloudRefused.exit_code)


def setup(where: Where, cloud_file: CloudFile = None, yes: Yes = False) -> None:
    """Make what is missing: APIs, the bucket, the account of the VMs, and its rights. Says what it will do, and asks.

        tpulm cloud setup --accelerator v3-8 --bucket my-project-tpulm

    The bucket is made in the region of the first zone, private, and without soft delete. The VMs get an account of their own,
    without a key, which may read and write the bucket, read the secrets and delete TPUs, and nothing else. What is there
    stays as it is, grants of others included; run again, it goes on where it stopped. Billing and quota are Google's to give:
    ends with exit code 4 when they, or your own rights, are missing.
    """
    settings, checks = _check_project(where, cloud_file, require=("bucket",))
    if missing := cloud.setup.steps(checks):
        rows = [(str(number), step.what, step.detail) for number, step in enumerate(missing, 1)]
        print_table(f"To do in {settings.project}", rows, to=console)
        if not yes:
            cloud_runs.confirm(f"Do these {len(missing)}?" if len(missing) > 1 else "Do it?", declined="nothing was changed")
        cloud.setup.apply(missing, log=lambda step: say(f"{step.what} …"))
        show("; 'tpulm cloud doctor' looks at all of it", lead="done", style="bold green")
    print_json({"project": settings.project, "done": [step.what for step in missing]})
    if any(check.ok is False and not check.steps for check in checks):
        raise typer.Exit(CloudRefused.exit_code)


def _check_project(
    where: SetOptions, cloud_file: PurePath | None, *, require: Sequence[str] = ()
) -> tuple[cloud.settings.CloudSettings, list[cloud.setup.SetupCheck]]:
    """The settings, and what was found, as a table with what to do."""
    settings = cloud_settings(cloud_file, where, require=require)
    with console.status(f"Looking at {settings.project} …"):
        checks = cloud.setup.examine(settings)
    file = cloud.settings.find(cloud_file)
    rows = [("!" if check.ok and check.remedy else _MARKS[check.ok], check.name, check.found) for check in checks]
    print_table(f"{settings.project}{f' ({file})' if file else ''}, for runs on Cloud TPU", rows)
    missing, unsure = [check for check in checks if check.ok is False], [check for check in checks if check.ok is None]
    if any(check.remedy for check in checks):
        show("\nWhat to do", style="bold")
    for remedy in dict.fromkeys(check.remedy for check in [*missing, *unsure, *checks] if check.remedy):
        names = ", ".join(check.name for check in checks if check.remedy == remedy)
        show(f"{names}:\n    {remedy}")
    unchecked = f"; {len(unsure)} could not be checked" if unsure else ""
    if missing:
        show(f"\n{len(missing)} of {len(checks)} are not as they should be{unchecked}", style="bold red")
    else:
        show(unchecked, lead="\nnothing wrong was found", style="bold green")
    return settings, checks


_STYLES = {True: "green", False: "bold red", None: "yellow"}


def smoke(
    where: Where,
    budget: Annotated[float, option("What it may cost at most.", min=0.01, metavar="DOLLARS")] = 2.0,
    to: Annotated[PurePath, path_option("The transcript, without ids, for a bug report.", "--to")] = Path("tpulm-smoke.txt"),
    cloud_file: CloudFile = None,
    yes: Yes = False,
) -> None:
    """One small TPU VM in your project, for some minutes and cents: does Google answer as tpulm takes it to?

    Creates a spot v5litepod-1 (or --accelerator), has it report what it sees and delete itself, looks how a queued resource is
    deleted, and compares, a line each: prices, quota names, refusals, metadata, preemption flag, log, self-deletion. It deletes
    everything, and writes a transcript without ids that can be attached to a bug report.

        tpulm cloud smoke --bucket my-project-tpulm --budget 2

    Ends with exit code 4 when a line is not as expected.
    """
    settings = cloud_settings(cloud_file, where, require=("bucket",), accelerator="v5litepod-1", budget=budget)
    api = cloud.tpu_api.TpuApi(settings.project)
    settings = cloud.launch.offered(settings, api)
    if not yes:
        what = f"creates a {'spot ' * settings.spot}{settings.accelerator} in {settings.project}, for at most {dollars(budget)}"
        cloud_runs.confirm(f"This {what}. Go on?", declined="nothing was created")
    lines: list[cloud.smoke.SmokeCheck] = []

    with drawn_progress() as progress, interrupt.handled():
        rest = cloud.google_rest.GoogleRest(settings.project)
        smoke_test = cloud.smoke.Smoke(settings, api, rest, lines.append, progress=progress)
        try:
            smoke_test.run()
        finally:
            about = f"tpulm {metadata.version('tpulm')} cloud smoke, {settings.accelerator}, Python {platform.python_version()}"
            storage.write_atomic(to, cloud.smoke.transcript(lines, smoke_test, about=about))
    for line in lines:
        show(f"  {line.what}: {line.found}", lead=f"{_MARKS[line.ok]:2}", style=_STYLES[line.ok])
    wrong = [line.what for line in lines if line.ok is False]
    show(f"\nit cost {dollars(smoke_test.spent)} at most; the transcript is {to}")
    print_json(
        {"ok": not wrong, "dollars": smoke_test.spent, "lines": [vars(line) for line in lines], "facts": smoke_test.facts}
    )
    if wrong:
        show(f"; a report with {to} helps everybody", lead=f"not as expected: {', '.join(wrong)}", style="bold red")
        raise typer.Exit(CloudRefused.exit_code)
    show("Google answers as expected", style="bold green")


_VERDICTS = {"live": "live", "going": "going", "orphan": "ORPHAN", "unknown": "not known"}


def audit(
    where: Project,
    names: Annotated[list[str] | None, argument("With --delete: only these, also ones not known whose.", "[NAME]...")] = None,
    delete: Annotated[bool, option("Delete the orphans, and see that they are gone.", "--delete")] = False,
    yes: Yes = False,
    cloud_file: CloudFile = None,
) -> None:
    """Does anything bill that no run needs? Looks at all zones of the project for TPUs that runs have left behind.

        tpulm cloud audit

        tpulm cloud audit --delete

    TPUs of live runs are kept. A TPU whose work folder cannot be read is "not known", and deleted only by name. TPUs that
    tpulm did not make are counted and never touched.

    Exit code 0: nothing is left behind; 1: something is, or may be; 4: the cloud refused to answer.
    """
    if names and not delete:
        raise ConfigError("names are for --delete; without it everything is shown")
    settings = cloud_settings(cloud_file, where)
    api = cloud.tpu_api.TpuApi(settings.project)
    rest = cloud.google_rest.GoogleRest(settings.project, patience_seconds=20.0)
    with drawn_progress() as progress:
        result = cloud.teardown.audit(api, rest=rest, progress=progress)
    _show_audit(settings.project, result)
    targets = _targets(result, names) if delete else []
    done = None
    if targets:
        if not yes:
            names_of_targets = ", ".join(dict.fromkeys(item.resource.name for item in targets))
            cloud_runs.confirm(f"Delete {names_of_targets}?", declined="nothing was deleted")
        with drawn_progress() as progress:
            done = cloud.teardown.delete(api, targets, progress=progress)
        show(", and seen to be gone", lead=f"{len(done.gone)} deleted", style="bold green")
        for item in done.left:
            show(f" {item.name} in {item.zone}; run this again", lead="still there:", style="bold red")
    remaining = [item for item in result.of("orphan", "unknown") if item not in targets]
    names_of = {"deleted": [item.name for item in done.gone], "left": [item.name for item in done.left]} if done else {}
    print_json({**_audit_values(settings.project, result), **names_of})
    if remaining or (done and done.left):
        raise typer.Exit(1)
    if result.silent:
        raise typer.Exit(CloudRefused.exit_code)


def _targets(result: cloud.teardown.Audit, names: Sequence[str] | None) -> list[cloud.teardown.Finding]:
    """Raises ConfigError for a name that there is not, or that is a live run's."""
    if not names:
        return result.of("orphan")
    chosen = [item for item in result.findings if item.resource.name in names]
    for name in names:
        mine = [item for item in chosen if item.resource.name == name]
        if not mine:
            raise ConfigError(f"no TPU of ours is named '{name}'; nothing was deleted")
        if any(item.verdict == "live" for item in mine):
            raise ConfigError(f"{name} is the TPU of a live run ({mine[0].why}); end that with 'tpulm cloud down'")
    return chosen


def _show_audit(project: str, result: cloud.teardown.Audit) -> None:
    now = time.time()
    show(f"{project}: {result.zones} zones looked at", style="bold")
    for item in result.findings:
        resource, age = item.resource, item.age(now)
        facts = (
            f"{'spot ' * resource.spot}{resource.accelerator}",
            f"{resource.state}{', queued' * (resource.kind == 'queued resource')}",
            "of unknown age" if age is None else f"{duration(age)} old",
            f"{dollars(item.dollars_per_hour)} an hour{f' ({item.price.origin})' if item.price else ''}",
        )
        show(f"{_VERDICTS[item.verdict]}  {resource.name} in {resource.zone}: {', '.join(facts)}\n    {item.why}")
    for zone, why in result.silent.items():
        show(f" {why}", lead=f"{zone} could not be looked at:", style="bold yellow")
    if result.others:
        show(f"{result.others} more are not tpulm's, and are left alone")
    if orphans := result.of("orphan"):
        known = [item.dollars_per_hour for item in orphans if item.dollars_per_hour is not None]
        hourly = f"{'at least ' * (len(known) < len(orphans))}{dollars(sum(known))} an hour"
        rest = f", {hourly}; 'tpulm cloud audit --delete' ends them"
        show(rest, lead=f"{len(orphans)} left behind", style="bold red")
    if unknown := result.of("unknown"):
        show("; 'tpulm cloud audit --delete NAME' ends one", lead=f"{len(unknown)} not known whose", style="bold yellow")
    if not (orphans or unknown or result.silent):
        show("nothing is left behind", style="bold green")


def _audit_values(project: str, result: cloud.teardown.Audit) -> dict[str, Any]:
    now = time.time()
    findings = [
        {
            **vars(item.resource),
            "verdict": item.verdict,
            "why": item.why,
            "age_seconds": item.age(now),
            "dollars_per_hour": item.dollars_per_hour,
            "price": None if item.price is None else vars(item.price),
        }
        for item in result.findings
    ]
    return {"project": project, "zones": result.zones, "silent": result.silent, "others": result.others, "findings": findings}


export_app = Commands(help="A run for other engines: the same run file, bucket and checkpoints.", no_args_is_help=True)

ExportTo = Annotated[PurePath | None, path_option("Write it here. Default: stdout.", "--to")]


@export_app.command(as_json=False)
def skypilot(
    options: RunOptions,
    where: Annotated[SetOptions, WHERE._replace(fields=("project", "zones", "bucket", "accelerator", "spot"))],
    workdir: WorkDirInBucket = None,
    to: ExportTo = None,
    cloud_file: CloudFile = None,
) -> None:
    """A managed job for SkyPilot, which looks for TPUs in several regions, and replaces those that are preempted.

    Tokenizer and dataset are prepared on this machine, into the bucket.

        tpulm cloud export skypilot electra-small --accelerator v6e-8 --bucket my-project-tpulm --to job.yaml

        sky jobs launch job.yaml

    SkyPilot knows nothing of the budget in cloud.toml.
    """
    settings = cloud_settings(cloud_file, where, require=("bucket", "accelerator", "zones"))
    settings = cloud.launch.near_bucket(settings, cloud.google_rest.GoogleRest(settings.project), note=say)
    _write_job(cloud.export.skypilot(_stage(options, workdir, settings), settings), to, settings)


@export_app.command(as_json=False)
def jobset(
    options: RunOptions,
    where: Annotated[SetOptions, WHERE._replace(fields=("project", "bucket", "spot"))],
    workdir: WorkDirInBucket = None,
    to: ExportTo = None,
    image: Annotated[
        str | None, option("A container image with bash and python3. Default: Python's own.", metavar="NAME")
    ] = None,
    queue: Annotated[str | None, option("The queue of Kueue that admits it.", metavar="NAME")] = None,
    cloud_file: CloudFile = None,
    accelerator: Annotated[
        str | None, option("A TPU type, such as v6e-8, or the GPUs of a node: nvidia-h100-80gb:8.", metavar="TYPE")
    ] = None,
) -> None:
    """A JobSet for Google Kubernetes Engine: a TPU slice, of TPU7x too, or the GPUs of one node.

    Tokenizer and dataset are prepared on this machine, into the bucket. The file says what a cluster needs once.

        tpulm cloud export jobset electra-small --accelerator v6e-16 --bucket my-project-tpulm --to job.yaml

        kubectl apply -f job.yaml

    Kubernetes knows nothing of the budget in cloud.toml.
    """
    settings = cloud_settings(cloud_file, where, require=("bucket",))
    named = accelerator or settings.accelerator  # which may be GPUs
    if not named:
        raise ConfigError('accelerator is not set: write accelerator = "v6e-8" in cloud.toml, or give --accelerator')
    nodes = cloud.export.nodes_of(named)
    _write_job(cloud.export.jobset(_stage(options, workdir, settings), settings, nodes, image=image, queue=queue), to, settings)


def _stage(options: RunOptions, workdir: PurePath | None, settings: cloud.settings.CloudSettings) -> cloud.export.Staged:
    """As a launch does: what the run needs into its work folder, prepared here."""
    config = options.load()
    folder = workdir or storage.as_path(f"gs://{settings.bucket}/{config.name}")
    cloud.launch.check_folder(folder)
    cloud_runs.check_sources(config, folder, on_tpu=False)
    staged = cloud.launch.staged(config, folder / "cloud" / "inputs")
    prepare_in_bucket(staged, folder)
    with drawn_progress() as progress:
        return cloud.export.stage(staged, folder, settings, progress=progress)


def _write_job(text: str, to: PurePath | None, settings: cloud.settings.CloudSettings) -> None:
    if to is None:
        write(text)
    else:
        storage.write_atomic(to, text)
        show(f"written to {to}: {text.splitlines()[0].lstrip('# ').replace('FILE', str(to))}")
    if settings.budget is not None or settings.deadline_hours is not None:
        say("budget and deadline_hours hold for 'tpulm cloud launch' alone: nobody watches them here.", style="yellow")


def rehearse(
    options: RunOptions,
    preempt: Annotated[int, option("How often the TPU VM is taken away, each time otherwise.", min=0, max=20)] = 2,
    accelerator: Annotated[str, option("The TPU type whose price is counted.", metavar="TYPE")] = "v3-8",
    to: Annotated[
        PurePath | None, path_option("Copy the exported model to this folder in the end.", "--to", metavar="DIR")
    ] = None,
) -> None:
    """A run in the cloud as it would go, without a cloud: no account, no cost, everything on this machine.

    Starts an emulated Google Cloud, sets a project up in it, prepares the dataset into its bucket, launches the run (shortened
    to 240 steps) on TPU VMs that are processes of this machine, takes them away, with notice, without, and without a trace,
    and shows what happened when, and what it would have cost.

        tpulm cloud rehearse quickstart --preempt 3
    """
    config = options.load()
    try:
        from cloud_emulator import rehearsal
    except ModuleNotFoundError as error:
        raise MissingExtra(f"rehearsing needs {error.name}: {installing('emulator,cloud')}") from None

    def log(seconds: float, line: str) -> None:
        say(f"  {line}", lead=f"{seconds:6.1f} s", style="dim")

    report = rehearsal.rehearse(config, accelerator, preempt, to, prepare=prepare_in_bucket, log=log, drawn=drawn_progress)
    left, first_steps = report["left"], []
    for start in report["first_steps"]:
        compiling = f"of which compiling {start['compile_seconds']:.1f} s" if start["compiled"] else "without compiling"
        first_steps.append(f"attempt {start['attempt']}: after {start['seconds']:.1f} s, {compiling}")
    rows = {
        "ended": f"{report['status']}: {report['message']}",
        "attempts": f"{report['attempts']} ({', '.join(report['endings'])})",
        "first step": "; ".join(first_steps),
        "took": f"{duration(report['seconds'])} here, {duration(report['node_seconds'])} of them on TPU VMs",
        "would have cost": f"{dollars(report['dollars'])} on a spot {report['accelerator']}, had it taken as long",
        "left behind": "nothing" if not any(left.values()) else f"{left['nodes']} nodes, {left['queued_resources']} queued",
    }
    print_table("Rehearsal", rows)
    if report["interruptions"] < preempt:
        done = f"{report['interruptions']} of {preempt} interruptions came in time"
        say(f"{done}: the run was over too soon; give it more steps", style="yellow")
    print_json(report)
    if report["status"] != "done" or any(left.values()):
        raise typer.Exit(1)


app = Commands(help="Runs on Cloud TPU, and rehearsals of them on this machine.", no_args_is_help=True)
for command in (doctor, setup, smoke, cloud_runs.launch, cloud_runs.supervise, cloud_runs.stop, rehearse, cloud_runs.status):
    app.command()(command)
app.command(as_json=False)(cloud_runs.logs)
for command in (cloud_runs.cost, audit, cloud_runs.down):
    app.command()(command)
app.command(as_json=False)(cloud_runs.ssh)
app.add_typer(export_app, name="export")
app.command()(emulator)
