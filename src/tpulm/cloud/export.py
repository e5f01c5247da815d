"""A run for other engines: a managed job of SkyPilot, and a JobSet for Kubernetes on GKE.

Both start what our TPU VMs start, `tpulm run` with W/cloud/run.json and W, from the bundle in the bucket, and start it again
after a preemption or exit code 75: the work folder has all that a run needs to continue. Neither knows of budgets.

SkyPilot's task file: https://docs.skypilot.co/en/latest/reference/yaml-spec.html. JobSet's fields:
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset; what GKE selects nodes by:
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from tpulm import accelerators, storage
from tpulm.accelerators import Accelerator
from tpulm.cloud import bundle
from tpulm.cloud.control import Control
from tpulm.cloud.launch import check_folder, label_value
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.config import RunConfig, canonical_json
from tpulm.errors import EXIT_STOPPED, ConfigError
from tpulm.progress import SILENT, Progress
from tpulm.runtime.hosts import DEFAULT_PORT

SERVICE_ACCOUNT = "tpulm-worker"  # of Kubernetes
_SPOT = "cloud.google.com/gke-spot"  # a label and, where its nodes have been given one, a taint
_GPU = re.compile(r"(nvidia-[a-z0-9-]+)(?::([1-9][0-9]?))?")
_RESTARTS = 3  # after failures, which cost money; after preemptions and stops there is no limit
_GRACE_SECONDS = 240  # to save in, as on our VMs; a spot node has less

# What the token is asked of and the bundle fetched from can be named by the variables that boot.sh heeds.
_FETCH = """\
python3 - <<'END'
import json, os, time, urllib.request
metadata = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
storage = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
bundle = "OBJECT"
def get(url, headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=600).read()
for attempt in range(20):
    try:
        account = f"http://{metadata}/computeMetadata/v1/instance/service-accounts/default/token"
        token = json.loads(get(account, {"Metadata-Flavor": "Google"}))["access_token"]
        content = get(f"{storage}/storage/v1/{bundle}?alt=media", {"Authorization": "Bearer " + token})
        open("bundle.tar.gz", "wb").write(content)
        break
    except OSError as error:
        print("cannot fetch the bundle:", error, flush=True)
        time.sleep(6)
