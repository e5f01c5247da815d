"""What a command was asked for is on stdout, as plain text where that is no terminal; what becomes of a stdout that fails."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

import tpulm
from cloud_emulator import Emulator, MachineSettings
from command_line import commands_of, invoke
from encoders import build_encoder
from toy_runs import run_file, write_corpus, write_records
from tpulm import storage
from tpulm.cli import terminal
from tpulm.cli.app import app
from tpulm.cloud import bundle, smoke
from tpulm.cloud.job import Job, Node
from tpulm.config import canonical_json, load
from tpulm.runtime import interrupt

W = ("--workdir", "gs://runs/toy")
CLOUD = storage.as_path("gs://runs/toy/cloud")
ZONES, PROJECT = ("us-central1-a",), "tpulm-emulator"
JOB = Job(run="toy", accelerator="v6e-8", spot=True, zones=ZONES, project=PROJECT, created_at=0.0, status="done", attempt=1)
WHERE = ("--accelerator", "v6e-8", "--bucket", "runs")
ASKED: dict[str, tuple[str, ...]] = {
    "recipes": (),
    "settings": (),
    **dict.fromkeys(("tokenizer train", "dataset prepare", "train", "run"), ("w/run.json", "-w", "w")),
    **dict.fromkeys(("evaluate", "export", "report", "dataset inspect"), ("w",)),
    "push": ("w", "user/toy", "--anyway", "--dry-run"),
    "tokenizer report": ("w", "corpus.txt.gz"),
    "fill-mask": ("bert", "a very good [MASK]"),
    "generate": ("decoder", "a very", "--max-tokens", "3"),
    "import": ("bert", "--to", "imported-{}"),
    "classify": ("classifier", "a very good film"),
    "embed": ("bert", "a very good film", "a film"),
    "devices": (),
    "plan": ("run.toml", "--accelerator", "v3-8"),
    "dataset import-tfrecord": ("bert.tfrecord-*", "--vocab", "vocab.txt", "--format", "bert", "--to", "records-{}"),
    "cloud emulator": ("--port", "0"),
    "cloud doctor": ("--accelerator", "v3-8", "--bucket", "runs"),
    "cloud setup": ("--accelerator", "v3-8", "--bucket", "made", "--yes"),
    "cloud smoke": ("--bucket", "runs", "--yes"),
    "cloud launch": ("run.toml", *WHERE, *W, "--no-check"),
    **{f"cloud {name}": W for name in ("status", "logs", "ssh", "cost", "stop", "supervise", "down")},
    "cloud audit": (),
}
# In tests of their own, and in .ci/run.
ELSEWHERE = {"finetune", "cloud rehearse", "cloud export skypilot", "cloud export jobset", "bench", "quickstart"}
SLOW = ("plan", "cloud smoke")  # compiles for another machine; runs on emulated ones


@pytest.fixture
def machines() -> MachineSettings:
    return MachineSettings(environment={"TPULM_LOOK_SECONDS": "0.2", "TPULM_BOOT_SECONDS": "5"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, toy_run: tuple[Any, Path, Any]) -> Path:
    root = tmp_path_factory.mktemp("asked")
    for kind in ("bert", "decoder"):
        build_encoder(kind, root)
    classifier = tpulm.Classifier(root / "bert", labels=("neg", "pos"), max_length=16)
    classifier.params = classifier.first_params(0)
    classifier.save_pretrained(root / "classifier")
    write_corpus(root / "corpus.txt.gz")
    write_records(root)
    (root / "run.toml").write_text(run_file("corpus.txt.gz"))
    shutil.copytree(toy_run[1], root / "w")
    return root


@pytest.fixture
def cloud(gcs: Emulator, folder: Path) -> None:
    """A run that has ended in the emulator's bucket, with its log."""
    gcs.tpu.set(create_seconds=0.1, delete_seconds=0.05)
    storage.write_atomic(CLOUD / "job.json", JOB.model_dump_json())
    storage.write_json(CLOUD / "settings.json", {"project": "tpulm-emulator", "bundle": "none"})
    storage.write_atomic(CLOUD / "attempts" / "1" / "log-0.txt", "step 1\n")
    storage.write_atomic(CLOUD / "run.json", canonical_json(load(folder / "run.toml")))
    for made in ("results", "export"):
        storage.copy_files(folder / "w" / made, CLOUD.parent / made)


def test_every_command_is_asked() -> None:
    assert dict(commands_of(typer.main.get_command(app))).keys() == ASKED.keys() | ELSEWHERE


