"""Which host of how many this is, from options, or from what a TPU slice tells its machines.

A TPU VM has it in its metadata (agent-worker-number, worker-network-endpoints), a pod of GKE in its environment
(TPU_WORKER_ID, TPU_WORKER_HOSTNAMES); both are what JAX itself goes by (jax/_src/clusters/cloud_tpu_cluster.py).
"""

from __future__ import annotations

import os
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tpulm.errors import ConfigError, TpulmError

DEFAULT_PORT = 8476
_METADATA = "http://{host}/computeMetadata/v1/instance/attributes/{key}"
_ATTEMPTS, _PAUSE_SECONDS = 6, 0.5  # as JAX asks (its PR 26919): now and then the server fails


@dataclass(frozen=True)
class Membership:
    coordinator: str  # address:port of the first host
    count: int
    index: int


def membership(
    coordinator: str | None = None, num_hosts: int | None = None, host_index: int | None = None
) -> Membership | None:
    """What the options say, else what the TPU's environment says; None where this machine works alone.

    Raises ConfigError for options that do not make sense together, TpulmError for a metadata server that fails.
    """
    given = {"--coordinator": coordinator, "--num-hosts": num_hosts, "--host-index": host_index}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        return _from_environment() or _from_metadata()
    if coordinator is None or num_hosts is None or host_index is None:
        raise ConfigError(
            f"{' and '.join(missing)} missing: several hosts need all three of {', '.join(given)}, the first and second the "
            "same on each"
        )
    if num_hosts < 1 or not 0 <= host_index < num_hosts:
        raise ConfigError(f"--host-index {host_index} is not one of {num_hosts} hosts: count from 0 to --num-hosts minus one")
    return _checked(Membership(coordinator, num_hosts, host_index)) if num_hosts > 1 else None


def _checked(found: Membership) -> Membership:
    host, colon, port = found.coordinator.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_535:
        raise ConfigError(
            f"--coordinator {found.coordinator}: give address:port of the first host, such as 10.0.0.2:{DEFAULT_PORT}; the "
            "port after it is used, too"
        )
    return found


def _from_environment() -> Membership | None:
    names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(names) < 2:
        return None
    index = os.environ.get("TPU_WORKER_ID", "")
    if not index.isdecimal() or int(index) >= len(names):
        raise ConfigError(f"TPU_WORKER_ID is '{index}', and TPU_WORKER_HOSTNAMES names {len(names)} hosts; set both or neither")
    return Membership(f"{names[0]}:{DEFAULT_PORT}", len(names), int(index))


def _from_metadata() -> Membership | None:
    if not _is_tpu_vm() or os.environ.get("TPU_SKIP_MDS_QUERY"):
        return None
    number, endpoints = _attribute("agent-worker-number"), _attribute("worker-network-endpoints")
    if number is None or endpoints is None:
        return None
    # Each is an address, or, in an older form, name:id:address.
    addresses = [endpoint.split(":")[-1] for endpoint in endpoints.split(",") if endpoint]
    if len(addresses) < 2:
        return None
    if not number.isdecimal() or int(number) >= len(addresses):
        raise ConfigError(
            f"the metadata of this TPU VM says agent-worker-number '{number}', and names {len(addresses)} hosts; say which one "
            "this is by --coordinator, --num-hosts and --host-index"
        )
    return Membership(f"{addresses[0]}:{DEFAULT_PORT}", len(addresses), int(number))


def _is_tpu_vm() -> bool:
    """A metadata server named by hand counts as one, so that this can be rehearsed."""
    return "GCE_METADATA_HOST" in os.environ or Path("/dev/accel0").exists() or Path("/dev/vfio/0").exists()


def _attribute(key: str) -> str | None:
    """None where there is none, or no metadata server of that name. Raises TpulmError where it does not answer: a host of a
    slice that took itself to be alone would train a run of its own into the same work folder.
    """
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(_METADATA.format(host=host, key=key), headers={"Metadata-Flavor": "Google"})
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            reason = f"HTTP {error.code}"
        except OSError as error:
            if isinstance(error, urllib.error.URLError) and isinstance(error.reason, socket.gaierror):
                return None
            reason = str(error)
    raise TpulmError(
        f"the metadata server {host} did not say {key}, asked {_ATTEMPTS} times ({reason}), so this host does not know whether "
        "it is one of several; run it again, or say it by --coordinator, --num-hosts and --host-index, or, on a machine that "
        "works alone, by TPU_SKIP_MDS_QUERY=1"
    )