END
"""
_FOR_GPUS = r"sed -i -e '/^libtpu==/d' -e 's/^jax\[tpu\]/jax[cuda12]/' pins.txt" + "\n"


@dataclass(frozen=True)
class Staged:
    """What an engine starts, in the bucket."""

    name: str  # small letters, digits, hyphens
    workdir: PurePath
    run_file: PurePath
    bundle: PurePath  # named by its SHA-256

    @property
    def command(self) -> list[str]:
        return ["-m", "tpulm", "run", str(self.run_file), "--workdir", str(self.workdir)]


@dataclass(frozen=True)
class Gpu:
    """Of one node."""

    label: str  # cloud.google.com/gke-accelerator: "nvidia-l4"
    count: int


def stage(config: RunConfig, workdir: PurePath, settings: CloudSettings, *, progress: Progress = SILENT) -> Staged:
    """Put the bundle and the run file into the work folder.

    Raises ConfigError for a folder that is not in a bucket, and for a run that has a node of ours; InUse where one is watched
    over.
    """
    check_folder(workdir)
    control = Control(workdir)
    with storage.held(control.folder, note=progress.note):
        if (found := control.read()) is not None and found[0].nodes:
            name = found[0].nodes[0].name
            raise ConfigError(f"{name} works in {workdir}; end it first: tpulm cloud stop --workdir {workdir}")
        packed = bundle.stage(control.folder / "bundles", offline=not settings.external_addresses, progress=progress)
        storage.write_atomic(control.run_file, canonical_json(config))
    return Staged(label_value(config.name, workdir), workdir, control.run_file, packed)


def accelerator(name: str) -> Accelerator | Gpu:
    """A TPU type that GKE has, or GPUs of a node such as "nvidia-l4" or "nvidia-h100-80gb:8". Raises ConfigError for others."""
    if gpu := _GPU.fullmatch(name.strip().lower()):
        return Gpu(gpu[1], int(gpu[2] or 1))
    kind = accelerators.find(name)
    if not kind.gke_nodes:
        raise ConfigError(f"GKE has no nodes with {kind.name}; take a v3 or newer, such as v6e-8")
    return kind


def skypilot(staged: Staged, settings: CloudSettings) -> str:
    """The task of a managed job, for `sky jobs launch`; SkyPilot itself tells the hosts of a slice nothing that they lack."""
    resources = {
        "accelerators": f"tpu-{settings.kind.name}",
        "accelerator_args": {"runtime_version": settings.kind.runtime_version},
        "use_spot": settings.spot,
        "job_recovery": {"max_restarts_on_errors": _RESTARTS, "recover_on_exit_codes": [EXIT_STOPPED]},
        "ordered": [{"infra": _infra(zone)} for zone in settings.zones],
    }
    task: dict[str, Any] = {
        "name": staged.name,
        "resources": resources,
        "file_mounts": {"~/tpulm/bundle.tar.gz": str(staged.bundle)},
        "setup": "set -e\ncd ~/tpulm\n" + _install(staged),
        "run": f'cd ~/tpulm\nexec "$(cat python)" {shlex.join(staged.command)}\n',
    }
    options = ""
    if settings.secrets:
        task["secrets"] = dict.fromkeys(settings.secrets)
        options = "".join(f" --secret {variable}" for variable in settings.secrets)
    return f"# A managed job for SkyPilot (https://docs.skypilot.co): sky jobs launch{options} FILE\n" + _yaml(task)


def _infra(zone: str) -> str:
    region = region_of(zone)
    return f"gcp/{region}" if zone.endswith("*") else f"gcp/{region}/{zone}"


def jobset(
    staged: Staged,
    settings: CloudSettings,
    kind: Accelerator | Gpu,
    *,
    image: str | None = None,
) -> str:
    """A JobSet for a TPU slice or a GPU node. `image` has bash and python3, by default Python's own for this version.

    All pods are started again when one was preempted or stopped, without limit, and some times when one failed: Kubernetes' own
    pattern, https://jobset.sigs.k8s.io/docs/tasks, with the exit code.
    """
    if isinstance(kind, Gpu):
        hosts, resource = 1, {"nvidia.com/gpu": kind.count}
        nodes = {"cloud.google.com/gke-accelerator": kind.label}
    else:
        hosts, resource = kind.hosts, {"google.com/tpu": kind.chips // kind.hosts}
        nodes = {"cloud.google.com/gke-tpu-accelerator": kind.gke_nodes, "cloud.google.com/gke-tpu-topology": kind.topology}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": SERVICE_ACCOUNT,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "nodeSelector": nodes,
        "tolerations": [{"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
        "containers": [_container(staged, settings, kind, hosts, resource, image or _python_image())],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    if settings.spot:
        nodes[_SPOT] = "true"
    else:
        del pod["tolerations"]
    stopped = {"containerName": "trainer", "operator": "In", "values": [EXIT_STOPPED]}
    job = {
        "completionMode": "Indexed",
        "completions": hosts,
        "parallelism": hosts,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": stopped},
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"spec": pod},
    }
    spec: dict[str, Any] = {
        "failurePolicy": {
            "maxRestarts": _RESTARTS,
            "restartStrategy": "BlockingRecreate",  # never two trainers in one work folder
            "rules": [
                {
                    "name": "preemptedOrStopped",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        },
        "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
    }
    metadata: dict[str, Any] = {"name": staged.name}
    if hosts > 1:
        spec = {"network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": staged.name}, **spec}
        # All pods of the Job in one node pool, which is one slice.
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    manifest = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
    return "".join(f"# {line}\n" for line in _preparations(staged, settings)) + _yaml(manifest)


def _container(
    staged: Staged, settings: CloudSettings, kind: Accelerator | Gpu, hosts: int, resource: dict[str, int], image: str
) -> dict[str, Any]:
    script = "set -e\ntrap 'exit 75' TERM\nmkdir -p ~/tpulm\ncd ~/tpulm\n"
    script += _FETCH.replace("OBJECT", bundle.object_of(staged.bundle))
    script += _install(staged, gpu=isinstance(kind, Gpu))
    script += f'exec "$(cat python)" {shlex.join(staged.command)}'
    if hosts > 1:  # a pod's name: https://jobset.sigs.k8s.io/docs/concepts, with the index that a Job gives it
        first = f"{staged.name}-slice-0-0.{staged.name}:{DEFAULT_PORT}"
        script += f' --coordinator {first} --num-hosts {hosts} --host-index "$JOB_COMPLETION_INDEX"'
    variables: list[dict[str, Any]] = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": staged.name, "key": variable}}}
        for variable in settings.secrets
    ]
    if isinstance(kind, Gpu):  # where GKE puts the driver
        variables.append({"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"})
    return {
        "name": "trainer",
        "image": image,
        "command": ["bash", "-c", script + "\n"],
        **({"env": variables} if variables else {}),
        "resources": {"requests": dict(resource), "limits": dict(resource)},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }


def _install(staged: Staged, *, gpu: bool = False) -> str:
    """In the folder with bundle.tar.gz; leaves the interpreter's path in the file `python`."""
    return "".join(
        (
            f'echo "{staged.bundle.name.removesuffix(".tar.gz")}  bundle.tar.gz" | sha256sum --check\n',
            "tar -xzf bundle.tar.gz\n",
            _FOR_GPUS if gpu else "",
            """python3 -c 'import install; open("python", "w").write(install.environment(lambda: None))'\n""",
        )
    )


def _preparations(staged: Staged, settings: CloudSettings) -> list[str]:
    email, project = settings.service_account, settings.project
    pods = f"serviceAccount:{project}.svc.id.goog[default/{SERVICE_ACCOUNT}]"
    lines = [
        "A JobSet for Google Kubernetes Engine: kubectl apply -f FILE",
        "Once for a cluster, which has JobSet 0.8 or newer (https://jobset.sigs.k8s.io) and Workload Identity:",
        f"  kubectl create serviceaccount {SERVICE_ACCOUNT}",
        f"  kubectl annotate serviceaccount {SERVICE_ACCOUNT} iam.gke.io/gcp-service-account={email}",
        f"  gcloud iam service-accounts add-iam-policy-binding {email} --project={project} \\",
        f"    --role=roles/iam.workloadIdentityUser --member='{pods}'",
    ]
    if settings.secrets:
        lines.append("Once for this run, the secrets:")
        given = [f"    --from-literal={variable}={_secret(source, project)}" for variable, source in settings.secrets.items()]
        lines += [f"  kubectl create secret generic {staged.name} \\", *(f"{line} \\" for line in given[:-1]), given[-1]]
    return lines


def _secret(source: str, project: str) -> str:
    if source.startswith("gs://"):
        return f'"$(gcloud storage cat {source})"'
    return f'"$(gcloud secrets versions access latest --secret={source} --project={project})"'


def _python_image() -> str:
    return f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"


class _Dumper(yaml.SafeDumper):
    """Block scalars for text of several lines, and lists indented under their keys."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
