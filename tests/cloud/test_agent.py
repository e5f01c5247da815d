"""The programs of a VM against a small Google that answers as recorded, and nobody supervising."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from cloud_rig import job_of, node_of

from local_server import LocalServer, send
from tpulm.cloud import bundle
from tpulm.cloud.vm import services
from waiting import until

FOLDER = bundle.source_folder() / "cloud" / "vm"
RECORDED = json.loads((resources.files("cloud_emulator") / "recorded" / "metadata.json").read_text())["keys"]
TENANT = "g9250ab742a5cc428-tp"
TOKEN = "ya29.not-for-the-command-line"
PATIENCE = 60.0
NAMES = {"project": "lab", "zone": "us-east5-a", "node": "toy-a1"}
OWN = {f"instance/attributes/tpulm-{key}": name for key, name in NAMES.items()}
TPU_ENV = RECORDED["instance/attributes/tpu-env"]["value"]
for placeholder, name in NAMES.items():
    TPU_ENV = TPU_ENV.replace(f"{{{placeholder}}}", name)


class Asked(NamedTuple):
    method: str
    path: str
    token: str
    body: str


class Google(LocalServer):
    """Metadata, Storage and TPU on one port. `objects` are by path; `refused` tokens get Storage's 401."""

    def __init__(self) -> None:
        super().__init__()
        attributes = {"agent-worker-number": "0", "tpulm-workdir": "gs://runs/toy", "tpulm-attempt": "1"}
        attributes["tpulm-bundle"] = f"b/runs/o/{'0' * 64}.tar.gz"
        self.metadata = {f"instance/attributes/{key}": value for key, value in attributes.items()}
        self.metadata |= {"instance/name": "t1v-n-6d49d11b-w-0", "instance/zone": "projects/987/zones/us-east5-a"}
        token = json.dumps({"access_token": TOKEN, "expires_in": 3599})
        self.metadata |= {"instance/service-accounts/default/token": token, "project/project-id": TENANT}
        self.objects: dict[str, bytes] = {}
        self.refused: set[str] = set()
        self.asked: list[Asked] = []

    def paths(self, method: str) -> list[str]:
        return [asked.path for asked in self.asked if asked.method == method]

    def environment(self, home: Path) -> dict[str, str]:
        addresses = {"GCE_METADATA_HOST": self.url.removeprefix("http://"), "STORAGE_EMULATOR_HOST": self.url}
        addresses["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] = f"{self.url}/"
        quick = {"TPULM_LOOK_SECONDS": "0.05", "TPULM_SELF_DELETE_SECONDS": "0", "TPULM_BOOT_SECONDS": "0"}
        return {"HOME": str(home), **addresses, **quick}

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        token = (request.headers["Authorization"] or "").removeprefix("Bearer ")
        self.asked.append(Asked(request.command, request.path, token, body.decode()))
        send(request, *self.found(request.command, request.path.partition("?")[0], token, request.headers["Metadata-Flavor"]))

    def found(self, method: str, path: str, token: str, flavor: str | None) -> tuple[int, bytes]:
        if path.startswith("/computeMetadata/v1/"):
            if flavor != "Google":
                return 403, b"Missing Metadata-Flavor:Google header.\n"
            value = "" if method == "PUT" else self.metadata.get(path.removeprefix("/computeMetadata/v1/"))
            return (404, b"Not Found\n") if value is None else (200, value.encode())
        if token in self.refused:  # cloud.google.com/storage/docs/json_api/v1/status-codes
            return 401, b'{"error":{"code":401,"message":"Invalid Credentials","errors":[{"reason":"authError"}]}}'
        if path.startswith("/v2/projects/lab/locations/us-east5-a/"):
            return 200, b"{}"
        content = self.objects.get(path)
        return (404, b"{}") if content is None and method != "POST" else (200, content or b"{}")


@pytest.fixture
def google() -> Iterator[Google]:
    with Google() as server:
        yield server


@pytest.fixture(params=["own", "tpu-env", "Google's"])
def identity(request: pytest.FixtureRequest, google: Google) -> None:
    """How the VM can know whose it is: what was set at creation, tpu-env, and at last the project that it says it is in."""
    of_google = {"project/project-id": "lab", "instance/attributes/tpulm-node": "toy-a1"}
    known = {"own": OWN, "tpu-env": {"instance/attributes/tpu-env": TPU_ENV}, "Google's": of_google}
    google.metadata |= known[request.param]


GONE = [f"/v2/projects/lab/locations/us-east5-a/{name}" for name in ("queuedResources/toy-a1?force=true", "nodes/toy-a1")]


def run_until_it_deletes_its_node(command: list[str], google: Google, home: Path, **environment: str) -> str:
    """What it said. `home` comes first in PATH."""
    environment = {**google.environment(home), "PATH": f"{home}:{os.environ['PATH']}", **environment}
    with (home / "said").open("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, cwd=home, start_new_session=True)
        try:
            until(lambda: len(google.paths("DELETE")) >= 2, lambda: (home / "said").read_text(), PATIENCE)
        finally:
            os.killpg(process.pid, 9)
            process.wait()
    assert google.paths("DELETE") == GONE
    return (home / "said").read_text()


def write_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)


def test_an_agent_of_a_run_that_is_over_deletes_its_node(google: Google, identity: None, tmp_path: Path):
    """The VM lies in a project of Google's, and its name is not the node's."""
    run_until_it_deletes_its_node([sys.executable, str(FOLDER / "agent.py")], google, tmp_path)
    assert {asked.token for asked in google.asked if asked.method == "DELETE"} == {TOKEN}


def test_a_boot_without_a_bundle_deletes_its_node(google: Google, identity: None, tmp_path: Path):
    """… and its token never stands on a command line."""
    write_script(tmp_path / "curl", "#!/bin/bash", f'printf "%s\\n" "$*" >> {tmp_path}/argv', 'exec /usr/bin/curl "$@"')
    run_until_it_deletes_its_node(["bash", str(FOLDER / "boot.sh")], google, tmp_path)
    of_bucket = [asked for asked in google.asked if asked.path.startswith("/storage/")]
    assert of_bucket and {asked.token for asked in of_bucket} == {TOKEN}
    arguments = (tmp_path / "argv").read_text()
    assert "alt=media" in arguments and TOKEN not in arguments
    told = [asked.body for asked in google.asked if asked.method == "PUT"]
    assert told == ["fetching", f"failed: cannot fetch b/runs/o/{'0' * 64}.tar.gz"]
    assert set(google.paths("PUT")) == {"/computeMetadata/v1/instance/guest-attributes/tpulm/boot"}


def test_a_token_that_is_refused_is_fetched_again(google: Google, monkeypatch: pytest.MonkeyPatch):
    """Once: an account that may not is refused for good."""
    monkeypatch.setattr(services, "METADATA", f"{google.url}/computeMetadata/v1/")
    monkeypatch.setattr(services, "STORAGE", google.url)
    google.objects["/storage/v1/b/runs/o/toy%2Fjob.json"] = b"{}"
    bucket = services.Bucket("gs://runs/toy", services.Metadata())
    assert bucket.get("job.json") == b"{}"
    google.refused.add(TOKEN)
    google.metadata["instance/service-accounts/default/token"] = '{"access_token": "newer"}'
    bucket.put("beat.json", b"1")
    assert [(asked.token, asked.body) for asked in google.asked if asked.method == "POST"] == [(TOKEN, "1"), ("newer", "1")]
    google.refused.add("newer")
    with pytest.raises(services.Unreachable, match="HTTP 401"):
        bucket.get("job.json", patience=1)
    assert bucket.get("job.json", patience=1, unless_refused=True) is None


NODE = node_of(1, zone="us-east5-a")
JOB = json.loads(job_of(attempt=1, node=NODE, prices={"us-east5-a": 2.0, "us-west1-a": 2.0}).model_dump_json())


def frozen() -> Mock:
    """A process in an uninterruptible call of the kernel: no signal ends it."""

    def wait(timeout: float | None = None) -> int:
        assert timeout is not None, "waits for ever"
        raise subprocess.TimeoutExpired("frozen", timeout)

    return Mock(pid=4321, returncode=None, poll=Mock(return_value=None), wait=wait)


@pytest.fixture
def program(google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The agent as a module, as it is on a VM, with that small Google around it."""
    for name, value in google.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("agent", "install", "services", "hang")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("agent")
    for name in names:
        sys.modules.pop(name, None)


def put_job(google: Google, **changes: Any) -> None:
    google.objects["/storage/v1/b/runs/o/toy%2Fcloud%2Fjob.json"] = json.dumps({**JOB, **changes}).encode()


def test_a_trainer_that_cannot_be_killed_keeps_no_vm(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    put_job(google, wanted="stopped")
    agent, trainer = program.Agent(), frozen()
    monkeypatch.setattr(program, "environment", lambda alive: "python")
    given: dict[str, Any] = {}
    lock = agent.log_path.with_name("libtpu_lockfile")  # of a trainer that was killed: marin issue 4675, jax issue 10192
    lock.touch()
    monkeypatch.setattr(program, "CHIP_LOCK", lock)
    monkeypatch.setattr(program.subprocess, "Popen", lambda *command, **options: given.update(options) or trainer)
    monkeypatch.setattr(program, "GRACE_SECONDS", 0.0)
    assert agent.train() == {"exit_code": -9, "failure": None, "message": "the trainer cannot be killed"}
    trainer.send_signal.assert_called_once_with(signal.SIGTERM)
    trainer.kill.assert_called_once_with()
    assert float(given["env"]["TPULM_JOIN_SECONDS"]) >= sys.modules["install"].STEP_SECONDS and not lock.exists()
    monkeypatch.setattr(program, "stacks", lambda process, path: "")
    assert agent.end_hung(700.0)["failure"] == "Hung"
    put_job(google, node={**JOB["node"], "ending": "lost"})
    assert agent.train() is None


def test_an_installer_that_cannot_be_killed_keeps_no_vm(program: Any, monkeypatch: pytest.MonkeyPatch):
    install = sys.modules["install"]
    monkeypatch.setattr(install, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(program.subprocess, "Popen", lambda *command, **options: frozen())
    with pytest.raises(RuntimeError, match="exit code None"):
        install.run(["uv"], lambda: None)  # type: ignore[attr-defined]


def test_what_ends_a_trainer_ends_installing(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    """… and the process that installs."""
    install = sys.modules["install"]
    monkeypatch.setattr(install, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(program, "environment", lambda alive: install.run(["sleep", "60"], alive))  # type: ignore[attr-defined]
    agent, before, begun = program.Agent(), children(), time.monotonic()
    for changes, outcome in (
        ({"wanted": "stopped"}, {"exit_code": 75, "failure": None, "message": "it was asked for"}),
        ({"node": {**JOB["node"], "attempt": 2}}, None),
        ({"budget": 0.1}, {"exit_code": 75, "failure": None, "message": "this VM's time is up"}),
    ):
        put_job(google, **changes)
        assert agent.train() == outcome
        assert time.monotonic() - begun < PATIENCE and children() == before


def test_a_log_of_before_a_reboot_waits_for_the_secrets(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    """Out of which they are taken."""
    put_job(google)
    google.objects["/storage/v1/b/runs/o/key"] = b"-----BEGIN-----\na-very-secret-value\n-----END-----\n"
    google.metadata["instance/attributes/tpulm-secrets"] = json.dumps({"KEY": "gs://runs/key"})
    agent = program.Agent()
    agent.log_path.write_text("training with a-very-secret-value\n")
    agent.poll("installing")
    agent.upload_log(last=True)
    agent.fetch_secrets()
    agent.upload_log(last=True)
    (log,) = [asked.body for asked in google.asked if "log-0.txt" in asked.path]
    assert log == "training with [redacted]\n"
    agent.log_path.write_text("a-very-secret-value" + "." * (program.LOG_BYTES - 5))  # what is shown begins within the secret
    assert agent.log_end() == "cted]" + "." * (program.LOG_BYTES - 5)


def test_the_end_of_a_log_is_written_again_if_that_failed(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    agent = program.Agent()
    agent.secrets = []
    agent.log_path.write_text("the last words")
    with monkeypatch.context() as patch:
        patch.setattr(google, "found", lambda *_: (403, b"{}"))
        with pytest.raises(program.Unreachable):
            agent.upload_log()
    agent.upload_log(last=True)
    assert [asked.body for asked in google.asked if "log-0.txt" in asked.path] == ["the last words"] * 2


def test_an_attempt_that_counts_no_more_is_seen_though_its_log_cannot_be_written(
    google: Google, program: Any, monkeypatch: pytest.MonkeyPatch
):
    def fail() -> None:
        raise program.Unreachable("no")

    put_job(google, node={**JOB["node"], "attempt": 2})
    agent = program.Agent()
    monkeypatch.setattr(agent, "upload_log", fail)
    assert not agent.poll("working")


def test_an_attempt_that_counts_no_more_is_seen_though_the_bucket_takes_no_writes(
    google: Google, program: Any, monkeypatch: pytest.MonkeyPatch
):
    def fail(state: str, *, patience: float) -> None:
        raise program.Unreachable("HTTP 403")

    put_job(google, node={**JOB["node"], "attempt": 2})
    agent = program.Agent()
    monkeypatch.setattr(agent, "beat", fail)
    assert not agent.poll("working")


def test_a_node_is_deleted_though_queued_resources_do_not_answer(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    """It is the node that is billed."""
    google.metadata |= OWN
    found = google.found

    def failing(method: str, path: str, *others: Any) -> tuple[int, bytes]:
        return (503, b"{}") if "queuedResources" in path else found(method, path, *others)

    monkeypatch.setattr(google, "found", failing)
    program.Agent().delete_self()
    assert google.paths("DELETE")[-1] == GONE[-1]


def test_a_secret_that_cannot_be_used(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    """It is the user's to mend, so that no other attempt is made."""
    put_job(google)
    google.metadata["instance/attributes/tpulm-secrets"] = json.dumps({"KEY": "gs://runs/key"})
    monkeypatch.setattr(program, "environment", lambda alive: "python")
    for secret in (None, b"\xff\xfe", b"a\0b", b"x" * 110_000):
        if secret is not None:
            google.objects["/storage/v1/b/runs/o/key"] = secret
        agent, ended = program.Agent(), []
        monkeypatch.setattr(agent, "wait_to_be_deleted", lambda: None)
        monkeypatch.setattr(agent, "end", ended.append)
        agent.run()
        (end,) = ended
        assert (end["exit_code"], end["failure"]) == (4 if secret is None else 2, "ConfigError")
        assert "gs://runs/key for KEY" in end["message"]


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_vm_whose_turn_does_not_come_goes_at_once(google: Google, program: Any, monkeypatch: pytest.MonkeyPatch):
    """It came up in another zone's queue. So does one that the bucket refuses: it cannot say how it ended."""
    put_job(google, spare=[JOB["node"]], node={**JOB["node"], "attempt": 2})
    agent = program.Agent()
    monkeypatch.setattr(program, "SPARE_WAIT_SECONDS", 0.2)
    ended: list[float] = []
    monkeypatch.setattr(program.Agent, "wait_to_be_deleted", lambda agent: ended.append(agent.valid_until))
    agent.run()
    assert 0 <= time.time() - ended[0] < PATIENCE
    google.refused.add(TOKEN)
    program.Agent().run()
    assert len(ended) == 2


def test_spare_vms_are_left_their_share_of_the_budget(program: Any):
    agent, spare = program.Agent(), {**JOB["node"], "zone": "us-west1-a"}
    former = {**spare, "ending": "preempted", "ready_at": 1e9 - 3600}  # it is being deleted, and its cost not recorded yet
    agent.first_boot_time = 1e9
    for others, hours, kept in (([], 5, 480), ([spare, spare], 5, 480 + 1200), ([spare, former], 4, 480 + 1200)):
        agent.keep_to_budget({**JOB, "budget": 10.0, "spare": others})
        assert agent.valid_until == 1e9 + hours * 3600 - kept


def test_what_cannot_be_read_in_the_bucket_ends_no_trainer(google: Google, program: Any):
    agent = program.Agent()
    for content in (b'{"wanted": "run', b"[]", b'{"node": null}'):
        google.objects["/storage/v1/b/runs/o/toy%2Fcloud%2Fjob.json"] = content
        assert agent.poll("training") is (content != b'{"node": null}')
    agent.trainer = frozen()
    assert agent.outcome(3)["exit_code"] == 3, "404: there is no such bucket"
    google.objects["/storage/v1/b/runs/o"] = b"no JSON"
    assert agent.outcome(3)["exit_code"] == 3


def test_a_program_that_dies_again_and_again_keeps_no_vm(google: Google, tmp_path: Path):
    """One that lived for long first is started again. What the script sleeps in between is a second here."""
    write_script(tmp_path / "sleep", "#!/bin/sh", "exec /bin/sleep 1")
    google.metadata |= OWN
    broken = tmp_path / "tpulm" / "bundles" / ("0" * 64)
    broken.mkdir(parents=True)
    (broken / "agent.py").write_text(
        "import pathlib, time\n"
        "print('dies', flush=True)\n"
        "if not pathlib.Path('lived').exists():\n"
        "    pathlib.Path('lived').touch()\n"
        "    time.sleep(2)\n"
        "raise SystemExit(3)\n"
    )
    said = run_until_it_deletes_its_node(["bash", str(FOLDER / "boot.sh")], google, tmp_path, TPULM_BOOT_SECONDS="2")
    assert said.count("dies") > 1, said


def test_a_notice_of_the_metadata_server_reaches_the_trainer(google: Google, program: Any):
    google.metadata["instance/preempted"] = "TRUE"
    agent = program.Agent()
    agent.trainer = frozen()
    agent.await_preemption()
    agent.trainer.send_signal.assert_called_once_with(signal.SIGTERM)
    assert agent.notice == program.PREEMPTED and agent.asked_at is not None


def test_names_come_from_every_page(program: Any, monkeypatch: pytest.MonkeyPatch):
    bucket, asked = program.Agent().bucket, []
    pages = iter([{"items": [{"name": "toy/failures/1"}], "nextPageToken": "x/1"}, {"items": [{"name": "toy/failures/2"}]}])
    monkeypatch.setattr(bucket, "_request", lambda url: asked.append(url) or (200, json.dumps(next(pages)).encode()))
    assert bucket.names("failures/") == ["failures/1", "failures/2"]
    assert asked[1].endswith("pageToken=x%2F1")
