"""`tpulm cloud rehearse`: the whole lifecycle of a run in the cloud, on this machine."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpulm import cloud, storage
from tpulm.cli.cloud_runs import prepare
from tpulm.cli.options import AsJson, Init, Overrides, RunFile, load_run
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say
from tpulm.errors import ConfigError, MissingExtra, installing
from tpulm.readable import dollars, duration

if TYPE_CHECKING:
    from cloud_emulator import Emulator
    from tpulm.config import RunConfig

_BUCKET = "rehearsal"
_MOST_STEPS = 600  # a longer run is shortened to so many
_LOOK_SECONDS = 0.2


def rehearse(
    reference: RunFile,
    preempt: Annotated[int, typer.Option(min=0, max=20, help="How often the TPU VM is taken away, each time otherwise.")] = 2,
    accelerator: Annotated[str, typer.Option(metavar="TYPE", help="The TPU type whose price is counted.")] = "v3-8",
    to: Annotated[
        PurePath | None,
        typer.Option("--to", metavar="DIR", parser=storage.as_path, help="Copy the exported model to this folder in the end."),
    ] = None,
    overrides: Overrides = None,
    init: Init = None,
    as_json: AsJson = False,
) -> None:
    """A run in the cloud as it would go, without a cloud: no account, no cost, everything on this machine.

    Starts an emulated Google Cloud, sets a project up in it, prepares the dataset into its bucket, launches the run (shortened
    to 600 steps) on TPU VMs that are processes of this machine, takes them away, with notice, without, and without a trace,
    and shows what happened when, and what it would have cost.

        tpulm cloud rehearse quickstart --preempt 3
    """
    config = _shortened(load_run(reference, overrides, init), preempt)
    try:
        from cloud_emulator import Emulator
    except ModuleNotFoundError as error:
        raise MissingExtra(f"rehearsing needs {error.name}: {installing('emulator,cloud')}") from None
    with Emulator() as emulator:
        os.environ.update(emulator.environment)  # before any client of Google's is imported
        os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        outcome = _Rehearsal(config, emulator, accelerator, preempt).run()
        if to is not None:
            storage.copy_files(storage.as_path(outcome["workdir"]) / "export", to)
        left = {"nodes": len(emulator.tpu.nodes()), "queued_resources": len(emulator.tpu.queued_resources())}
    values = {**outcome, "left": left}
    _show(values, preempt)
    if as_json:
        print_json(values)
    if outcome["status"] != "done" or any(left.values()):
        raise typer.Exit(1)


def _shortened(config: RunConfig, preempt: int) -> RunConfig:
    """Short enough to watch, with checkpoints often enough that every interruption comes after a new one."""
    places = [place for source in config.corpus.sources for place in (source.path, source.data_dir or "")]
    remote = [place for place in places if place.startswith("gs://")]
    if remote:
        raise ConfigError(f"the emulated cloud does not have {remote[0]}; rehearse with text of this machine")
    train = config.train
    steps = min(train.steps, _MOST_STEPS)
    warmup = train.optimizer.warmup_steps
    if warmup is not None and steps < train.steps:
        warmup = min(warmup, steps // 10)
    often = max(1, min(int(train.checkpoint.every_steps or steps), steps // (3 * (preempt + 1))))
    changes = {
        "steps": steps,
        "optimizer": train.optimizer.model_copy(update={"warmup_steps": warmup}),
        "checkpoint": train.checkpoint.model_copy(update={"every_steps": often}),
    }
    return config.model_copy(update={"train": train.model_copy(update=changes)})


class _Rehearsal:
    def __init__(self, config: RunConfig, emulator: Emulator, accelerator: str, preempt: int):
        self._config, self._emulator, self._preempt = config, emulator, preempt
        self._workdir = storage.as_path(f"gs://{_BUCKET}/{config.name}")
        project = emulator.tpu.projects.default
        self._settings = cloud.settings.load(project=project, accelerator=accelerator, bucket=_BUCKET)
        self._begun = time.time()
        self._timeline: list[tuple[float, str]] = []  # seconds since the launch, and what happened
        self._interruptions = 0

    def run(self) -> dict[str, Any]:
        log, api = self._log, cloud.tpu_api.TpuApi(self._settings.project)
        settings = cloud.launch.offered(self._settings, api)
        cloud.setup.apply(cloud.setup.steps(cloud.setup.examine(settings)), log=lambda step: log(f"setup: {step.what}"))
        prepare(self._config, self._workdir)
        log("dataset and tokenizer are in the bucket")
        price = settings.kind.spot_dollars_per_hour or 0.0  # of no region: the zones here are emulated
        prices = dict.fromkeys(settings.zones, price)
        cloud.launch.launch(self._config, self._workdir, settings, prices=prices)
        supervisor = cloud.launch.supervisor(self._workdir, settings, api, log=log, pause_seconds=0.5)
        with ThreadPoolExecutor(1, "supervisor") as pool:
            supervised = pool.submit(supervisor.run)
            with drawn_progress() as progress:
                progress.start("Training in the emulated cloud", total=self._config.train.steps, unit="steps")
                self._interrupt(supervised, progress.advance)
            job = supervised.result()
        return {
            "status": job.status,
            "message": job.message,
            "workdir": str(self._workdir),
            "interruptions": self._interruptions,
            "attempts": len(job.attempts),
            "endings": [attempt.ending for attempt in job.attempts],
            "first_steps": _first_steps(job, self._workdir),
            "accelerator": job.accelerator,
            "node_seconds": round(sum(self._emulator.tpu.node_seconds().values()), 1),
            "dollars": job.dollars(time.time()),
            "seconds": round(time.time() - self._begun, 1),
            "timeline": [[round(at, 1), what] for at, what in self._timeline],
        }

    def _interrupt(self, supervised: Future[cloud.job.Job], advance: Callable[[int], None]) -> None:
        """Take each VM away after its first checkpoint, as often as asked for."""
        tpu, begun_at = self._emulator.tpu, dict[str, int]()  # node -> the newest step when it came
        ways = itertools.cycle(
            [
                ("preempting with notice", lambda node: tpu.preempt(node, grace_seconds=20)),
                ("preempting without notice", tpu.kill),
                ("making vanish", tpu.vanish),
            ]
        )
        newest = 0
        while not supervised.done():
            time.sleep(_LOOK_SECONDS)
            found = cloud.control.Control(self._workdir).newest_step()
            advance(max(0, found - newest))
            newest = max(found, newest)
            node = next((name.rpartition("/")[2] for name, state in tpu.nodes().items() if state == "READY"), "")
            before = begun_at.setdefault(node, newest)
            if node and self._interruptions < self._preempt and before < newest < self._config.train.steps:
                begun_at[node] = self._config.train.steps  # only once, though it stays READY until its time is up
                what, way = next(ways)
                self._log(f"{what}: {node}, at step {newest:,}")
                way(node)
                self._interruptions += 1

    def _log(self, line: str) -> None:
        at = time.time() - self._begun
        self._timeline.append((at, line))
        say(f"  {line}", lead=f"{at:6.1f} s", style="dim")


def _first_steps(job: cloud.job.Job, workdir: PurePath) -> list[dict[str, float]]:
    """Per attempt that trained: seconds from READY to the first step, and what was compiled in them."""
    from tpulm.train.metrics import read_attempts

    starts, found = [one.start for one in read_attempts(workdir) if one.start], list[dict[str, float]]()
    for attempt in job.attempts:
        ready_at = attempt.ready_at or attempt.intended_at
        start = next((start for start in starts if ready_at <= start["time"] <= attempt.ended_at), None)
        if start is not None:
            compiled = {name: start[name] for name in ("compile_seconds", "compiled", "found")}
            found.append({"attempt": attempt.number, "seconds": round(start["time"] - ready_at, 1), **compiled})
    return found


def _show(values: dict[str, Any], preempt: int) -> None:
    left, first_steps = values["left"], []
    for found in values["first_steps"]:
        compiling = f"of which compiling {found['compile_seconds']:.1f} s" if found["compiled"] else "without compiling"
        first_steps.append(f"attempt {found['attempt']}: after {found['seconds']:.1f} s, {compiling}")
    rows = {
        "ended": f"{values['status']}: {values['message']}",
        "attempts": f"{values['attempts']} ({', '.join(values['endings'])})",
        "first step": "; ".join(first_steps),
        "took": f"{duration(values['seconds'])} here, {duration(values['node_seconds'])} of them on TPU VMs",
        "would have cost": f"{dollars(values['dollars'])} on a spot {values['accelerator']}, had it taken as long",
        "left behind": "nothing" if not any(left.values()) else f"{left['nodes']} nodes, {left['queued_resources']} queued",
    }
    print_table("Rehearsal", rows)
    if values["interruptions"] < preempt:
        done = f"{values['interruptions']} of {preempt} interruptions came in time"
        say(f"{done}: the run was over too soon; give it more steps", style="yellow")