@pytest.fixture
def words(name: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with its arguments, in a place where it has what it needs."""
    monkeypatch.chdir(folder)
    if name == "plan" and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    if name.startswith("cloud"):
        request.getfixturevalue("cloud")
    if name == "cloud smoke":
        (uv := folder / "nothing" / "uv").parent.mkdir(exist_ok=True)
        uv.touch()
        monkeypatch.setattr(bundle, "fetch_uv", lambda _: uv)  # so that its VMs install nothing
        monkeypatch.setattr(smoke, "Smoke", partial(smoke.Smoke, pause_seconds=0.2, appear_seconds=0.0))
        assert invoke("cloud", "setup", "--accelerator", "v5litepod-1", "--bucket", "runs", "--yes").returncode == 0
    if name == "cloud emulator":
        monkeypatch.setattr(interrupt, "requested", lambda: True)  # as Ctrl-C once it has begun
    if name == "cloud ssh":
        node = Node(name="toy-a1", zone="us-central1-a", attempt=1, intended_at=0.0, requested=True, state="READY")
        storage.write_atomic(CLOUD / "job.json", JOB.model_copy(update={"status": "active", "node": node}).model_dump_json())
    return [*name.split(), *(word.format(request.node.originalname) for word in ASKED[name])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ASKED])
def test_what_was_asked_for_is_on_stdout(words: list[str]) -> None:
    done = invoke(*words)
    assert done.returncode in (0, 4) and done.stdout.strip(), done.stderr
    assert "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("│") or line != line.rstrip()]


@pytest.mark.parametrize("name", ["recipes", "run", "generate", "cloud logs"])
def test_a_closed_pipe_ends_a_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises((SystemExit, BrokenPipeError)) as raised:
            typer.main.get_command(app)(words, standalone_mode=False)
            closed.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    assert not isinstance(raised.value, SystemExit) or raised.value.code == 1
    assert "error" not in capsys.readouterr().err


def test_no_line_is_folded_and_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.begin(as_json=False)
    terminal.print_table("[red]T", [("[b]한국어", "word " * 60 + "end"), ("a", "\x1b[2J\x9b")], header=("n[b]", "t\x1b]0;"))
    terminal.show("[bold]x[/]" * 30)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "[red]T",
        "n[b]       t\\u001b]0;",
        "[b]한국어  " + "word " * 60 + "end",
        "a          \\u001b[2J\\u009b",
        "[bold]x[/]" * 30,
    ]


def test_beside_json_results_are_on_stderr(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = invoke("embed", "bert", "a 영화", "--json")
    assert [one["text"] for one in json.loads(done.stdout)] == ["a 영화"] and "Cosines" in done.stderr
    assert "a 영화" in done.stdout, "as it is, where stdout is UTF-8"


WRITE = """
from tpulm.cli import app, terminal
def command():
    terminal.begin(as_json={as_json})
    terminal.{what}
    raise SystemExit(0)
app.typer.main.get_command = lambda app: command
app.main()
"""
TABLE, TEXT = "print_table('', [('name', 'value')] * 3000)", "write('\\ud55c\\uad6d\\uc5b4\\n')"


def process(what: str, end: str = "", **variables: str) -> tuple[int, str, str]:
    """Of a command that writes this: its exit code, stdout and stderr; `end` says to the shell where stdout goes."""
    outer = ("LC_", "LANG", "PYTHONIO", "PYTHONUNBUFFERED")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)} | variables
    command = ["sh", "-c", f'exec "$0" -c "$1" {end}', sys.executable, WRITE.format(what=what, as_json="json" in what)]
    done = subprocess.run(command, capture_output=True, env=environment, encoding="utf-8")
    return done.returncode, done.stdout, done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    for what in (TABLE, "print_json(['x' * 9])"):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [sys.executable, "-c", WRITE.format(what=what, as_json="json" in what)], stdout=writing, stderr=subprocess.PIPE
        )
        os.close(writing)
        assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_stdout_that_cannot_be_written_is_an_error() -> None:
    """Full, in what is flushed at once and at the end; or closed."""
    for what in (TABLE, "sys.stdout.write('x')"):
        code, _, said = process(what, "> /dev/full")
        assert (code, said.count("\n")) == (1, 1) and said.startswith("error: cannot use stdout: the disk is full")
    assert process(TEXT, ">&-") == (1, "", f"error: cannot use stdout: {os.strerror(errno.EBADF)}\n")


def test_text_is_utf_8_whatever_the_locale() -> None:
    assert process(TEXT, LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0") == (0, "한국어\n", "")
    assert process(TEXT, PYTHONIOENCODING="ascii") == (0, "\\ud55c\\uad6d\\uc5b4\n", "")
