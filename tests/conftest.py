"""What every test runs under: the CPU as two devices, strict types and ranks, no network, and no state left by earlier runs.

Two prove what eight do, in half the time to compile; the layout that takes eight is computed in a process of its own.

Everything is set through the environment, before anything imports JAX, so that tests of the JAX-free layers stay fast and
worker processes inherit the same rules.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from unittest.mock import Mock

import hypothesis
import pytest

import compiled

if TYPE_CHECKING:
    from cloud_emulator import Emulator, MachineSettings
    from tpulm import pipeline
    from tpulm.config import RunConfig
    from tpulm.tokenization import Tokenization

REPOSITORY = Path(__file__).resolve().parents[1]

STRICT = {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise", "XLA_FLAGS": compiled.flags(devices=2)}
QUIET = {
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",  # decided here, so that the library has nothing to warn of after a fork
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}
CLOUD = {  # read when the clients' modules are imported, so set before: none may look for credentials or a metadata server
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    "NO_GCE_CHECK": "true",
    "EPATH_USE_TF": "false",
}
os.environ.update(STRICT | QUIET | CLOUD)

# A folder for what this session leaves: the temporary files of libraries. Workers and the processes that
# tests start inherit it, and are known by it at the end.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # what tests write stays where pytest keeps it
    os.environ["TPULM_TESTS"] = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tpulm-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled.folder(STRICT["XLA_FLAGS"]))
    atexit.register(shutil.rmtree, os.environ["TPULM_TESTS"], ignore_errors=True)

# What ignores SIGHUP, as under nohup, has children that ignore it. A handler is not inherited.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or "TPULM_TESTS_NOHUP" in os.environ:
    os.environ["TPULM_TESTS_NOHUP"] = "1"
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# The same examples on every run: a failure here is a failure for everybody.
hypothesis.settings.register_profile("tpulm", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tpulm")

NO_TORCH = "torch is not installed: run '.venv/bin/pip install torch' to run the parity tests"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark users of the `torch` fixture as needs_peer, and skip them where torch is missing. The longest come first, so that
    no worker waits for them at the end."""
    items.sort(key=lambda item: "soak" not in item.path.parts)
    missing = importlib.util.find_spec("torch") is None
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.needs_peer)
            if missing:
                item.add_marker(pytest.mark.skip(reason=NO_TORCH))


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """The torch module; tests that use it are skipped, saying why, where it is not installed."""
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora, vocabularies and fixtures: $TPULM_TEST_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("TPULM_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder; set TPULM_TEST_DATA to one")
    return folder


@pytest.fixture(scope="module", autouse=True)
def programs_of_one_module() -> Iterator[None]:
    """What a module of tests compiled goes with it: thousands of programs are gigabytes, and slow every exception down."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path, pipeline.Summary]:
    """`toy_config` run to its end, once a worker: its settings, work folder and summary. Change a copy of the folder only."""
    from toy_runs import toy_config, write_corpus
    from tpulm import pipeline

    folder = tmp_path_factory.mktemp("toy")
    config = toy_config(write_corpus(folder / "corpus.txt.gz"))
    return config, folder / "w", pipeline.run(config, folder / "w")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenization:
    """WordPiece of 60 tokens."""
    from encoders import WORDS
    from tpulm import tokenization

    path, numbered = tmp_path_factory.mktemp("words") / "vocab.txt", (f"word{number}" for number in range(36))
    words = [*WORDS, "old", "cat", "sees", "a", "##s", ",", "我", "爱", "你", *numbered]
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return tokenization.load(path)


@pytest.fixture
def machines() -> MachineSettings | None:
    """What emulated TPU VMs are like; a module of tests may have others."""
    return None


@pytest.fixture(scope="session")
def running_emulators() -> Iterator[list[Emulator]]:
    """The emulator of this worker, once a test has used it; starting and stopping one takes longer than most tests."""
    running: list[Emulator] = []
    yield running
    for emulator in running:
        emulator.stop()


@pytest.fixture
def emulator(running_emulators: list[Emulator], machines: MachineSettings | None) -> Iterator[Emulator]:
    """Google Cloud on this machine, as just started: without buckets, and at an address that no other test has seen."""
    from cloud_emulator import Emulator

    if running_emulators and running_emulators[0].is_running:
        running_emulators[0].reset(machines)
    else:  # none yet, or the last test stopped it
        running_emulators[:] = [Emulator(machines=machines).start()]
    yield running_emulators[0]
    if running_emulators[0].is_running:  # ends machines, and clients that retry in the background
        running_emulators[0].reset()


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> Iterator[Emulator]:
    """An emulator with an empty bucket gs://runs; this process and its children go there."""
    _forget_clients()
    gc.freeze()  # what is collected below is what the test left; going through all that JAX keeps of others takes seconds
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    emulator.create_bucket("runs", location="US-CENTRAL1")
    yield emulator
    emulator.faults.clear()
    _forget_clients()
    with warnings.catch_warnings():  # what the clients left open, lest the next test be blamed for it
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()


def _forget_clients() -> None:
    """fsspec, epath and our own storage keep what leads to Cloud Storage for the life of the process."""
    from tpulm import storage

    storage.forget_clients()
    if "gcsfs" in sys.modules:
        sys.modules["gcsfs"].GCSFileSystem.clear_instance_cache()
    if "etils.epath.backend" in sys.modules:
        sys.modules["etils.epath.backend"]._FileSystemSpecBackend._get_filesystem.cache_clear()


@pytest.fixture
def user_environment() -> dict[str, str]:
    """The environment for a command run as a user would: still offline and on the CPU, without the strictness above."""
    return {name: value for name, value in os.environ.items() if name not in STRICT} | {"XLA_FLAGS": compiled.flags()}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what a failed test left running, and fail for what others did.

    A program that still compiles in a thread when the interpreter ends would abort the process.
    """
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join(timeout=60)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    compiled.tidy(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]))
    until = time.monotonic() + 10
    ending_with_us = "" if session.config.getoption("numprocesses", None) else "workers.serve"  # server of worker processes
    while (left := _processes_of_this_session(ending_with_us)) and time.monotonic() < until:
        time.sleep(0.1)
    for number, command in left.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        print(f"\nleft running by a test, and killed: {command}", file=sys.stderr)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _processes_of_this_session(but: str) -> dict[int, str]:
    """The processes that tests started and that still run, with their command lines, without those that have `but` in them."""
    mark = f"TPULM_TESTS={os.environ['TPULM_TESTS']}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if not but or but not in command:
                    found[int(folder.name)] = command
    return found


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has asked this process to stop."""
    from tpulm.errors import Stopped
    from tpulm.runtime import interrupt

    monkeypatch.setattr(interrupt, "check", Mock(side_effect=Stopped("stopped")))
