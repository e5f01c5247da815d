"""`tpulm cloud doctor` and `tpulm cloud setup` as a user meets them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from cloud_emulator import Emulator
from command_line import run_cloud as run, terminal_of
from tpulm.cli import cloud_runs
from tpulm.errors import ConfigError

OPTIONS = ["--accelerator", "v3-8", "--bucket", "my-runs", "--zone", "us-central1-a"]


@pytest.fixture
def said(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> io.StringIO:
    """What is told on a terminal of 80 columns; in a folder without a cloud.toml."""
    monkeypatch.chdir(tmp_path)
    return terminal_of(monkeypatch, 80)


def test_from_nothing_to_a_doctor_that_is_content(said: io.StringIO, gcs: Emulator):
    gcs.tpu.disable_service("tpu.googleapis.com")
    code, out = run("doctor", *OPTIONS, "--json")
    told = json.loads(out)
    assert code == 4 and told["ok"] is False and told["project"] == "tpulm-emulator"
    assert {"name": "APIs", "ok": False, "found": "off: tpu", "remedy": "tpulm cloud setup"} in told["checks"]
    assert "What to do" in said.getvalue() and "    tpulm cloud setup\n" in said.getvalue()
    assert max(map(len, said.getvalue().partition("What to do")[0].splitlines())) <= 80
    code, out = run("setup", *OPTIONS, "--yes", "--json")
    assert code == 0 and json.loads(out)["done"][1] == "make the bucket gs://my-runs in us-central1"
    assert run("setup", *OPTIONS) == (0, "") and "nothing wrong was found" in said.getvalue()
    said.truncate(0)
    assert run("doctor", *OPTIONS) == (0, "")
    assert "nothing wrong was found" in said.getvalue() and "What to do" not in said.getvalue()


def test_cloud_toml_is_read_and_named(said: io.StringIO, tmp_path: Path):
    (tmp_path / "cloud.toml").write_text('bucket = "runs"\naccelerator = "v2-8"\n')
    run("doctor")
    assert "tpulm-emulator (cloud.toml), for runs on Cloud TPU" in said.getvalue() and "v2-8 is offered" in said.getvalue()


def test_setup_asks(said: io.StringIO, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="--yes"):
        run("setup", *OPTIONS)
    with pytest.raises(ConfigError, match="--bucket"):
        run("setup", "--accelerator", "v3-8")
    monkeypatch.setattr(cloud_runs, "is_asked", lambda: True)
    code, _ = run("setup", *OPTIONS, input="n\n")
    assert code == 1 and "nothing was changed" in said.getvalue() and gcs.bucket_names() == ["runs"]
    code, _ = run("setup", *OPTIONS, input="y\n")
    assert code == 0 and gcs.bucket_names() == ["my-runs", "runs"]
