"""Fine-tuning on one device and on two hosts of two (processes of this machine) gives one result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from task_examples import NO_EXAMPLES, same

import compiled
from encoders import reviews, write_tsv
from ports import free_port_pair
from tpulm.config import FinetuneConfig
from tpulm.convert.huggingface import load_model
from tpulm.labelled.rows import Rows
from tpulm.nn.params import named_leaves
from tpulm.runtime.hosts import Hosts
from tpulm.train.finetuning_program import Epochs, Labelled
from waiting import until

SETTINGS = ["--epochs=4", "--batch-size=16", "--learning-rate=5e-3", "--max-length=16", "--seeds=2", "--set=log_every_steps=1"]
DEV, TEST = 61, 37  # examples: no multiples of anything
# The second seed waits after each of its steps until there is a file, so that no machine is too busy to disturb it in time.
HELD = """
import runpy, sys, time
from pathlib import Path
from tpulm.train.metrics import MetricsLog

write, released = MetricsLog.write, Path(sys.argv.pop(1))

def held(self, *record):
    write(self, *record)
    while "seed-1" in str(self._path) and not released.exists():
        time.sleep(0.05)

MetricsLog.write = held
runpy.run_module("tpulm", run_name="__main__", alter_sys=True)
"""


def test_the_slices_of_all_hosts_make_the_batch() -> None:
    lengths = np.arange(3, 24)
    rows = Rows(np.arange(lengths.sum(), dtype=np.int32), np.concatenate([[0], np.cumsum(lengths)]), lengths)
    data = Labelled(rows, np.arange(21, dtype=np.int32), NO_EXAMPLES)
    config = FinetuneConfig(batch_size=8, max_length=24)

    def batches(hosts: Hosts) -> list[dict[str, np.ndarray]]:
        epochs = Epochs(data, config, 0, batch_size=8, pad=0, hosts=hosts)
        return [batch for (_, batch), _ in zip(epochs.iterate(0), range(3), strict=False)]

    whole, parts = batches(Hosts()), [batches(Hosts(index, 4)) for index in range(4)]
    for number, batch in enumerate(whole):
        for name, column in batch.items():
            assert np.array_equal(np.concatenate([part[number][name] for part in parts]), column)
    labels = np.concatenate([batch["labels"][batch["weights"] > 0] for batch in whole])
    assert sorted(labels) == list(range(21))


class Attempt(NamedTuple):
    output: Path
    hosts: list[subprocess.Popen[str]]

    def end(self, *codes: int) -> list[str]:
        """What each host said. Raises AssertionError where they end otherwise."""
        said = [host.communicate(timeout=300)[0] for host in self.hosts]
        assert tuple(host.returncode for host in self.hosts) == codes, "\n".join(said)
        return said

    @property
    def params(self) -> Any:
        return load_model(self.output).params

    def results(self) -> list[dict[str, Any]]:
        """The result of each seed, without its speed."""
        paths = [self.output / "finetuning" / f"seed-{seed}" / "result.json" for seed in (0, 1)]
        return [json.loads(path.read_text()) | {"rows_per_second": None} for path in paths]


Start = Callable[..., Attempt]


@pytest.fixture(scope="module")
def start(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A function (name, devices of each host, hosts, held until) that begins a fine-tuning, or goes on with it."""
    folder = tmp_path_factory.mktemp("several-hosts")
    noisy = [(text, "pos" if number % 10 == 0 else label) for number, (text, label) in enumerate(reviews(150))]
    files = {"train": noisy, "dev": noisy[:20] + reviews(DEV - 20, seed=2), "test": reviews(TEST, seed=3)}
    given = [f"--{name}={write_tsv(folder / f'{name}.tsv', examples)}" for name, examples in files.items()]
    begun: list[subprocess.Popen[str]] = []

    def start(name: str, devices: int, hosts: int = 1, *, held: Path | None = None) -> Attempt:
        program = ["-m", "tpulm"] if held is None else ["-c", HELD, str(held)]
        command = [sys.executable, *program, "finetune", str(encoder), *given, "--text-column=document", *SETTINGS]
        command.append(f"--output={folder / name}")
        several = [f"--coordinator=127.0.0.1:{free_port_pair()}", f"--num-hosts={hosts}"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        pipes["env"] = os.environ | {"XLA_FLAGS": compiled.flags(devices)}
        of_hosts = [[*several, f"--host-index={index}"] for index in range(hosts)] if hosts > 1 else [[]]
        attempt = Attempt(folder / name, [subprocess.Popen([*command, *of_host], **pipes) for of_host in of_hosts])
        begun.extend(attempt.hosts)
        return attempt

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def two_hosts(start: Start) -> Attempt:
    attempt = start("two-hosts", 2, 2)
    said = attempt.end(0, 0)
    assert "Scores" in said[0] and "Scores" not in said[1]
    return attempt


@pytest.mark.slow
def test_one_device_and_two_hosts_give_one_result(start: Start, two_hosts: Attempt) -> None:
    alone = start("one-device", 1)
    alone.end(0)
    reference, first = alone.results(), named_leaves(alone.params)
    summary = json.loads((alone.output / "finetune.json").read_text())
    assert 0.7 < reference[0]["dev"]["accuracy"] < 1.0 and np.sum(summary["confusion"]) == TEST
    assert summary["examples"] == {"train": 150, "dev": DEV, "test": TEST}
    for one, expected in zip(two_hosts.results(), reference, strict=True):
        assert one["best_epoch"] == expected["best_epoch"] and one["confusion"] == expected["confusion"]
        assert one["dev"] == pytest.approx(expected["dev"], rel=1e-4)
        for epoch, before in zip(one["history"], expected["history"], strict=True):
            assert epoch == pytest.approx(before, rel=1e-4)
    for name, value in named_leaves(two_hosts.params).items():
        np.testing.assert_allclose(value, first[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_hosts_that_are_stopped_and_killed_end_as_if_nothing_had_happened(
    start: Start, two_hosts: Attempt, tmp_path: Path
) -> None:
    """The stop comes to the second host, in the second seed: steps begin to count again with each."""
    name, metrics = "disturbed", "finetuning/seed-1/metrics/*.jsonl"
    stopped = start(name, 2, 2, held=tmp_path / "stopped")
    until(lambda: list(stopped.output.glob(metrics)), lambda: stopped.hosts, seconds=200)
    stopped.hosts[1].send_signal(signal.SIGTERM)
    (tmp_path / "stopped").touch()
    assert all("after saving step" in said for said in stopped.end(75, 75))

    killed = start(name, 2, 2, held=tmp_path / "never")
    until(lambda: len(list(killed.output.glob(metrics))) > 1, lambda: killed.hosts, seconds=200)
    for host in killed.hosts:
        host.kill()
    killed.end(-9, -9)

    ended = start(name, 2, 2)
    ended.end(0, 0)
    assert ended.results() == two_hosts.results() and same(ended.params, two_hosts.params)
    assert not list(ended.output.glob("finetuning/seed-*/checkpoints"))
