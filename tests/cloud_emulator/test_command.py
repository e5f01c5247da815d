"""`python -m cloud_emulator`, without tpulm."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from cloud_emulator import Emulator, __main__
from tpulm import accelerators

COMMAND = [sys.executable, "-m", "cloud_emulator", "--port", "0"]


def test_from_start_to_end(tmp_path: Path):
    earlier = Emulator(tmp_path / "kept")  # so that a bucket is there already
    earlier.create_bucket("runs")
    earlier.stop()
    command = [*COMMAND, "--folder", str(tmp_path / "kept"), "--bucket", "runs", "--bucket", "more", "--project", "my-project"]
    written = tmp_path / "emulator.sh"
    written.touch(0o644)
    with written.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        url = child.stderr.readline().split()[2].rstrip(";")
        for bucket in ("runs", "more"):
            assert requests.get(f"{url}/storage/v1/b/{bucket}", timeout=30).json()["name"] == bucket
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (0, "")
    said = written.read_text()
    assert f"export STORAGE_EMULATOR_HOST={url}\n" in said and "export GOOGLE_CLOUD_PROJECT=my-project\n" in said
    assert written.stat().st_mode & 0o777 == 0o600, "the token is its owner's alone"


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["cloud_emulator", "--port", "0", "--bucket", "X"])
    with pytest.raises(SystemExit, match=r"'X'$"):
        __main__.main()


def test_types_and_zones_of_a_file(tmp_path: Path):
    own = Path(accelerators.__file__).with_name("accelerators.toml").read_text().replace('"us-central2-b"', '"moon-base1-a"')
    (tmp_path / "own.toml").write_text(own)
    with Emulator(accelerators=tmp_path / "own.toml") as emulator:
        place = f"{emulator.url}/v2/projects/tpulm-emulator/locations/moon-base1-a"
        assert requests.get(f"{place}/acceleratorTypes/v4-8", timeout=30).json()["type"] == "v4-8"
