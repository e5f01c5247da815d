"""`tpulm cloud status`, `logs`, `cost`, `audit`, `down` and `ssh` as a user meets them."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud_rig import OTHER_ZONE, PROJECT, WORKDIR_PATH, ZONE, job_of, node_of, plant, run_of, running, write_job

from cloud_emulator import Emulator
from command_line import run_cloud as run, terminal_of
from tpulm import storage, workfolder
from tpulm.cli import cloud_runs
from tpulm.cloud import launch as cloud_launch, prices, teardown
from tpulm.cloud.tpu_api import TpuApi
from tpulm.config import canonical_json
from tpulm.errors import ConfigError, InUse, StorageError, TpulmError, WorkFolderMismatch
from tpulm.storage.causes import client

W = ("--workdir", str(WORKDIR_PATH))


@pytest.fixture
def said(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> io.StringIO:
    """What is told on a terminal of 160 columns; in a folder without a cloud.toml."""
    monkeypatch.chdir(tmp_path)
    for module, name in ((teardown, "delete"), (teardown, "stop")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), pause_seconds=0.05))
    return terminal_of(monkeypatch, 160)


def training() -> None:
    """Fifty steps of it, two seconds each, with a checkpoint at 70 and a worker that was just heard."""
    now, begun = time.time(), 20
    steps = ({"step": begun + n, "time": now - 1000 + 2 * n, "tokens_per_second": 500.0} for n in range(51))
    lines = [json.dumps({"kind": "train", **step}) for step in steps]
    storage.write_atomic(WORKDIR_PATH / "metrics" / "0001.jsonl", "\n".join(lines) + "\n")
    storage.write_atomic(WORKDIR_PATH / "checkpoints" / "70" / storage.COMMIT, b"")
    beat = {"time": now - 12, "state": "training"}
    storage.write_json(WORKDIR_PATH / "cloud" / "attempts" / "2" / "beat-0.json", beat)


def test_status_of_a_run_that_nothing_supervises(said: io.StringIO, api: TpuApi, monkeypatch: pytest.MonkeyPatch):
    said = terminal_of(monkeypatch, 80)
    write_job(running())
    plant(api, "toy-a2")
    training()
    code, out = run("status", *W, "--json")
    told, text = json.loads(out), said.getvalue()
    assert code == 0 and (told["status"], told["wanted"], told["state"]) == ("active", "running", "READY")
    assert (told["checkpoint_step"], told["steps"], told["budget"]) == (70, 1000, 50.0)
    assert told["steps_per_second"] == pytest.approx(0.5) and 1500 < told["seconds_left"] <= 1860
    assert told["dollars"] == pytest.approx(4.0, abs=0.2) and told["needs_supervisor"] is True
    assert 12 <= told["workers"][0]["seconds_since_heartbeat"] < 300
    for part in ("unsupervised: tpulm cloud supervise --loop -w gs://runs/toy\n", "active, toy-a2 in us-central1-a",
                 "spot v3-8, READY; workers: 1 training, ", "70 of 1,000 (7%), checkpoint 70", "0.50 steps/s, 500 tokens/s; ",
                 " to the end", " of $50.00; $4", " left", "1 preempted, 1 running", "toy-a1 is PREEMPTED"):  # fmt: skip
        assert part in text
    assert len(text.splitlines()) <= 8 and max(map(len, text.splitlines())) <= 80


def test_status_without_an_answer_of_the_api(said: io.StringIO, api: TpuApi, gcs: Emulator):
    control = write_job(running())
    gcs.tpu.deny("tpu.*")
    with storage.held(control.folder):
        code, out = run("status", *W, "--json")
    told = json.loads(out)
    assert code == 0 and told["state"] is None and "tpu.nodes.get" in told["state_unknown_because"]
    assert told["supervisor"].startswith("process ") and "tpulm cloud supervise" not in said.getvalue()


def test_status_of_one_that_is_over_and_of_none(said: io.StringIO, gcs: Emulator):
    with pytest.raises(ConfigError, match="tpulm cloud launch"):
        run("status", *W)
    write_job(job_of(status="failed", message="the data is damaged"))
    assert run("status", *W) == (0, "")
    text = said.getvalue()
    assert "failed" in text and "the data is damaged" in text and "tpulm cloud supervise" not in text
    storage.write_atomic(WORKDIR_PATH / "cloud" / "job.json", b"")
    with pytest.raises(StorageError, match=r"job\.json"):
        run("status", *W)


def test_supervising_a_run_that_is_over(said: io.StringIO, gcs: Emulator):
    for status, code in (("done", 0), ("stopped", 0), ("failed", 1), ("refused", 4)):
        write_job(job_of(status=status))
        assert [run("supervise", *W)[0], run("supervise", "--loop", *W)[0]] == [code, code]


def test_a_pass_over_a_run_that_goes_on(said: io.StringIO, api: TpuApi, gcs: Emulator):
    """And while another supervises it."""
    control = write_job(running())
    plant(api, "toy-a2")
    training()
    with storage.held(control.folder):
        assert run("supervise", *W)[0] == 75
        with pytest.raises(InUse):
            run("supervise", "--loop", *W)
    code, out = run("supervise", *W, "--json")
    assert code == 75 and json.loads(out)["node"]["name"] == "toy-a2"
    told = json.loads(run("status", *W, "--json")[1])
    assert told["needs_supervisor"] is False and told["last_pass"] == pytest.approx(time.time(), abs=60)


def test_logs_go_to_stdout_alone(said: io.StringIO, gcs: Emulator):
    control = write_job(running())
    with pytest.raises(TpulmError, match=r"worker 0 .*attempt 2"):
        run("logs", *W)
    storage.write_atomic(control.attempt(2) / "log-1.txt", "step 1 [a]\nstep 2 한\n")
    assert run("logs", *W, "--worker", "1") == (0, "step 1 [a]\nstep 2 한\n")
    assert said.getvalue() == "attempt 2, worker 1\n"
    write_job(job_of(attempt=2, status="done"))
    assert run("logs", *W, "-f", "--worker", "1") == (0, "step 1 [a]\nstep 2 한\n")


def launch_of(steps: int, *options: str) -> tuple[str, ...]:
    """The command that launches `run_of(steps)`."""
    run_of_it = ("bert-tiny", "--set", "corpus.sources=['gs://runs/text.txt']", "--set", f"train.steps={steps}")
    place = ("--project", PROJECT, "--accelerator", "v3-8", "--bucket", "runs", "--budget", "50", *W)
    return ("launch", *run_of_it, *place, "--no-check", "--no-plan", "--yes", *options)


def test_launching_in_the_folder_of_a_run_that_is_done(said: io.StringIO, api: TpuApi, gcs: Emulator):
    """The same run is done; another is refused, and one whose model is gone gets it again."""
    write_job(job_of(status="done"))
    storage.write_atomic(WORKDIR_PATH / "run.json", canonical_json(run_of()))
    storage.write_atomic(WORKDIR_PATH / "export" / "model.safetensors", b"1")
    workfolder.write_result(WORKDIR_PATH, "export", {"step": 7}, product=WORKDIR_PATH / "export")
    storage.write_atomic(WORKDIR_PATH / "dataset" / "manifest.json", b"{}")
    assert run(*launch_of(1000, "--json"))[0] == 0 and not gcs.tpu.nodes()
    for option in ((), ("--prepare-on-tpu",)):
        with pytest.raises(WorkFolderMismatch, match=r"train\.steps"):
            run(*launch_of(8, *option))
    storage.remove(WORKDIR_PATH / "export")
    assert not cloud_launch.is_done(run_of(), WORKDIR_PATH)


def test_the_process_in_the_background_finds_the_login(
    said: io.StringIO, api: TpuApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It works in another folder."""
    begun: list[dict[str, Any]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **given: begun.append(given) or SimpleNamespace(pid=7))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "key.json")
    write_job(running())
    run(*launch_of(1000, "--detach"))
    assert begun[0]["env"]["GOOGLE_APPLICATION_CREDENTIALS"] == str(tmp_path / "key.json")


