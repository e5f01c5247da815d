"""What a command was asked for is on stdout, as plain text where that is no terminal; what becomes of a stdout that fails."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import typer

from cloud_emulator import Emulator
from command_line import commands_of, invoke
from encoders import build_encoder, reviews, write_tsv
from toy_runs import run_file, write_corpus
from tpulm import storage
from tpulm.cli import terminal
from tpulm.cli.app import app
from tpulm.cloud.job import Job

W = ("--workdir", "gs://runs/toy")
TUNING = ("--text-column", "document", "--set", "epochs=1", "--set", "max_length=16")
ASKED: dict[str, tuple[str, ...]] = {
    "recipes": (),
    "settings": (),
    "tokenizer train": ("run.toml", "-w", "w"),
    "dataset prepare": ("run.toml", "-w", "w"),
    "train": ("run.toml", "-w", "w"),
    "evaluate": ("w",),
    "export": ("w",),
    "run": ("run.toml", "-w", "w"),
    "report": ("w",),
    "push": ("w", "user/toy", "--anyway", "--dry-run"),
    "dataset inspect": ("w",),
    "tokenizer report": ("w", "corpus.txt.gz"),
    "fill-mask": ("bert", "a very good [MASK]"),
    "generate": ("decoder", "a very", "--max-tokens", "3"),
    "import": ("bert", "--to", "imported"),
    "finetune": ("bert", "--train", "train.tsv", "-o", "classifier", *TUNING),
    "classify": ("classifier", "a very good film"),
    "embed": ("bert", "a very good film", "a film"),
    "devices": (),
    "cloud doctor": ("--accelerator", "v3-8", "--bucket", "runs"),
    "cloud setup": ("--accelerator", "v3-8", "--bucket", "made", "--yes"),
    "cloud status": W,
    "cloud cost": W,
    "cloud stop": W,
    "cloud supervise": W,
    "cloud audit": (),
    "cloud down": W,
}
# Which take long, a compiler or more machines: their results are looked for on stdout where they are tested.
ELSEWHERE = {
    "quickstart": "docs/generate.py, and it is `run` with another table",
    "plan": "cli/test_plan.py",
    "bench": "cli/test_bench.py",
    "dataset import-tfrecord": "cli/test_import_tfrecord.py",
    "cloud emulator": "cli/test_cloud_emulator.py",
    "cloud launch": "cli/test_cloud_launch.py",
    "cloud rehearse": "cli/test_cloud_launch.py",
    "cloud logs": "cloud/test_cloud_commands.py",
    "cloud ssh": "cloud/test_cloud_commands.py",
    "cloud smoke": "cloud/test_smoke.py",
    "cloud export skypilot": "cloud/test_export.py",
    "cloud export jobset": "cloud/test_export.py",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asked")
    for kind in ("bert", "decoder"):
        build_encoder(kind, root)
    write_tsv(root / "train.tsv", reviews(64))
    write_corpus(root / "corpus.txt.gz")
    (root / "run.toml").write_text(run_file("corpus.txt.gz"))
    with pytest.MonkeyPatch.context() as patch:  # so that the commands can be asked in any order
        patch.chdir(root)
        for name in ("run", "finetune"):
            assert invoke(name, *ASKED[name]).returncode == 0
    return root


def test_every_command_is_asked() -> None:
    assert dict(commands_of(typer.main.get_command(app))).keys() == ASKED.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", ASKED)
def test_what_was_asked_for_is_on_stdout(
    name: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if name.startswith("cloud"):
        _: Emulator = request.getfixturevalue("gcs")
        job = Job(run="toy", accelerator="v3-8", spot=True, zones=("us-central1-a",), prices={}, created_at=0.0, status="done")
        storage.write_atomic(storage.as_path("gs://runs/toy/cloud/job.json"), job.model_dump_json())
        storage.write_json(
            storage.as_path("gs://runs/toy/cloud/settings.json"), {"project": "tpulm-emulator", "bundle": "none"}
        )
    done = invoke(*name.split(), *ASKED[name])
    assert done.returncode in (0, 4) and done.stdout.strip(), done.stderr
    assert "\x1b" not in done.stdout and not any("│" in line or line != line.rstrip() for line in done.stdout.splitlines())


def test_no_line_is_folded_and_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.begin(as_json=False)
    terminal.print_table("[red]T", [("[b]한국어", "word " * 60 + "end"), ("a", "\x1b[2J\x9b")], header=("name", "text"))
    terminal.show("[bold]x[/]" * 30)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "[red]T",
        "name       text",
        "[b]한국어  " + "word " * 60 + "end",
        "a          \\u001b[2J\\u009b",
        "[bold]x[/]" * 30,
    ]


def test_beside_json_results_are_on_stderr(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = invoke("embed", "bert", "a film", "--json")
    assert [one["text"] for one in json.loads(done.stdout)] == ["a film"] and "Cosines" in done.stderr


WRITE = """
from tpulm.cli import app, terminal
def command():
    terminal.begin(as_json=False)
    terminal.{what}
    raise SystemExit(0)
app.typer.main.get_command = lambda app: command
app.main()
"""
TABLE, TEXT = "print_table('', [('name', 'value')] * 3000)", "write('\\ud55c\\uad6d\\uc5b4\\n')"


def process(
    what: str, stdout: Any, variables: Mapping[str, str] = MappingProxyType({}), end: str = ""
) -> subprocess.CompletedProcess[bytes]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONIO", "PYTHONUNBUFFERED"))
    }
    command = ["sh", "-c", f'exec "$0" -c "$1" {end}', sys.executable, WRITE.format(what=what)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env={**environment, **variables})


@pytest.mark.parametrize("what", [TABLE, TEXT, "print_json(['x' * 9])"])
def test_a_closed_pipe_ends_quietly(what: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process(what, writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("what", [TABLE, TEXT, "sys.stdout.write('x')", "print_json(['x' * 9])"])
def test_a_full_device_is_an_error(what: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = process(what, full)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert done.stderr.startswith(b"error: cannot use stdout: the disk is full")


def test_a_closed_stdout_is_an_error() -> None:
    done = process(TEXT, None, end=">&-")
    assert (done.returncode, done.stderr.decode()) == (1, f"error: cannot use stdout: {os.strerror(errno.EBADF)}\n")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LC_ALL": "C"}, "한국어\n".encode()),
        ({"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, "한국어\n".encode()),
        ({"PYTHONIOENCODING": "ascii"}, b"\\ud55c\\uad6d\\uc5b4\n"),
    ],
)
def test_text_is_utf_8_whatever_the_locale(variables: dict[str, str], expected: bytes) -> None:
    done = process(TEXT, subprocess.PIPE, variables)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
