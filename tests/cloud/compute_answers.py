"""Answers of the Compute Engine API in its own shape, and a server that gives them.

https://cloud.google.com/compute/docs/reference/rest/v1: networks, subnetworks, regions.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

URL = "https://www.googleapis.com/compute/v1/projects/my-project"
REGIONS = ("us-central1", "us-east1")


def network_of(name: str = "default", *, auto: bool = True) -> dict[str, Any]:
    return {
        "kind": "compute#network",
        "id": "5750285369311501464",
        "name": name,
        "selfLink": f"{URL}/global/networks/{name}",
        "autoCreateSubnetworks": auto,
        "subnetworks": [f"{URL}/regions/{region}/subnetworks/{name if auto else 'tpus'}" for region in REGIONS],
        "routingConfig": {"routingMode": "REGIONAL"},
    }


def subnetwork_of(name: str, region: str, *, of: str = "default", private: bool = False) -> dict[str, Any]:
    return {
        "kind": "compute#subnetwork",
        "name": name,
        "network": f"{URL}/global/networks/{of}",
        "ipCidrRange": "10.128.0.0/20",
        "region": f"{URL}/regions/{region}",
        "privateIpGoogleAccess": private,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
    }


def region_of(name: str, limit: float, usage: float) -> dict[str, Any]:
    quotas = [
        {"metric": "CPUS", "limit": 24.0, "usage": 0.0},
        {"metric": "IN_USE_ADDRESSES", "limit": limit, "usage": usage},
    ]
    return {"kind": "compute#region", "name": name, "status": "UP", "quotas": quotas}


def error_of(status: int, message: str, reason: str, *details: dict[str, Any]) -> dict[str, Any]:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return {"error": {"code": status, "message": message, "errors": errors, "details": list(details)}}


API_OFF = error_of(  # hashicorp/terraform-provider-google prints it so; its ErrorInfo has "metadatas"
    403,
    "Compute Engine API has not been used in project my-project before or it is disabled.",
    "accessNotConfigured",
    {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadatas": {"service": "compute.googleapis.com", "consumer": "projects/my-project"},
    },
)
REFUSED = error_of(403, "Required 'compute.networks.get' permission for 'projects/my-project/global/networks/x'", "forbidden")


def usual(path: str) -> dict[str, Any]:
    """Of a new project: the network "default" in auto mode, 8 addresses a region."""
    parts = path.strip("/").split("/")
    if "subnetworks" in parts:
        return subnetwork_of(parts[-1], parts[parts.index("regions") + 1])
    return network_of(parts[-1]) if "networks" in parts else region_of(parts[-1], 8.0, 0.0)


@contextlib.contextmanager
def served(answer: Callable[[str], dict[str, Any]]) -> Iterator[str]:
    """The address of a server for GET requests; an answer with an error has its status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path)
            body = json.dumps(found).encode()
            self.send_response(found.get("error", {}).get("code", 200))
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
