"""`tpulm cloud emulator` as a user meets it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from cloud_emulator.server import environment_for
from command_line import invoke
from tpulm.runtime import interrupt
from waiting import until

COMMAND = [sys.executable, "-m", "tpulm", "cloud", "emulator"]


@contextmanager
def running(environment: dict[str, str], *arguments: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_from_start_to_ctrl_c_and_again(user_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """First as lines that a shell evaluates, then as JSON, when the buckets are there already."""
    arguments = ("--port", 0, "--folder", tmp_path, "--project", "my-project", "--bucket", "runs", "--bucket", "second")
    with running(user_environment, *arguments) as child:
        assert child.stdout is not None
        script = "".join(child.stdout.readline() for _ in range(len(environment_for(""))))
        command = ["sh", "-ec", script + 'echo "$STORAGE_EMULATOR_HOST $NO_GCE_CHECK"']
        shell = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]})
        url, check = shell.stdout.split()
        assert check == "true" and requests.get(f"{url}/storage/v1/b/runs", timeout=30).json()["name"] == "runs"
        assert requests.get(f"{url}/v2/projects/my-project/locations", timeout=30).json()["locations"]
        child.send_signal(signal.SIGINT)
        said, human = child.communicate(timeout=30)
        assert (child.returncode, said) == (0, "") and "gs://runs" in human and "Traceback" not in human
    monkeypatch.setattr(interrupt, "requested", lambda: True)  # as Ctrl-C once it has begun
    told = json.loads(invoke("cloud", "emulator", *arguments, "--json", code=0).stdout)
    assert told["project"] == told["environment"]["GOOGLE_CLOUD_PROJECT"] == "my-project"
    assert told["buckets"] == ["runs", "second"] and told["environment"]["STORAGE_EMULATOR_HOST"] == told["url"]


def test_refusals(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, message in (
            (("--port", 0, "--bucket", "NO"), "'NO'"),
            (("--port", 0, "--project", "Mine"), "'Mine'"),
            (("--port", taken.getsockname()[1]), "is in use"),
        ):
            assert message in invoke("cloud", "emulator", *arguments, code=2).stderr
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloud_emulator"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install -e '.[emulator]'" in invoke("cloud", "emulator", code=2).stderr


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(user_environment: dict[str, str], tmp_path: Path):
    arguments = ("--port", 0, "--folder", tmp_path / "kept", "--bucket", "runs", "--json")
    acknowledged, answers = dict[str, str](), list[str]()

    def url_of(child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        return json.loads(child.stdout.readline())["url"]

    def write_until_it_dies(url: str, writer: int) -> None:
        with contextlib.suppress(requests.RequestException):
            for number in range(100_000):
                name = f"{writer}/{number % 50}"
                parameters = {"uploadType": "media", "name": name}
                answer = requests.post(f"{url}/upload/storage/v1/b/runs/o", params=parameters, data=b"x" * number, timeout=30)
                acknowledged[name] = answer.json()["generation"]
                answers.append(name)

    for killed in range(1, 4):
        with running(user_environment, *arguments) as child:
            url = url_of(child)
            writers = [threading.Thread(target=write_until_it_dies, args=(url, writer)) for writer in range(4)]
            for writer in writers:
                writer.start()
            until(lambda enough=100 * killed: len(answers) > enough)
            child.kill()
            for writer in writers:
                writer.join()
    with running(user_environment, *arguments) as child:
        listed = requests.get(f"{url_of(child)}/storage/v1/b/runs/o", timeout=30).json()["items"]
    found = {item["name"]: item["generation"] for item in listed}
    assert len(acknowledged) > 20 and acknowledged.keys() <= found.keys()
    assert all(found[name] >= generation for name, generation in acknowledged.items())
    assert not list((tmp_path / "kept").rglob("*.new"))
    assert len(list((tmp_path / "kept" / "runs" / "bodies").iterdir())) == len(found)
