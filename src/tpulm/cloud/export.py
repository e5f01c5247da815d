"""Exports a run to other engines: a managed job for SkyPilot, and a JobSet for Kubernetes on GKE.

Both run what our TPU VMs run, `tpulm run` with W/cloud/run.json and W, from the bundle in the bucket, and restart it after a
preemption or exit code 75: the work folder has everything a run needs to continue. Neither enforces a budget.

SkyPilot's task file: https://docs.skypilot.co/en/latest/reference/yaml-spec.html. JobSet's fields:
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset; the node labels of GKE:
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import yaml

from tpulm import accelerators, storage
from tpulm.cloud import bundle
from tpulm.cloud.control import Control
from tpulm.cloud.launch import check_extras, check_folder, extras_of, label_value
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.config import RunConfig, canonical_json
from tpulm.errors import EXIT_PEER_LOST, EXIT_STOPPED, ConfigError
from tpulm.pages import text_environment
from tpulm.progress import SILENT, Progress
from tpulm.runtime.hosts import DEFAULT_PORT

_GPU = re.compile(r"(nvidia-[a-z0-9-]+)(?::([1-9][0-9]?))?")
# After failures: neither engine can leave out settings, data and permissions; after preemptions there is no limit.
_RESTARTS = 1
_LONGEST_POD = 63


@dataclass(frozen=True)
class Staged:
    """What an engine runs, staged in the bucket."""

    name: str  # lowercase letters, digits, hyphens
    workdir: PurePath
    run_file: PurePath
    bundle: PurePath  # named by its SHA-256

    @property
    def command(self) -> str:
        return shlex.join(["-m", "tpulm", "run", str(self.run_file), "--workdir", str(self.workdir)])

    @property
    def checksum(self) -> str:
        return self.bundle.name.removesuffix(".tar.gz")


@dataclass(frozen=True)
class Nodes:
    """What a JobSet asks of GKE."""

    hosts: int
    labels: dict[str, str]
    resource: str
    chips: int  # of each host


def stage(config: RunConfig, workdir: PurePath, settings: CloudSettings, *, progress: Progress = SILENT) -> Staged:
    """Put the bundle and the run file into the work folder.

    Raises ConfigError for a folder that is not in a bucket, and for a run that has a node; InUse for a supervised run.
    """
    check_folder(workdir)
    check_extras(config, settings)
    control = Control(workdir)
    with storage.held(control.folder, note=progress.note):
        if (job := control.find()) is not None and job.nodes:
            raise ConfigError(f"{job.nodes[0].name} works in {workdir}; end it first: tpulm cloud stop --workdir {workdir}")
        offline, extras = not settings.external_addresses, extras_of(config)
        packed = bundle.stage(control.folder / "bundles", offline=offline, extras=extras, progress=progress)
        storage.write_atomic(control.run_file, canonical_json(config))
    return Staged(label_value(config.name, workdir), workdir, control.run_file, packed)


def nodes_of(accelerator: str) -> Nodes:
    """The nodes for a TPU type, or for GPUs such as "nvidia-l4" or "nvidia-h100-80gb:8". Raises ConfigError if GKE has none."""
    if gpu := _GPU.fullmatch(accelerator.strip().lower()):
        return Nodes(1, {"cloud.google.com/gke-accelerator": gpu[1]}, "nvidia.com/gpu", int(gpu[2] or 1))
    kind = accelerators.find(accelerator)
    if not kind.gke_nodes:
        raise ConfigError(f"GKE has no nodes with {kind.name}; take a v3 or newer, such as v6e-8")
    labels = {"cloud.google.com/gke-tpu-accelerator": kind.gke_nodes, "cloud.google.com/gke-tpu-topology": kind.topology}
    return Nodes(kind.hosts, labels, "google.com/tpu", kind.chips // kind.hosts)


def skypilot(staged: Staged, settings: CloudSettings) -> str:
    """The task of a managed job, for `sky jobs launch`; the hosts of a slice need no further information from SkyPilot."""
    places = [(region_of(zone), zone) for zone in settings.zones]
    named = {"kind": settings.kind, "spot": settings.spot, "secrets": list(settings.secrets), "places": places}
    return _rendered("skypilot.yaml", staged, **named)


def jobset(staged: Staged, settings: CloudSettings, nodes: Nodes, *, image: str | None = None, queue: str | None = None) -> str:
    """A JobSet for a TPU slice or a GPU node. `image` must have bash and python3; the default is python:X.Y-slim. `queue` is
    one of Kueue's."""
    length = _LONGEST_POD - len(f"-slice-0-{nodes.hosts - 1}-abcde")
    if len(staged.name) > length:  # a run's name ends with a hyphen and six letters that are its own
        staged = replace(staged, name=staged.name[: length - 7].rstrip("-") + staged.name[-7:])
    image = image or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    named = {"account": "tpulm-worker", "bundle": bundle.object_of(staged.bundle), "port": DEFAULT_PORT}
    return _rendered("jobset.yaml", staged, settings=settings, nodes=nodes, image=image, queue=queue, **named)


def _rendered(template: str, staged: Staged, **values: Any) -> str:
    environment = text_environment(yaml=_scalar)
    again = (EXIT_STOPPED, EXIT_PEER_LOST)
    return environment.get_template(template).render(staged=staged, restarts=_RESTARTS, again=again, **values)


def _scalar(value: Any) -> str:
    """A value as one YAML scalar."""
    return yaml.safe_dump([value], width=10_000, allow_unicode=True)[2:-1]
