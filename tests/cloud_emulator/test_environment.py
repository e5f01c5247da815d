"""The variables alone make a fresh process talk to the emulator, without a search for credentials or a metadata server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloud_emulator import Emulator, MachineSettings, rehearsal
from tpulm import config

PROGRAM = """
import socket
find = socket.getaddrinfo

def near(host, *arguments, **more):
    assert host == "127.0.0.1", f"a search of {host}, which takes tens of seconds"
    return find(host, *arguments, **more)

socket.getaddrinfo = near
import fsspec
import tensorstore
from etils import epath
from google.cloud import storage

files = fsspec.filesystem("gs")
files.pipe("runs/gcsfs", b"1")
assert files.cat("runs/gcsfs") == b"1"

path = epath.Path("gs://runs/folder/epath")
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text("2")
assert path.read_text() == "2"

client = storage.Client()
client.bucket("runs").blob("client").upload_from_string(b"3")
assert client.bucket("runs").blob("client").download_as_bytes() == b"3"

store = tensorstore.KvStore.open("gs://runs/").result()
store.write("tensorstore", b"4").result()
assert store.read("tensorstore").result().value == b"4"
"""


def test_a_clean_process_stalls_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Emulator() as emulator:
        emulator.create_bucket("runs")
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **emulator.environment}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "LIST buckets" not in emulator.requests
    monkeypatch.setenv("no_proxy", "intranet")
    assert Emulator().environment["NO_PROXY"] == "intranet,127.0.0.1", "the user's own exceptions are kept"


STORAGE_ALONE = """
import sys, urllib.request
from cloud_emulator import Emulator

with Emulator() as emulator:
    urllib.request.urlopen(emulator.url + "/storage/v1/b", timeout=30).read()
    urllib.request.urlopen(emulator.url + "/_iam/v1/roles/tpu.admin", timeout=30).read()
assert not {"google.cloud.tpu_v2", "proto", "grpc", "tpulm"} & set(sys.modules)
sys.modules["google.cloud.tpu_v2"] = None
from cloud_emulator.errors import EmulatorError
try:
    with Emulator() as emulator:
        emulator.tpu
except EmulatorError as error:
    assert "pip install google-cloud-tpu" in str(error)
else:
    raise AssertionError("the types are not there, and nobody noticed")
"""


def test_the_types_of_the_tpu_api_are_loaded_when_they_are_needed():
    done = subprocess.run([sys.executable, "-c", STORAGE_ALONE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_vms_of_a_rehearsal_have_the_tpulm_that_rehearses(monkeypatch: pytest.MonkeyPatch):
    """Wherever it was found; they would install it otherwise."""

    def begin(*, machines: MachineSettings) -> Emulator:
        code = "import tpulm; print(tpulm.__file__)"
        done = subprocess.run(
            [sys.executable, "-c", code], env=machines.environment, capture_output=True, text=True, check=True
        )
        raise FileNotFoundError(done.stdout.strip())

    monkeypatch.setattr(rehearsal, "Emulator", begin)
    with pytest.raises(FileNotFoundError) as found:
        rehearsal.rehearse(config.load("quickstart"), "v3-8", 1, None, prepare=print, log=print, drawn=pytest.fail)
    assert str(found.value) == config.__file__.replace("config/__init__", "__init__")