def test_ssh_prints_the_command_and_nothing_else(said: io.StringIO, gcs: Emulator):
    write_job(running())
    command = f"gcloud compute tpus tpu-vm ssh toy-a2 --zone us-central1-a --project {PROJECT} --worker 3\n"
    assert run("ssh", *W, "--worker", "3") == (0, command) and said.getvalue() == ""
    for job, why in (
        (job_of(status="stopped", message="stopped on request"), r"\(stopped\): stopped on request"),
        (job_of(attempt=1), "next attempt"),
        (job_of(attempt=1, node=node_of(1, requested=False)), "toy-a1 .*'tpulm cloud status'"),
        (job_of(attempt=1, node=node_of(1, ending="lost", detail="toy-a1 is gone")), "toy-a1 is gone"),
    ):
        write_job(job)
        with pytest.raises(TpulmError, match=why):
            run("ssh", *W)


def test_cost(said: io.StringIO, gcs: Emulator):
    write_job(running())
    training()
    storage.write_atomic(WORKDIR_PATH / "cloud" / "prices.json", b"[]")
    code, out = run("cost", *W, "--json")
    told, text = json.loads(out), said.getvalue()
    assert [(item["ending"], item["steps"]) for item in told["attempts"]] == [("preempted", 40), ("", 30)]
    assert code == 0 and told["dollars"] == pytest.approx(4.0, abs=0.2) and told["hours"] == pytest.approx(2.0, abs=0.1)
    assert told["dollars_at_end"] == pytest.approx(4.0 + 1860 / 3600 * 2, abs=0.2) and told["runs"]
    assert (told["stored"]["objects"], told["stored"]["region"]) == (7, "us-central1")
    assert told["stored"]["dollars_per_month"] == pytest.approx(told["stored"]["bytes"] / 2**30 * 0.02)
    assert "$2.00 an hour" in text and "of training more" in text and "a month in us-central1" in text
    assert "where from is not written down" in text and "cloud.google.com/storage/pricing of that day, 2022-12-30" in text
    prices.save(WORKDIR_PATH / "cloud", {ZONE: prices.Price(2.0, ZONE, True, prices.CATALOG, "2026-11-23")})
    run("cost", *W)
    assert "$2.00 an hour spot in us-central1-a (Cloud Billing Catalog, 2026-11-23)" in said.getvalue()
    write_job(running(node=node_of(2, zone="us-central1-b")))
    told, text = json.loads(run("cost", *W, "--json")[1]), said.getvalue()
    assert told["dollars"] == 2.0 and told["dollars_at_end"] is None
    assert "at least $2.00 of $50.00" in text and "? an hour" in text and "not known: no price" in text


