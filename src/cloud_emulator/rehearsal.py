"""The whole lifecycle of a run in the cloud, on this machine: `tpulm cloud rehearse`. The only module here that knows tpulm."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
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
    from cloud_emulator.tpu.control import Tpu
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
    workdir = storage.as_path(f"gs://{_BUCKET}/{config.name}")
    timeline: list[tuple[float, str]] = []  # seconds since the launch, and what happened
    source = {"PYTHONPATH": str(cloud.bundle.source_folder().parent)}  # VMs that lack this tpulm would install it
    with Emulator(machines=MachineSettings(environment=source)) as emulator:
        begun = time.time()

        def note(line: str) -> None:
            at = time.time() - begun
            timeline.append((at, line))
            log(at, line)

        os.environ.update(emulator.environment)  # before any client of Google's is imported
        os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
        tpu = emulator.tpu
        settings = cloud.settings.load(project=tpu.projects.default, accelerator=accelerator, bucket=_BUCKET)
        api = cloud.tpu_api.TpuApi(settings.project)
        settings = cloud.launch.offered(settings, api)
        cloud.setup.apply(cloud.setup.steps(cloud.setup.examine(settings)), log=lambda step: note(f"setup: {step.what}"))
        prepare(config, workdir)
        note("dataset and tokenizer are in the bucket")
        price = settings.kind.spot_dollars_per_hour or 0.0  # of no region: the zones here are emulated
        cloud.launch.launch(config, workdir, settings, prices=dict.fromkeys(settings.zones, price))
        supervisor = cloud.launch.supervisor(workdir, settings, api, log=note, pause_seconds=0.5)
        with ThreadPoolExecutor(1, "supervisor") as pool:
            supervised = pool.submit(supervisor.run)
            with drawn() as progress:
                progress.start("Training in the emulated cloud", total=config.train.steps, unit="steps")
                steps = _checkpoints(supervised, workdir, progress.advance)
                interruptions = _interrupt(tpu, steps, config.train.steps, preempt, note)
            job = supervised.result()
        if to is not None:
            storage.copy_files(workdir / "export", to)
        return {
            "status": job.status,
            "message": job.message,
            "workdir": str(workdir),
            "interruptions": interruptions,
            "attempts": len(job.attempts),
            "endings": [attempt.ending for attempt in job.attempts],
            "first_steps": _first_steps(job, workdir),
            "accelerator": job.accelerator,
            "node_seconds": round(sum(tpu.node_seconds().values()), 1),
            "dollars": job.dollars(time.time()),
            "seconds": round(time.time() - begun, 1),
            "timeline": [[round(at, 1), what] for at, what in timeline],
            "left": {"nodes": len(tpu.nodes()), "queued_resources": len(tpu.queued_resources())},
        }


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


def _checkpoints(supervised: Future[cloud.job.Job], workdir: PurePath, advance: Callable[[int], None]) -> Iterator[int]:
    """The step of the newest checkpoint, again and again until the run is over."""
    newest = 0
    while not supervised.done():
        time.sleep(_LOOK_SECONDS)
        step = cloud.control.Control(workdir).newest_step()
        advance(max(0, step - newest))
        newest = max(step, newest)
        yield newest


def _interrupt(tpu: Tpu, checkpoints: Iterable[int], steps: int, times: int, note: Callable[[str], None]) -> int:
    """Take each VM away after its first checkpoint, as often as asked for; returns how often there was time for it."""
    ways = itertools.cycle(
        [
            ("preempting with notice", lambda node: tpu.preempt(node, grace_seconds=20)),
            ("preempting without notice", tpu.kill),
            ("making vanish", tpu.vanish),
        ]
    )
    begun_at, interruptions = dict[str, int](), 0  # node -> the newest step when it came
    for newest in checkpoints:
        node = next((name.rpartition("/")[2] for name, state in tpu.nodes().items() if state == "READY"), "")
        before = begun_at.setdefault(node, newest)
        if node and interruptions < times and before < newest < steps:
            begun_at[node] = steps  # only once, though it stays READY until its time is up
            what, way = next(ways)
            note(f"{what}: {node}, at step {newest:,}")
            way(node)
            interruptions += 1
    return interruptions


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
