"""Runs for other engines: what is written, against what those engines and GKE document, and that its script starts a run.

After a wanted change: TPULM_UPDATE_GOLDEN=1 pytest tests/cloud/test_export.py, then look at the difference and commit it.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloud_rig import PROJECT, WORKDIR_PATH, node_of, running, write_job

from cloud_emulator import Emulator
from command_line import invoke
from local_server import LocalServer, send_json
from toy_runs import run_file, write_corpus
from tpulm import storage
from tpulm.cloud import bundle, export
from tpulm.cloud.export import Staged
from tpulm.cloud.launch import label_value
from tpulm.cloud.settings import CloudSettings
from tpulm.config import load
from tpulm.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
SUM = "0123456789abcdef" * 4
STAGED = Staged(
    "electra-small-ab12cd",
    storage.as_path("gs://my-runs/electra-small"),
    storage.as_path("gs://my-runs/electra-small/cloud/run.json"),
    storage.as_path(f"gs://my-runs/electra-small/cloud/bundles/{SUM}.tar.gz"),
)


def settings(**changes: Any) -> CloudSettings:
    values = {"project": "my-project", "accelerator": "v6e-8", "zones": ("us-east5-*", "us-east1-d"), "bucket": "my-runs"}
    return CloudSettings.model_validate({**values, **changes})


def jobset(name: str = "v6e-8", **changes: Any) -> dict[str, Any]:
    return yaml.safe_load(export.jobset(STAGED, settings(**changes), export.nodes_of(name)))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


SECRETS = {"HF_TOKEN": "hub", "KEY": "gs://my-runs/key"}
WITH_SECRETS, ON_DEMAND, IMAGE = settings(secrets=SECRETS), settings(spot=False), "python:3.12-slim"
WRITTEN = {
    "skypilot-v6e-8": lambda: export.skypilot(STAGED, WITH_SECRETS),
    "jobset-v5litepod-16": lambda: export.jobset(STAGED, WITH_SECRETS, export.nodes_of("v5litepod-16"), image=IMAGE),
    "jobset-nvidia-l4": lambda: export.jobset(STAGED, ON_DEMAND, export.nodes_of("nvidia-l4:2"), image=IMAGE),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_as_recorded(name: str):
    """As these have it: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset, which names hosts
    <jobSet.name>-<spec.replicatedJob.name>-<job-index>-<pod-index>.<subdomain>; https://kubernetes.io/docs/tasks/job/
    pod-failure-policy, whose rules need restartPolicy Never; SkyPilot's schemas.
    """
    found = WRITTEN[name]()
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("TPULM_UPDATE_GOLDEN"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "if this is wanted: TPULM_UPDATE_GOLDEN=1"


# -- JobSet -------------------------------------------------------------------------------------------------------------


def test_the_nodes_of_a_slice():
    """https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, and xpk's src/xpk/core/system_characteristics.py."""
    for name, label, topology, hosts, chips in (
        ("v3-8", "tpu-v3-device", "2x2", 1, 4),
        ("v3-32", "tpu-v3-slice", "4x4", 4, 4),
        ("v4-16", "tpu-v4-podslice", "2x2x2", 2, 4),
        ("v5litepod-1", "tpu-v5-lite-podslice", "1x1", 1, 1),
        ("v5litepod-8", "tpu-v5-lite-podslice", "2x4", 1, 8),
        ("v5p-32", "tpu-v5p-slice", "2x2x4", 4, 4),
        ("v6e-256", "tpu-v6e-slice", "16x16", 64, 4),
        ("tpu7x-128", "tpu7x", "4x4x4", 16, 4),
    ):
        manifest = jobset(name)
        job, pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"], pod_of(manifest)
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == label
        assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
        assert job["completions"] == job["parallelism"] == hosts
        resources = pod["containers"][0]["resources"]
        assert resources["limits"] == resources["requests"] == {"google.com/tpu": chips, "ephemeral-storage": "10Gi"}


def test_what_is_installed_for_gpus(tmp_path: Path):
    script = pod_of(jobset("nvidia-l4"))["containers"][0]["command"][2]
    (tmp_path / "pins.txt").write_text("jax[tpu]==0.10.2\njaxlib==0.10.2\nlibtpu==0.0.40\n")
    (line,) = (line for line in script.splitlines() if line.startswith("sed "))
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
    assert (tmp_path / "pins.txt").read_text() == "jax[cuda12]==0.10.2\njaxlib==0.10.2\n"


