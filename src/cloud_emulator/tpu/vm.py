"""What the metadata server of a TPU VM says, by the node it belongs to."""

from __future__ import annotations

import json
import zlib
from typing import Any

from cloud_emulator import places, recorded
from cloud_emulator.projects import Project
from cloud_emulator.tpu.slices import Slice

# Of nodes that name none: k8s-config-connector's golden log of a TPU VM.
SCOPES = [
    f"https://www.googleapis.com/auth/{name}"
    for name in ("devstorage.read_write", "logging.write", "service.management", "servicecontrol", "cloud-platform", "pubsub")
]
TOKEN_SECONDS = 3599
ATTRIBUTES = "instance/attributes/"


def metadata_tree(found: Slice, project: Project, worker: int, tenant: bool) -> dict[str, Any]:
    """As on a Compute Engine machine, with what is recorded of TPU VMs; `tenant`: in a project of Google's own."""
    node = found.node
    home, number = (_tenant(project), zlib.crc32(_tenant(project).encode())) if tenant else (project.name, project.number)
    identity = zlib.crc32(f"{node.name}/{node.id}/{worker}".encode())
    email = node.service_account.email or project.default_account
    tree: dict[str, Any] = {
        "instance": {
            "attributes": dict(node.metadata),
            "hostname": f"{machine_name(found, worker)}.{found.zone}.c.{home}.internal",
            "id": str(10**18 + identity),
            "image": "projects/cloud-tpu-vm-images/global/images/emulated",
            "machine-type": f"projects/{number}/machineTypes/n1-standard-96",
            "network-interfaces": {"0": {"ip": found.addresses[worker], "network": f"projects/{number}/networks/default"}},
            "scheduling": {"automatic-restart": "FALSE" if found.spot else "TRUE", "on-host-maintenance": "TERMINATE"},
            "service-accounts": {"default": service_account(email), email: service_account(email)},
            "tags": json.dumps(list(node.tags)),
            "zone": f"projects/{number}/zones/{found.zone}",
        },
        "project": {"attributes": {}, "numeric-project-id": str(number)},
        "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
    }
    for path, value in _recorded(found, project, worker, home).items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return tree


def attributes(found: Slice, project: Project, worker: int) -> dict[str, str]:
    """The user's own, and those that every TPU VM has."""
    values = _recorded(found, project, worker, "")
    ours = {path.removeprefix(ATTRIBUTES): value for path, value in values.items() if path.startswith(ATTRIBUTES)}
    return {**dict(found.node.metadata), **ours}


def machine_name(found: Slice, worker: int) -> str:
    """Never the node's; the host's name, too."""
    return _filled("instance/name", short=f"{zlib.crc32(found.name.encode()):08x}", worker=worker)


def _tenant(project: Project) -> str:
    """A letter, 16 hexadecimal digits, "-tp"."""
    return f"g{zlib.crc32(project.name.encode()) << 32 | project.number & 0xFFFFFFFF:016x}-tp"


def _filled(path: str, **values: object) -> str:
    return recorded.filled(recorded.metadata()["keys"][path]["value"], **values)


def _recorded(found: Slice, project: Project, worker: int, home: str) -> dict[str, str]:
    """By path, such as "instance/name"; `home` is the project that the VM is in."""
    node, accelerator = found.node, found.accelerator
    sides = [*map(int, places.topology(accelerator).split("x")), 1][:3]
    of_host = sides if accelerator.hosts == 1 else [2, 2, 1]
    values = {
        "tenant": home,
        "project": project.name,
        "number": project.number,
        "node": node.name.rpartition("/")[2],
        "worker": worker,
        "zone": found.zone,
        "type": node.accelerator_type,
        "generation": places.CONFIG_TYPES[accelerator.generation],
        "topology": places.topology(accelerator),
        "chips_per_host_bounds": ",".join(map(str, of_host)),
        "host_bounds": ",".join(str(whole // part) for whole, part in zip(sides, of_host, strict=True)),
        "wrap": ",".join("true" if side > 1 and side % 4 == 0 else "false" for side in sides),
        "ici_resiliency": "true" if accelerator.dimensions == 3 and accelerator.chips >= 64 else "false",
        "preemptible": "true" if found.spot else "false",
        "PREEMPTIBLE": "TRUE" if found.spot else "FALSE",
        "uid": node.id,
    }
    own = {path: _filled(path, **values) for path in recorded.metadata()["keys"] if path != "instance/name"}
    ends = "instance/attributes/worker-network-endpoints"
    own[ends] = ",".join(_filled(ends, address=address) for address in found.addresses)
    return {**own, "instance/name": machine_name(found, worker)}


def service_account(email: str) -> dict[str, str]:
    token = {"access_token": "emulated", "expires_in": TOKEN_SECONDS, "token_type": "Bearer"}
    return {
        "aliases": "default\n",
        "email": email,
        "scopes": "https://www.googleapis.com/auth/cloud-platform\n",
        "token": json.dumps(token),
    }