def test_audit_finds_asks_and_deletes(said: io.StringIO, api: TpuApi, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    write_job(running())
    plant(api, "toy-a2")
    plant(api, "toy-a1", OTHER_ZONE)
    plant(api, "mystery", workdir="")
    code, out = run("audit", "--project", PROJECT, "--json")
    told = {item["name"]: item["verdict"] for item in json.loads(out)["findings"]}
    assert code == 1 and told == {"toy-a1": "orphan", "toy-a2": "live", "mystery": "unknown"}
    assert "1 left behind, $2.04 an hour" in said.getvalue() and "1 not known whose" in said.getvalue()
    with pytest.raises(ConfigError, match="--yes"):
        run("audit", "--project", PROJECT, "--delete")
    for name, why in (("toy-a2", "toy-a2 .*'tpulm cloud down'"), ("toy-a9", "'toy-a9'")):
        with pytest.raises(ConfigError, match=why):
            run("audit", name, "--project", PROJECT, "--delete", "--yes")
    code, out = run("audit", "--project", PROJECT, "--delete", "--yes", "--json")
    assert code == 1 and json.loads(out)["deleted"] == ["toy-a1"], "one is not known still"
    code, out = run("audit", "mystery", "--project", PROJECT, "--delete", "--yes", "--json")
    assert code == 0 and json.loads(out)["deleted"] == ["mystery"]
    assert [name.rpartition("/")[2] for name in gcs.tpu.nodes()] == ["toy-a2"]


@pytest.mark.usefixtures("few_zones")
def test_down_ends_the_run_and_keeps_the_work(said: io.StringIO, api: TpuApi, gcs: Emulator):
    """Without a supervisor it is ended from here."""
    control = write_job(running())
    plant(api, "toy-a2")
    storage.write_atomic(WORKDIR_PATH / "checkpoints" / "70" / storage.COMMIT, b"")
    storage.write_atomic(WORKDIR_PATH / "dataset" / "rows", b"1")
    assert run("down", *W) == (0, "")
    job = control.job()
    assert (job.status, job.attempts[-1].ending, job.newest_step) == ("stopped", "stopped", 70)
    assert "nothing is left that bills" in said.getvalue() and gcs.tpu.nodes() == {}
    assert run("audit", "--project", PROJECT) == (0, "") and "nothing is left behind" in said.getvalue()
    assert run("down", *W, "--delete-data", "--yes") == (0, "")
    assert not storage.exists(WORKDIR_PATH / "dataset") and storage.exists(WORKDIR_PATH / "cloud" / "job.json")
    code, out = run("down", *W, "--delete-work", "--delete-bucket", "--yes", "--json")
    assert code == 0 and json.loads(out)["bucket_deleted"] and gcs.bucket_names() == []


def test_down_knows_the_consoles_folders(said: io.StringIO, gcs: Emulator):
    """Empty objects with names that end with a slash."""
    write_job(job_of(status="done"))
    bucket = client().bucket("runs")
    for name in ("toy/", "toy/mine/", "other/"):
        bucket.blob(name).upload_from_string(b"")
    delete = ("down", *W, "--delete-work", "--delete-bucket", "--yes")
    with pytest.raises(ConfigError, match="other/"):
        run(*delete)
    assert storage.exists(WORKDIR_PATH / "cloud" / "job.json")
    bucket.blob("other/").delete()
    assert run(*delete)[0] == 0 and gcs.bucket_names() == []


def test_down_has_the_name_typed(said: io.StringIO, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    write_job(job_of(status="done"))
    with pytest.raises(ConfigError, match="--yes"):
        run("down", *W, "--delete-work")
    monkeypatch.setattr(cloud_runs, "is_asked", lambda: True)
    code, _ = run("down", *W, "--delete-work", input="gs://runs/tow\n")
    assert code == 1 and "nothing was stopped or deleted" in said.getvalue() and storage.exists(WORKDIR_PATH)
    code, _ = run("down", *W, "--delete-work", input=f"{WORKDIR_PATH}\n")
    assert code == 0 and not storage.exists(WORKDIR_PATH) and gcs.bucket_names() == ["runs"]


def test_down_refuses(said: io.StringIO, api: TpuApi, gcs: Emulator):
    with pytest.raises(ConfigError, match="'tpulm cloud audit'"):
        run("down", *W, "--project", PROJECT)
    write_job(running())
    with pytest.raises(ConfigError, match=f"in the project {PROJECT}, not in another"):
        run("down", *W, "--project", "another")
    storage.write_atomic("gs://runs/corpus.txt", b"mine")
    with pytest.raises(ConfigError, match=r"corpus\.txt"):
        run("down", *W, "--delete-work", "--delete-bucket", "--yes")
    with pytest.raises(ConfigError, match="--delete-work"):
        run("down", *W, "--delete-bucket", "--yes")
    storage.remove(WORKDIR_PATH / "cloud" / "job.json")
    plant(api, "toy-a1")
    with pytest.raises(TpulmError, match="toy-a1"):
        run("down", *W, "--delete-work", "--yes", "--project", PROJECT)
    assert storage.exists(WORKDIR_PATH / "cloud" / "run.json")
