"""`tpulm` commands, in this process or in one of their own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console
from typer import testing
from typer.testing import CliRunner

from tpulm.cli import cloud, cloud_runs, terminal
from tpulm.cli.app import app
from tpulm.errors import TpulmError

testing._get_command = cache(testing._get_command)  # building all commands takes longer than most of them


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command with its name, such as "cloud status"."""
    for name, command in group.commands.items():
        inner = (*path, name)
        yield from commands_of(command, inner) if hasattr(command, "commands") else ((" ".join(inner), command),)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def invoke(*arguments: object, code: int | None = None) -> Done:
    """A command in this process, which ends with `code`, if that is given.

    The message of an error ends `stderr`, as `main` prints it; other exceptions are raised.
    """
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    done = Done(result.exit_code, result.stdout, result.stderr)
    if isinstance(result.exception, TpulmError):
        done = Done(result.exception.exit_code, result.stdout, f"{result.stderr}error: {result.exception}\n")
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert code is None or done.returncode == code, done.stderr
    return done


def run_cloud(*arguments: str, **settings: Any) -> tuple[int, str]:
    """The exit code and stdout of `tpulm cloud …` in this process; every error is raised."""
    result = CliRunner().invoke(app, ["cloud", *arguments], **settings)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def terminal_of(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    """What the cloud's commands print for people, on a terminal so wide."""
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False)
    for module in (cloud, cloud_runs, terminal):
        monkeypatch.setattr(module, "console", console)
    monkeypatch.setattr(terminal, "Screen", lambda **settings: console)
    return text


def run_process(
    *arguments: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpulm", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
