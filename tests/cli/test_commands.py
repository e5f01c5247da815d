"""The commands as a user meets them: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import typer

from command_line import commands_of, invoke, run_process
from toy_runs import run_file, toy_config, write_corpus
from tpulm import storage
from tpulm.cli.app import app
from tpulm.cli.run import _sources
from tpulm.config import RunConfig
from tpulm.pipeline import Summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("commands")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus" / "a.txt.gz")
    (root / "run.toml").write_text(run_file("corpus/*.gz"))
    return root


def test_a_run_that_is_complete_is_summed_up_again(toy_run: tuple[RunConfig, Path, Summary]) -> None:
    _, workdir, summary = toy_run
    done = invoke("run", workdir / "run.json", "--workdir", workdir, "--json", code=0)
    assert "Nothing to do" in done.stderr
    assert json.loads(done.stdout) == {**asdict(summary), "stages": dict.fromkeys(summary.stages, "skipped")}
    prepared = invoke("dataset", "prepare", workdir / "run.json", "--workdir", workdir, "--json", code=0)
    assert json.loads(prepared.stdout)["train"]["rows"] > 0


def test_mistakes_have_their_code_and_their_hint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for arguments, code, said in (
        (("run", "run.toml", "-w", "v", "--set", "train.stepps=3"), 2, "'train.steps'"),
        (("run", "bert-tiney", "-w", "v"), 2, "'bert-tiny'"),
        (("run", "run.toml", "-w", "v", "--set", "corpus.sources=['corpus/b.txt']"), 2, "b.txt"),
        (("run", "run.toml", "-w", "run.toml"), 1, "run.toml"),
        (("evaluate", "corpus"), 2, "run.json"),
        (("fill-mask", "corpus", "a [MASK]"), 2, "corpus"),
        (("export", "w", "--revisions", "--format", "onnx"), 2, "--revisions"),
        (("nonsense",), 2, "nonsense"),
        (("run", "run.toml"), 2, "--workdir"),
    ):
        result = invoke(*arguments, code=code)
        assert result.stdout == "" and said in result.stderr


def test_an_error_is_a_line_and_an_exit_code(user_environment: dict[str, str]) -> None:
    result = run_process("settings", "warmpu", environment=user_environment)
    assert (result.returncode, result.stdout, result.stderr[:7]) == (2, "", "error: ") and "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["../below/link/..//w/", "C:\t\\q'\"q %20#?*[x]ㅎ", "./-w/~"])
def test_a_path_that_a_person_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """As `os.path.realpath` understands it: named that way the work goes on."""
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "below" / "a").mkdir(parents=True)
    (tmp_path / "below" / "link").symlink_to(tmp_path / "there" / "deep")
    monkeypatch.chdir(tmp_path / "below")
    real = Path(os.path.realpath(name))
    shutil.copytree(folder / "corpus", real / "corpus")
    shutil.copy(folder / "run.toml", real)
    for run, workdir in ((f"{name}/run.toml", f"--workdir={name}/w"), (real / "run.toml", f"--workdir={real}/w")):
        invoke("dataset", "prepare", run, workdir, "--json", code=0)
    source = json.loads((real / "w" / "run.json").read_text())["corpus"]["sources"][0]
    assert source["path"] == str(real / "corpus" / "*.gz")
    invoke("dataset", "inspect", "--rows", 1, "--", f"{name}/w", code=0)
    invoke("tokenizer", "report", "--json", "--", f"{name}/w", f"{name}/corpus/*.gz", code=0)
    missing = invoke("report", "--", f"{name}/none")
    assert str(storage.as_path(f"{name}/none")).replace("\t", "\\t") in missing.stderr  # as it was typed


LONG_WORK = """
import time
from tpulm import storage
from tpulm.cli import app
def work():
    {before}
    print("at work", flush=True)
    {work}
app.typer.main.get_command = lambda app: work
app.main()
"""
# Short sleeps: a signal between Python's look for one and the system call of a sleep waits for that sleep to end.
SLEEPS = "[time.sleep(0.1) for _ in range(600)]"
HALF_A_FILE = "block = storage.built_aside('a.tsv'); open(block.__enter__(), 'w').write('half')"


@pytest.mark.parametrize(
    ("before", "work"),
    [("pass", SLEEPS), ("pass", f"import jax; jax.jit(lambda x: x)(1.0); {SLEEPS}"), (HALF_A_FILE, SLEEPS)],
    ids=["asleep", "importing", "writing"],
)
def test_ctrl_c_ends_a_command(user_environment: dict[str, str], tmp_path: Path, before: str, work: str) -> None:
    """At once and without a traceback, also while heavy libraries are being imported; no half of a file is left."""
    script = [sys.executable, "-c", LONG_WORK.format(before=before, work=work)]
    process = subprocess.Popen(script, env=user_environment, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    assert len(list(tmp_path.iterdir())) == (before == HALF_A_FILE)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "stopped\n") and not list(tmp_path.iterdir())


EVERY = {name.split()[-1]: command for name, command in commands_of(typer.main.get_command(app))}


def said_of(command: Any, arguments: list[str]) -> str:
    """What is wrong with the arguments, if anything is; nothing is run."""
    try:
        command.make_context(command.name, arguments)
    except Exception as error:  # of the parser, which has no public name for them
        return str(error)
    return ""


@pytest.mark.parametrize("name", EVERY)
def test_an_option_is_given_once(name: str) -> None:
    """But for those that say they may be repeated; and each has a help text, also where it is a setting's meaning."""
    assert [item.name for item in EVERY[name].params if not item.help] == []
    options = [item for item in EVERY[name].params if item.param_type_name == "option" and not item.is_eager]
    for option in options:
        given = [option.opts[0]] if option.is_flag else [option.opts[0], "1"]
        refused = f"{option.opts[0]} is given 2 times; give it once." in said_of(EVERY[name], [*given, *given])
        assert refused is not option.multiple, option.name
    repeated = "overrides bucket zones corpus texts on dev_column test_column track choice pair include"
    assert {option.name for option in options if option.multiple} <= {*repeated.split()}


def test_an_empty_path_is_refused() -> None:
    """As of an unset variable: it would be the current folder."""
    for name, arguments in (("run", ["x.toml", "--workdir", ""]), ("evaluate", [""]), ("push", ["", "a/b"])):
        assert "empty path" in said_of(EVERY[name], arguments), name


def test_text_to_score_has_an_encoding_and_a_format_of_its_own(tmp_path: Path) -> None:
    """Whatever those of the run's first source; its field is the run's."""
    source = {"path": str(tmp_path / "old.jsonl"), "encoding": "cp949", "format": "jsonl", "text_field": "body"}
    config = toy_config(tmp_path, corpus={"sources": [source]})
    (one,) = _sources(config, ["new.txt"], {})
    assert (one.encoding, one.format, one.text_field) == ("utf-8", "auto", "body")
    (one,) = _sources(config, ["new"], {"encoding": "cp932", "format": "text"})
    assert (one.encoding, one.format) == ("cp932", "text")
