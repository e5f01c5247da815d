"""What the metadata server of a TPU VM says, by the node it belongs to."""

from __future__ import annotations

import json
import zlib
from typing import Any

from tpulm.emulator import places
from tpulm.emulator.projects import Project
from tpulm.emulator.tpu.slices import Slice

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
TOKEN_SECONDS = 3599


def metadata_tree(found: Slice, project: Project, worker: int) -> dict[str, Any]:
    """As on a Compute Engine machine, with the attributes that a TPU VM has beside the user's own."""
    node = found.node
    machine = f"t1v-n-{zlib.crc32(node.name.encode()):08x}-w-{worker}"
    number = zlib.crc32(f"{node.name}/{node.id}/{worker}".encode())
    address = found.addresses[worker]
    email = node.service_account.email or project.default_account
    return {
        "instance": {
            "attributes": attributes(found, worker),
            "hostname": f"{machine}.{found.zone}.c.{project.name}.internal",
            "id": str(10**18 + number),
            "image": "projects/cloud-tpu-vm-images/global/images/emulated",
            "machine-type": f"projects/{project.number}/machineTypes/n1-standard-96",
            "maintenance-event": "NONE",
            "name": machine,
            "network-interfaces": {"0": {"ip": address, "network": f"projects/{project.number}/networks/default"}},
            "preempted": "FALSE",
            "scheduling": {
                "automatic-restart": "FALSE" if found.spot else "TRUE",
                "on-host-maintenance": "TERMINATE",
                "preemptible": "TRUE" if found.spot else "FALSE",
            },
            "service-accounts": {"default": _account(email), email: _account(email)},
            "tags": json.dumps(list(node.tags)),
            "zone": f"projects/{project.number}/zones/{found.zone}",
        },
        "project": {"attributes": {}, "numeric-project-id": str(project.number), "project-id": project.name},
        "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
    }


def attributes(found: Slice, worker: int) -> dict[str, str]:
    node = found.node
    return {
        **dict(node.metadata),
        "accelerator-type": node.accelerator_type,
        "agent-worker-number": str(worker),
        "instance-id": node.name.rpartition("/")[2],
        "tpu-env": _tpu_env(found, worker),
        "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in found.addresses),
    }


def _tpu_env(found: Slice, worker: int) -> str:
    node, accelerator = found.node, found.accelerator
    values = {
        "ACCELERATOR_TYPE": node.accelerator_type,
        "CONSUMER_PROJECT_ID": node.name.split("/")[1],
        "NODE_ID": node.name.rpartition("/")[2],
        "RUNTIME_VERSION": node.runtime_version,
        "TOPOLOGY": places.topology(accelerator),
        "TPU_CHIPS": str(accelerator.chips),
        "TYPE": places.CONFIG_TYPES[accelerator.generation],
        "WORKER_ID": str(worker),
        "ZONE": found.zone,
    }
    return "".join(f"{name}: '{value}'\n" for name, value in values.items())


def _account(email: str) -> dict[str, str]:
    token = {"access_token": "emulated", "expires_in": TOKEN_SECONDS, "token_type": "Bearer"}
    return {
        "aliases": "default\n",
        "email": email,
        "scopes": "".join(f"{scope}\n" for scope in SCOPES),
        "token": json.dumps(token),
    }
