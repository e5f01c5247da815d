"""The whole lifecycle of a run in the cloud, on this machine: `tpulm cloud rehearse`. The only module here that knows tpulm."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from cloud_emulator.machines import MachineSettings
from cloud_emulator.server import Emulator
from tpulm import cloud, storage
from tpulm.errors import ConfigError
from tpulm.progress import Progress

if TYPE_CHECKING:
    from tpulm.config import RunConfig

_BUCKET = "rehearsal"
_MOST_STEPS = 240  # a longer run is shortened to so many
_LOOK_SECONDS = 0.5  # between looks for a checkpoint, which lists all of them, beside a trainer on the same processors


def rehearse(
    config: RunConfig,
    accelerator: str,
    preempt: int,
    to: PurePath | None,
    *,
    prepare: Callable[[RunConfig, PurePath], None],
    log: Callable[[float, str], None],
    drawn: Callable[[], AbstractContextManager[Progress]],
) -> dict[str, Any]:
    """What became of the run, as JSON: its attempts, a timeline, the cost, and what is left in the emulated project.

    `prepare` writes tokenizer and dataset into a work folder; `log` is called with seconds since the begin and what happened;
    `drawn` begins a display of progress; the exported model is copied to `to`.
    """
    config = _shortened(config, preempt)
    source = {"PYTHONPATH": str(cloud.bundle.source_folder().parent)}  # VMs that lack this tpulm would install it
    with Emulator(machines=MachineSettings(environment=source)) as emulator:
        os.environ.update(emulator.environment)  # before any client of Google's is imported
        os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        outcome = _Rehearsal(config, emulator, accelerator, preempt, log).run(prepare, drawn)
        if to is not None:
            storage.copy_files(storage.as_path(outcome["workdir"]) / "export", to)
        left = {"nodes": len(emulator.tpu.nodes()), "queued_resources": len(emulator.tpu.queued_resources())}
    return {**outcome, "left": left}


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
    def __init__(
        self, config: RunConfig, emulator: Emulator, accelerator: str, preempt: int, log: Callable[[float, str], None]
    ):
        self._config, self._emulator, self._preempt, self._report = config, emulator, preempt, log
        self._workdir = storage.as_path(f"gs://{_BUCKET}/{config.name}")
        project = emulator.tpu.projects.default
        self._settings = cloud.settings.load(project=project, accelerator=accelerator, bucket=_BUCKET)
        self._begun = time.time()
        self._timeline: list[tuple[float, str]] = []  # seconds since the launch, and what happened
        self._interruptions = 0

    def run(
        self, prepare: Callable[[RunConfig, PurePath], None], drawn: Callable[[], AbstractContextManager[Progress]]
    ) -> dict[str, Any]:
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
            with drawn() as progress:
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
            step = cloud.control.Control(self._workdir).newest_step()
            advance(max(0, step - newest))
            newest = max(step, newest)
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
        self._report(at, line)


def _first_steps(job: cloud.job.Job, workdir: PurePath) -> list[dict[str, float]]:
    """Per attempt that trained: seconds from READY to the first step, and what was compiled in them."""
    from tpulm.train.metrics import read_attempts

    starts, first_steps = [one.start for one in read_attempts(workdir) if one.start], list[dict[str, float]]()
    for attempt in job.attempts:
        ready_at = attempt.ready_at or attempt.intended_at
        start = next((start for start in starts if ready_at <= start["time"] <= attempt.ended_at), None)
        if start is not None:
            compiled = {name: start[name] for name in ("compile_seconds", "compiled", "found")}
            first_steps.append({"attempt": attempt.number, "seconds": round(start["time"] - ready_at, 1), **compiled})
    return first_steps
