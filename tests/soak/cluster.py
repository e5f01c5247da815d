"""Two hosts of two devices each, as processes of this machine, whose work folder lies in the emulator's Cloud Storage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import compiled
from ports import free_port_pair
from tpulm import storage

NUM_HOSTS = 2
STRICT = ("JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION")  # a user's machine has them not

RUN_FILE = """
tokenizer.vocab_size = 150
corpus = {{sources = ["gs://runs/texts/*.txt"], holdout_fraction = 0.05}}
data = {{sequence_length = 32, rows = "packed", part_bytes = 20_000}}
model = {{num_layers = 1, hidden_size = 32, num_heads = 2, intermediate_size = 64, max_positions = 32}}
[train]
batch_size = 8
steps = {steps}
log_every_steps = 1
evaluate_every_steps = {evaluate}
checkpoint.every_steps = {interval}
"""


class Cluster:
    """The processes of one run. `start` begins an attempt; what they write goes to folder/host{index}.log."""

    program: tuple[str, ...] = ("-m", "tpulm")

    def __init__(self, run_file: Path, workdir: str, environment: Mapping[str, str]):
        self.run_file, self.workdir, self.folder = run_file, storage.as_path(workdir), run_file.parent
        inherited = {name: value for name, value in os.environ.items() if name not in STRICT}
        self._environment = {**inherited, **environment, "XLA_FLAGS": compiled.flags(devices=2)}
        self.hosts: list[subprocess.Popen[bytes]] = []
        self.attempts = 0

    def start(self, *, num_hosts: int = NUM_HOSTS) -> None:
        self.attempts += 1
        coordinator = f"127.0.0.1:{free_port_pair()}"
        self.hosts = []
        for index in range(num_hosts):
            command = [sys.executable, *self.program, "run", str(self.run_file), "--workdir", str(self.workdir)]
            several = ["--coordinator", coordinator, "--num-hosts", str(num_hosts), "--host-index", str(index)]
            with self.log(index).open("ab") as log:
                log.write(f"\n=== attempt {self.attempts}\n".encode())
                log.flush()
                words = command + several * (num_hosts > 1)
                host = subprocess.Popen(words, env=self._environment, stdout=log, stderr=log, start_new_session=True)
                self.hosts.append(host)

    def complete(self, *, num_hosts: int = NUM_HOSTS) -> None:
        """Run to the end, with nothing happening to it."""
        self.start(num_hosts=num_hosts)
        assert self.wait(300) == [0] * num_hosts, self.tails()
        assert not storage.exists(self.workdir / "failures")

    def log(self, index: int) -> Path:
        return self.folder / f"host{index}.log"

    def is_running(self) -> bool:
        return any(host.poll() is None for host in self.hosts)

    def is_complete(self) -> bool:
        return all(host.poll() == 0 for host in self.hosts)

    def wait(self, seconds: float) -> list[int]:
        """The exit codes of all hosts. Raises AssertionError, with the logs, when one does not end in time."""
        until = time.monotonic() + seconds
        while self.is_running():
            assert time.monotonic() < until, f"a host still runs after {seconds:.0f} s\n{self.tails()}"
            time.sleep(0.05)
        return [host.returncode for host in self.hosts]

    def send(self, number: signal.Signals, *indices: int) -> None:
        for index in indices or range(len(self.hosts)):
            if self.hosts[index].poll() is None:
                os.killpg(self.hosts[index].pid, number) if number == signal.SIGKILL else self.hosts[index].send_signal(number)

    def is_training(self) -> bool:
        """Whether this attempt takes steps already."""
        return "Training" in self.log(0).read_text().rpartition("=== attempt")[2]

    def committed_step(self) -> int:
        """The step of the newest whole checkpoint; 0 if there is none."""
        return max(storage.committed_steps(self.workdir / "checkpoints"), default=0)

    def is_committing(self) -> bool:
        """Whether a checkpoint is being written."""
        names = [name.split("/") for name in storage.walk(self.workdir / "checkpoints")]
        begun = {parts[0] for parts in names if parts[0].isdigit()}
        return bool(begun - {parts[0] for parts in names if parts[1:] == ["commit_success.txt"]})

    def tails(self) -> str:
        return "\n".join(f"--- host {index}\n{self.log(index).read_text()[-3000:]}" for index in range(len(self.hosts)))
