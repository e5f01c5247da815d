"""`tpulm cloud launch`, `supervise`, `stop` and `rehearse` as a user types them, against the emulator."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import compiled
from cloud_emulator import Emulator, EmulatorError, MachineSettings
from command_line import invoke
from toy_runs import run_file, write_corpus
from tpulm.cloud import bundle, setup
from tpulm.cloud.settings import load
from tpulm.errors import TpulmError
from waiting import is_alive, until

RUN = run_file("corpus.txt.gz", steps=2000) + "[train.optimizer]\nwarmup_steps = 20\n"
WHERE = ("--accelerator", "v3-8", "--bucket", "runs", "--zone", "us-central1-a")
V5P = ("--accelerator", "v5p-8", "--bucket", "runs", "--zone", "europe-west4-b")  # where there are only commitments
QUICK = {"XLA_FLAGS": compiled.flags()}  # for VMs: what they compute is compared with nothing
Tpulm = Callable[..., "subprocess.CompletedProcess[str]"]


def an_old_python() -> str | None:
    """As TPU VMs have it: one that tpulm does not run on. None where this machine has none."""
    found = [path for minor in ("8", "9", "10") for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")]
    names = (shutil.which(f"python3.{minor}") for minor in ("8", "9", "10"))
    return next((str(path) for path in [*found, *names] if path), None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "toy.toml").write_text(RUN)
    write_corpus(tmp_path / "corpus.txt.gz")
    return tmp_path


@pytest.fixture
def ready(gcs: Emulator) -> None:
    """As `tpulm cloud setup` leaves a project."""
    settings = load(project="tpulm-emulator", accelerator="v3-8", bucket="runs", zones=("us-central1-a",))
    setup.apply(setup.steps(setup.examine(settings)))


@pytest.fixture
def tpulm(gcs: Emulator, place: Path, user_environment: dict[str, str]) -> Tpulm:
    environment = {**os.environ, **user_environment, **gcs.environment}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"  # as on the VMs

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tpulm", *arguments]
        done = subprocess.run(command, cwd=place, env={**environment, **more}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_nothing_is_launched_without_a_yes(place: Path, gcs: Emulator, ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done = invoke("cloud", "launch", "toy.toml", *WHERE, "--no-plan")
    assert (done.returncode, gcs.tpu.nodes()) == (2, {})
    assert "--yes launches without asking" in done.stderr and "no budget" not in done.stderr
    assert "$2.04 an hour spot in us-central1-a (Cloud Billing Catalog, " in " ".join(done.stderr.split())
    unknown = invoke("cloud", "launch", "toy.toml", *V5P, "--no-plan", "--no-check")
    assert "not known in europe-west4-b" in unknown.stderr and "--yes launches without asking" in unknown.stderr
    default = invoke("cloud", "launch", "toy.toml", *V5P[:4], "--budget", "100", "--no-plan", "--no-check").stderr
    assert "us-east5-a, europe-west4-b: left out, far from gs://runs" in default
    assert "spot v5p-8 in us-central1-a; project" in " ".join(default.split())


@pytest.mark.usefixtures("ready")
def test_what_cannot_be_launched(place: Path, gcs: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for arguments, code, message in (
        (("--accelerator", "v3-8"), 2, "--bucket"),
        ((*WHERE[:4], "--zone", "us-east1-d"), 4, "us-east1-d"),
        ((*WHERE, "--workdir", "here"), 2, "here"),
        ((*WHERE, "--workdir", "gs://runs"), 2, "whole bucket"),
        ((*WHERE, "--prepare-on-tpu"), 2, "corpus.txt.gz"),
        ((*WHERE, "--prepare-on-tpu", "--set", "corpus.sources=hub:a/b"), 2, "hub:a/b"),
        ((*WHERE[:2], "--bucket", "nowhere-to-be-found", *WHERE[4:]), 4, "tpulm cloud setup"),
        ((*WHERE, "--no-check", "--zone", "us-central9-q"), 4, "us-central9-q"),
        ((*WHERE, "--budget", "0.1"), 4, "budget of $0.10"),
        ((*V5P, "--budget", "100", "--no-check"), 2, "europe-west4-b: write dollars_per_hour"),
    ):
        done = invoke("cloud", "launch", "toy.toml", *arguments, "--no-plan", "--yes", code=code)
        assert message in " ".join(done.stderr.split()) and gcs.tpu.nodes() == {}


def test_there_must_be_a_run(gcs: Emulator) -> None:
    for command in ("supervise", "stop"):
        done = invoke("cloud", command, "--workdir", "gs://runs/nothing", code=2)
        assert "'tpulm cloud launch' begins one" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("machines", [MachineSettings(environment=QUICK)], ids=["quick"])
def test_launched_in_the_background_and_launched_again(tpulm: Tpulm, gcs: Emulator, ready: None) -> None:
    """However busy machine and network are: the VM installs nothing, and the process in the background ends by itself."""
    gcs.tpu.set(create_seconds=0.1, delete_seconds=0.05)
    options = ("--set", "train.steps=50", "--no-plan", "--yes", "--python", sys.executable)
    launch = ("cloud", "launch", "toy.toml", *WHERE, *options)
    begun = tpulm(*launch, "--detach")
    found = re.search(r"Process (\d+) of this machine supervises it, and writes to (\S+)\.", " ".join(begun.stdout.split()))
    assert found is not None, begun.stderr
    try:
        until(lambda: not is_alive(int(found[1])), seconds=1800, pause=0.5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(found[1]), signal.SIGTERM)
    assert "the run is complete" in Path(found[2]).read_text()
    assert json.loads(invoke("cloud", "status", "--workdir", "gs://runs/toy", "--json").stdout)["status"] == "done"
    assert (gcs.tpu.nodes(), gcs.tpu.queued_resources()) == ({}, {})
    assert "gs://runs/toy/export" in tpulm(*launch).stdout
    assert invoke("cloud", "supervise", "--workdir", "gs://runs/toy").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "machines", [MachineSettings(python=an_old_python(), internet=False, environment=QUICK)], ids=["offline"]
)
def test_vms_with_an_old_python_and_no_way_to_a_package_index(
    tpulm: Tpulm, gcs: Emulator, place: Path, tmp_path: Path, fetchable_interpreter: dict[str, str]
) -> None:
    """They get an interpreter and all packages with the bundle."""
    try:
        bundle.fetch_wheels(["absl-py"], tmp_path / "wheels")
    except TpulmError as error:
        pytest.skip(f"no package index can be reached from here: {error}")
    gcs.tpu.set(create_seconds=0.1, delete_seconds=0.05)
    (place / "cloud.toml").write_text("external_addresses = false\n")
    tpulm("cloud", "setup", *WHERE, "--yes")
    consoles: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        launch = ("cloud", "launch", "toy.toml", *WHERE, "--set", "train.steps=50", "--no-plan", "--yes", "--json")
        done = pool.submit(tpulm, *launch, **fetchable_interpreter)
        while not done.done():
            with contextlib.suppress(EmulatorError):  # a node that is not on yet, or off again
                consoles += [gcs.tpu.console(name.rpartition("/")[2]) for name in gcs.tpu.nodes()]
            time.sleep(0.5)
    job = json.loads(done.result().stdout)
    assert (job["status"], job["attempt"], job["node"]) == ("done", 1, None), done.result().stderr
    assert re.search(r"installing tpulm\n.* starting \S+/env/bin/python -m tpulm run", max(consoles, key=len))
    assert (gcs.tpu.nodes(), gcs.tpu.queued_resources()) == ({}, {})


@pytest.fixture
def fetchable_interpreter(tmp_path: Path) -> dict[str, str]:
    """Variables by which uv takes this very interpreter for one to be downloaded."""
    base = Path(sys.base_prefix)
    if base == Path("/usr"):
        pytest.skip("the interpreter of the system cannot be moved to another folder")

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        beside = {"test", "tests", "__pycache__", "site-packages"} & set(entry.name.split("/"))
        return None if beside or entry.name.endswith(".a") else entry

    with tarfile.open(tmp_path / "python.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(base, "python", filter=wanted)
    major, minor, patch = sys.version_info[:3]
    described = {"name": "cpython", "os": "linux", "libc": "gnu", "arch": {"family": "x86_64", "variant": None}}
    described |= {"major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": None}
    described |= {"url": f"file://{tmp_path}/python.tar.gz", "sha256": None}
    (tmp_path / "downloads.json").write_text(json.dumps({f"cpython-{major}.{minor}.{patch}-linux-x86_64-gnu": described}))
    return {"UV_PYTHON_DOWNLOADS_JSON_URL": str(tmp_path / "downloads.json")}


@pytest.mark.slow
def test_a_rehearsal_exports_what_a_local_run_does(tpulm: Tpulm, place: Path) -> None:
    steps = ("--set", "train.steps=240")  # a longer run would be shortened to so many
    done = tpulm("cloud", "rehearse", "toy.toml", *steps, "--preempt", "2", "--to", "rehearsed", "--json")
    end = json.loads(done.stdout)
    assert "\nRehearsal\n" in done.stderr, "beside --json"
    assert (end["status"], end["interruptions"], end["left"]) == ("done", 2, {"nodes": 0, "queued_resources": 0})
    assert end["endings"][-1] == "done" and end["attempts"] == 3
    first, second, *_ = end["first_steps"]
    assert (first["attempt"], second["attempt"]) == (1, 2) and first["found"] == 0 < first["compiled"]
    # Programs of about half a second, as that of resuming, are kept and counted or not as busy as the machine is.
    assert 0 < second["found"] <= first["compiled"], "what the first VM compiled is in the bucket"
    assert second["compiled"] < first["compiled"]
    assert second["compile_seconds"] < first["compile_seconds"] / 2
    tpulm("run", "toy.toml", *steps, "--workdir", "w")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (place / "rehearsed" / name).read_bytes() == (place / "w" / "export" / name).read_bytes(), name
