"""A run on two hosts that everything happens to ends as one that nothing happened to, bit for bit."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cluster import RUN_FILE, Cluster

from cloud_emulator import Emulator
from command_line import invoke
from toy_runs import logged
from tpulm import storage
from tpulm.train.metrics import read_metrics

INTERVAL = 10
SYLLABLES = ["ka", "ro", "mi", "su", "te", "no", "la", "vi", "de", "po", "gu", "en"]

# What happens to hosts, and what happens to Cloud Storage.
DEADLY = ("SIGTERM to one host", "kill one host", "kill all hosts", "kill all in a commit")
FAULTS: dict[str, dict[str, Any]] = {
    "503 for everything": {"error_rate": 1.0, "error_status": 503, "seconds": 2.0},
    "429 for everything": {"error_rate": 1.0, "error_status": 429, "seconds": 1.0},
    "5 % dropped connections": {"drop_rate": 0.05, "seconds": 6.0},
    "truncated reads": {"truncate_rate": 0.2, "seconds": 6.0},
    "lost answers": {"error_after_rate": 0.1, "seconds": 6.0},
}


class Event(NamedTuple):
    kind: str
    at_step: int  # when a checkpoint of this step, or a later one, is there
    delay: float  # seconds after that
    host: int  # for what happens to one: each in turn


def draw_schedule(seed: int, *, count: int, steps: int) -> list[Event]:
    """Events in order of their steps, each kind about equally often, spread over the first three quarters of the run: hosts
    that are told to stop take seconds to agree on a step."""
    random_ = random.Random(seed)
    kinds = (*DEADLY, *FAULTS)
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    random_.shuffle(chosen)
    last = 3 * steps // 4
    return [
        Event(kind, number * last // count, random_.uniform(0.0, 1.0), chosen[:number].count(kind) % 2)
        for number, kind in enumerate(chosen)
    ]


@pytest.mark.soak
def test_a_run_that_everything_happens_to_ends_as_if_nothing_had(gcs: Emulator, tmp_path: Path):
    events, steps = 24, 480
    write_corpus()
    calm = run_of(tmp_path / "calm", gcs, steps)
    calm.complete()

    stormy = run_of(tmp_path / "stormy", gcs, steps)
    schedule = draw_schedule(seed=20_26, count=events, steps=steps)
    told = list(suffer(stormy, schedule, gcs))
    print("\n".join(told))
    assert len(told) == events
    assert_same(stormy, calm)


@pytest.mark.slow
def test_a_run_that_is_stopped_and_killed_ends_as_if_nothing_had_happened_and_goes_on_elsewhere(gcs: Emulator, tmp_path: Path):
    """As on a disk, where nothing happens; and on a single host, where losses differ by rounding, with the same rows in the
    same order. A host alone prepares the same rows, too."""
    steps = 120
    write_corpus()
    calm = run_of(tmp_path / "calm", gcs, steps)
    calm.workdir = tmp_path / "calm" / "w"
    calm.complete()
    assert not any("error" in calm.log(index).read_text() for index in range(2))

    stormy, moved = (run_of(tmp_path / name, gcs, steps) for name in ("stormy", "moved"))
    stop, kill, kill_all = (
        ("SIGTERM to one host", 10, 0.4, 1),
        ("kill one host", 40, 0.3, 0),
        ("kill all in a commit", 70, 0.3, 0),
    )
    happening = suffer(stormy, [Event(*event) for event in (stop, kill, kill_all)], gcs)
    print(next(happening), flush=True)
    assert 0 < stormy.committed_step() < steps
    storage.copy_files(stormy.workdir, moved.workdir)
    print(*happening, sep="\n")
    assert_same(stormy, calm)

    moved.start(num_hosts=1)
    assert moved.wait(120) == [0], moved.tails()
    alone = run_of(tmp_path / "alone", gcs, steps)
    invoke("dataset", "prepare", alone.run_file, "--workdir", alone.workdir, code=0)
    of_two, of_one, copied = (
        {name: value for name, value in digests(run).items() if name.startswith("dataset/")} for run in (calm, alone, moved)
    )
    assert of_two == of_one == copied
    losses = [[values["loss"] for kind, _, values in read_metrics(run.workdir) if kind == "train"] for run in (calm, moved)]
    assert len(losses[0]) == steps
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def assert_same(stormy: Cluster, calm: Cluster) -> None:
    assert digests(stormy) == digests(calm)
    assert logged(stormy.workdir) == logged(calm.workdir)
    repeated = repeated_steps(stormy)
    print(f"{stormy.attempts} attempts; steps computed twice, by attempt: {repeated}")
    assert max(repeated, default=0) <= 2 * INTERVAL  # one checkpoint is written while the steps to the next are computed


SHORT_LEASES = """
from tpulm.cli.app import main
from tpulm.storage import lease
lease._LEASE_SECONDS, lease._RENEW_SECONDS, lease._WATCH_SECONDS = 4.0, 1.0, 0.2
main()
"""


@pytest.mark.soak
def test_who_was_stopped_for_longer_than_its_lease_writes_nothing_into_the_folder_of_the_next(gcs: Emulator, tmp_path: Path):
    """One process after the other is stopped at a random moment (SIGSTOP), replaced, and continued beside its successor."""
    random_, rounds, steps = random.Random(3), 3, 200
    write_corpus()
    calm, run = run_of(tmp_path / "calm", gcs, steps), run_of(tmp_path / "run", gcs, steps)
    calm.complete(num_hosts=1)
    run.program, started = ("-c", SHORT_LEASES), []
    try:
        run.start(num_hosts=1)
        for _ in range(rounds):
            started += run.hosts
            wait_for_a_checkpoint(run)
            time.sleep(random_.uniform(0.0, 0.5))
            (stopped,) = run.hosts
            run.send(signal.SIGSTOP)
            time.sleep(4.5)
            run.start(num_hosts=1)
            wait_for_a_checkpoint(run)
            run.send(signal.SIGSTOP)  # so that whatever is written is written by the one that it replaced
            time.sleep(0.2)
            before = set(storage.walk(run.workdir))
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(30) == 1, run.tails()
            new = set(storage.walk(run.workdir)) - before
            # What the kernel may have been sending at that moment: data of a checkpoint that nothing completes.
            assert all(name.startswith("checkpoints/") and not name.endswith((storage.COMMIT, "objects.json")) for name in new)
            assert "took it over" in run.tails()
            run.send(signal.SIGCONT)
        assert run.wait(120) == [0], run.tails()
    finally:
        for process in (*started, *run.hosts):
            process.kill()
            process.wait()
    assert digests(run) == digests(calm)
    assert logged(run.workdir) == logged(calm.workdir)
    assert storage.committed_steps(run.workdir / "checkpoints") == storage.committed_steps(calm.workdir / "checkpoints")


def wait_for_a_checkpoint(run: Cluster) -> None:
    """Until this attempt has saved one."""
    reached = run.committed_step()
    while not (run.is_training() and run.committed_step() > reached):
        assert run.is_running(), run.tails()
        time.sleep(0.02)


def suffer(run: Cluster, schedule: list[Event], emulator: Emulator) -> Iterator[str]:
    """Start the run again and again until it ends, while the events happen; says each when it is over."""
    waiting = list(schedule)
    run.start()
    while not run.is_complete():
        if not run.is_running():
            assert run.attempts < 3 * len(schedule), run.tails()
            run.start()
        is_due = waiting and run.committed_step() >= waiting[0].at_step
        if is_due and (run.is_training() or waiting[0].kind == "kill all hosts"):
            event = waiting.pop(0)
            time.sleep(event.delay)
            print(f"step {run.committed_step()}: {event}", flush=True)
            happen(run, event, emulator)
            yield f"step {run.committed_step():4d}: {event.kind}"
        time.sleep(0.05)
    assert not waiting, f"the run ended before {len(waiting)} events\n{run.tails()}"


def happen(run: Cluster, event: Event, emulator: Emulator) -> None:
    if event.kind in FAULTS:
        emulator.faults.set(**FAULTS[event.kind])
        return
    if event.kind == "kill all in a commit":
        emulator.faults.set(latency_seconds=1.0, match="commit_success", seconds=20.0)
        until = time.monotonic() + 20.0
        while run.is_running() and not run.is_committing():
            assert time.monotonic() < until, run.tails()
        run.send(signal.SIGKILL)
        emulator.faults.clear()
    elif event.kind == "kill all hosts":
        run.send(signal.SIGKILL)
    elif event.kind == "kill one host":
        run.send(signal.SIGKILL, event.host)
        codes = run.wait(30)
        assert codes[event.host] == -signal.SIGKILL
        assert codes[1 - event.host] == 76, run.tails()
        failure = storage.read_json(storage.list_folder(run.workdir / "failures")[-1])
        assert failure["kind"] == "PeerLost", failure
    else:
        run.send(signal.SIGTERM, event.host)
        codes = run.wait(60)  # the hosts agree on a step to stop at, for which a busy machine may take longer than for the rest
        assert codes == [75, 75] or (codes == [0, 0] and run.is_complete()), run.tails()
    run.wait(30)


def run_of(folder: Path, emulator: Emulator, steps: int) -> Cluster:
    folder.mkdir()
    run_file = folder / "run.toml"
    run_file.write_text(RUN_FILE.format(steps=steps, evaluate=steps // 3, interval=INTERVAL))
    return Cluster(run_file, f"gs://runs/{folder.name}", emulator.environment)


def write_corpus() -> None:
    random_ = random.Random(0)
    words = ["".join(random_.choices(SYLLABLES, k=random_.randrange(1, 4))) for _ in range(300)]
    for number in range(3):
        lines = [" ".join(random_.choices(words, k=random_.randrange(5, 20))) for _ in range(400)]
        storage.write_atomic(f"gs://runs/texts/{number}.txt", "\n".join(lines))


def digests(run: Cluster) -> dict[str, str]:
    """What the run has made: the dataset, and the parameters as they were exported."""
    kept = ("dataset/", "tokenizer/", "export/model.safetensors")
    return {name: storage.sha256(run.workdir / name) for name in storage.walk(run.workdir) if name.startswith(kept)}


def repeated_steps(run: Cluster) -> list[int]:
    """For each attempt after the first, how many steps it computed that the bucket has of an earlier one."""
    reached, repeated = 0, []
    for path in (path for path in storage.list_folder(run.workdir / "metrics") if path.suffix == ".jsonl"):
        lines = [json.loads(line) for line in storage.read_text(path).splitlines()]
        steps = [line["step"] for line in lines if line["kind"] == "train"]
        if steps and reached:
            repeated.append(max(0, reached - min(steps) + 1))
        reached = max([reached, *steps])
    return repeated