@pytest.mark.parametrize("name", ["v2-8", "v6e-9"])
def test_what_engines_do_not_offer(name: str):
    with pytest.raises(ConfigError, match=name):
        export.nodes_of(name)


def test_skypilot_may_not_offer_every_slice():
    assert "sky gpus list tpu-v5litepod-16" in export.skypilot(STAGED, settings(accelerator="v5litepod-16"))


# -- the script ---------------------------------------------------------------------------------------------------------


class PodMetadata(LocalServer):
    """The metadata server of a pod with Workload Identity."""

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        assert request.headers["Metadata-Flavor"] == "Google"
        send_json(request, {"access_token": "t", "expires_in": 3599, "token_type": "Bearer"})


@pytest.mark.slow
def test_the_script_of_a_pod_starts_the_run(
    gcs: Emulator, tmp_path: Path, user_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """From the bundle in the bucket to `tpulm run`, which says what this run lacks."""
    monkeypatch.setattr(bundle, "fetch_uv", lambda folder: Path(__file__))  # 50 MB to pack, which nobody needs here
    stage = bundle.stage
    monkeypatch.setattr(bundle, "stage", lambda folder, **given: stage(folder, **{**given, "python": sys.executable}))
    config = load("bert-tiny", ["corpus.sources=[{path='gs://runs/none/*.txt'}]"])
    staged = export.stage(config, storage.as_path("gs://runs/toy"), settings(bucket="runs"))
    manifest = yaml.safe_load(export.jobset(staged, settings(bucket="runs"), export.nodes_of("v6e-8")))
    environment = {**user_environment, **gcs.environment, "HOME": str(tmp_path), "TPU_SKIP_MDS_QUERY": "1"}
    with PodMetadata() as server:
        environment["GCE_METADATA_HOST"] = server.url.removeprefix("http://")
        command = pod_of(manifest)["containers"][0]["command"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "bundle.tar.gz: OK" in done.stdout and "gs://runs/none" in done.stderr
    assert (tmp_path / "tpulm" / "python").read_text() == sys.executable


# -- the commands -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_prepare_and_stage(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundle, "fetch_uv", lambda folder: Path(__file__))  # instead of 50 MB
    (tmp_path / "toy.toml").write_text(run_file("corpus.txt.gz", steps=20))
    write_corpus(tmp_path / "corpus.txt.gz")
    (tmp_path / "cloud.toml").write_text(f'project = "{PROJECT}"\nbucket = "runs"\naccelerator = "v6e-8"\nbudget = 5.0\n')
    done = invoke("cloud", "export", "skypilot", "toy.toml", "--to", "job.yaml", code=0)
    said = done.stdout + done.stderr
    assert "sky jobs launch job.yaml" in said and "nobody watches them here" in said
    task = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert storage.exists(WORKDIR_PATH / "dataset" / "manifest.json") and storage.exists(WORKDIR_PATH / "cloud" / "run.json")
    staged = storage.as_path(task["file_mounts"]["~/tpulm/bundle.tar.gz"])
    checksum = staged.name.removesuffix(".tar.gz")
    assert storage.sha256(staged) == checksum and checksum in task["setup"]
    for options, label in ((("--accelerator", "tpu7x-8"), "tpu7x"), ((), "tpu-v6e-slice")):
        manifest = yaml.safe_load(invoke("cloud", "export", "jobset", "toy.toml", *options, code=0).stdout)
        assert pod_of(manifest)["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == label


def test_a_run_that_has_a_node_is_left_alone(gcs: Emulator):
    for job in (running(), running(node=None, spare=(node_of(2),))):
        write_job(job)
        with pytest.raises(ConfigError, match="toy-a2"):
            export.stage(load("bert-tiny"), WORKDIR_PATH, settings())


@pytest.mark.parametrize(("accelerator", "hosts"), [("v5litepod-8", 1), ("v5litepod-64", 16), ("v6e-256", 64)])
def test_pods_have_names_that_kubernetes_takes(accelerator: str, hosts: int):
    """63 letters with the five that a pod gets: JobSet's webhook refuses longer ones."""
    staged = dataclasses.replace(STAGED, name=label_value("a" * 60, STAGED.workdir))
    manifest = yaml.safe_load(export.jobset(staged, settings(secrets=SECRETS), export.nodes_of(accelerator), queue="team"))
    name = manifest["metadata"]["name"]
    assert len(f"{name}-slice-0-{hosts - 1}-abcde") <= 63 and name.endswith(staged.name[-7:])
    assert pod_of(manifest)["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] == name
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
