"""The Cloud TPU API v2 as a `Provider`: nodes, and queued resources of one node each with the same name.

Uses `GoogleRest`: google-cloud-tpu has neither retries nor timeouts, and cannot read its own API's operations.
Fields: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tpulm.cloud.google_rest import SCOPE, GoogleError, GoogleRest, moment
from tpulm.cloud.provider import (
    WORKDIR,
    Creation,
    NodeStatus,
    Refused,
    Request,
    Resource,
    refusal_of_code,
    refusal_of_http,
    with_advice,
)
from tpulm.errors import CloudRefused, Unavailable

_PATIENCE_SECONDS = 180.0  # to keep retrying
_ENDED = frozenset(["SUSPENDING", "SUSPENDED", "FAILED"])  # states of queued resources


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn GoogleError into what commands report: CloudRefused, or Unavailable for a transient error."""
    try:
        yield
    except GoogleError as error:
        if error.is_final:
            raise CloudRefused(f"the TPU API refused: {error}") from error
        raise Unavailable(f"the TPU API has failed: {error}; try again later") from error


class TpuApi:
    """Raises CloudRefused for a refusal, Unavailable if there is no answer for minutes; `create` raises `Refused`."""

    def __init__(self, project: str, rest: GoogleRest | None = None):
        self.project = project
        self.rest = rest or GoogleRest(project, patience_seconds=_PATIENCE_SECONDS)

    @_explained()
    def create(self, request: Request) -> str:
        place, node = self._place(request.zone), _node(request)
        try:
            if not request.queued:
                return self.rest.post("tpu", f"{place}/nodes", node, nodeId=request.name)["name"]
            spec = {"parent": place.removeprefix("v2/"), "nodeId": request.name, "node": node}
            policy = {"validUntilDuration": f"{round(request.valid_seconds)}s"}
            queued = {"tpu": {"nodeSpec": [spec]}, "queueingPolicy": policy, **({"spot": {}} if request.spot else {})}
            return self.rest.post("tpu", f"{place}/queuedResources", queued, queuedResourceId=request.name)["name"]
        except GoogleError as error:
            if error.status == 409:
                return ""
            if error.is_transient or error.status == 401:  # the login, not the request, is at fault
                raise
            message = str(error)
            raise Refused(refusal_of_http(error.status, error.reason, message), with_advice(message)) from error

    def progress(self, operation: str) -> Creation:
        status = self._find(f"v2/{operation}") if operation else None  # Google forgets it after a while
        if status is None:
            return Creation()
        if not status.get("done"):
            return Creation(pending=True)
        return Creation(refused=_failed(status.get("error")))

    def node_status(self, name: str, zone: str) -> NodeStatus:
        """A node's status; while it is deleted with its queued resource, the state of the latter, which says more."""
        node = self._find(f"{self._place(zone)}/nodes/{name}") or {}
        state, labels = node.get("state"), node.get("labels", {})
        if node and state != "DELETING":
            workers = max(1, len(node.get("networkEndpoints", ())))
            return NodeStatus(state, labels, workers, created_at=moment(node.get("createTime")))
        queued = self._queued(name, zone)
        if queued is not None and (not node or _state(queued) in _ENDED):
            refused = _failed(queued.get("state", {}).get("failedData", {}).get("error"))
            return NodeStatus(_state(queued), _planned(queued).get("labels", {}), refused=refused)
        return NodeStatus(state, labels) if node else NodeStatus(None)

    @_explained()
    def delete(self, name: str, zone: str) -> str:
        """A node is deleted with the queued resource that created it; either may be gone already."""
        queued = self._queued(name, zone) is not None
        path, query = (f"queuedResources/{name}", {"force": "true"}) if queued else (f"nodes/{name}", {})
        try:
            self.rest.request("DELETE", "tpu", f"{self._place(zone)}/{path}", query=query)
        except GoogleError as error:
            if error.status == 409 or error.reason == "FAILED_PRECONDITION":
                return str(error)
            if not error.missing:
                raise
        return ""

    def boot_progress(self, name: str, zone: str) -> str:
        """What a node's agents write into guest attributes: "0: installing, 1: training" for two workers."""
        with contextlib.suppress(Exception):  # informational
            path = f"{self._place(zone)}/nodes/{name}:getGuestAttributes"
            attributes = self.rest.post("tpu", path, {"queryPath": "tpulm/boot"})["guestAttributes"]
            items = [worker.get("queryValue", {}).get("items", ()) for worker in attributes]
            reports = [next((item["value"] for item in of_worker), "nothing") for of_worker in items]
            return reports[0] if len(reports) == 1 else ", ".join(f"{worker}: {value}" for worker, value in enumerate(reports))
        return ""

    def queued_state(self, name: str, zone: str) -> str | None:
        """A queued resource's state, whatever its node's; None if there is none."""
        return None if (queued := self._queued(name, zone)) is None else _state(queued)

    def resources(self, zone: str) -> Iterator[Resource]:
        """Every node and queued resource in a zone."""
        spot_ones = set()
        for queued in self._listed(f"{self._place(zone)}/queuedResources", "queuedResources"):
            if "spot" in queued:
                spot_ones.update(spec.get("nodeId") for spec in queued.get("tpu", {}).get("nodeSpec", ()))
            yield _resource("queued resource", queued, zone, _state(queued), _planned(queued), "spot" in queued)
        for node in self._listed(f"{self._place(zone)}/nodes", "nodes"):
            scheduling = node.get("schedulingConfig", {})
            spot = scheduling.get("spot") or scheduling.get("preemptible") or node["name"].rpartition("/")[2] in spot_ones
            yield _resource("node", node, zone, node.get("state", ""), node, spot)

    def zones(self) -> list[str]:
        """The zones with TPUs that the project may use."""
        return sorted(location["locationId"] for location in self._listed(f"v2/projects/{self.project}/locations", "locations"))

    @_explained()
    def types(self, zone: str) -> set[str]:
        """The accelerator types offered in a zone; empty if the zone does not exist or is closed to the project."""
        try:
            pages = list(self.rest.pages("tpu", f"{self._place(zone)}/acceleratorTypes"))
        except GoogleError as error:
            if error.is_final and refusal_of_http(error.status, error.reason, str(error)) == "zone":
                return set()
            raise
        return {kind["type"] for page in pages for kind in page.get("acceleratorTypes", ())}

    def _queued(self, name: str, zone: str) -> dict[str, Any] | None:
        return self._find(f"{self._place(zone)}/queuedResources/{name}")

    @_explained()
    def _find(self, path: str) -> dict[str, Any] | None:
        return self.rest.find("tpu", path)

    @_explained()
    def _listed(self, path: str, of: str) -> list[dict[str, Any]]:
        return [item for page in self.rest.pages("tpu", path) for item in page.get(of, ())]

    def _place(self, zone: str) -> str:
        return f"v2/projects/{self.project}/locations/{zone}"


def _node(request: Request) -> dict[str, Any]:
    network = {"network": request.network, "subnetwork": request.subnetwork}
    node: dict[str, Any] = {
        "acceleratorType": request.accelerator,
        "runtimeVersion": request.runtime_version,
        "networkConfig": {name: value for name, value in network.items() if value}
        | {"enableExternalIps": request.external_addresses},
        "labels": dict(request.labels),
        "metadata": dict(request.metadata),
    }
    if not request.queued:  # a queued resource has its own `spot`
        node["schedulingConfig"] = {"spot": request.spot}
    if request.service_account is not None:
        node["serviceAccount"] = {"email": request.service_account, "scope": [SCOPE]}
    return node


def _state(queued: Mapping[str, Any]) -> str:
    return queued.get("state", {}).get("state", "")


def _planned(queued: Mapping[str, Any]) -> dict[str, Any]:
    """The node that a queued resource will become; the queued resource has no labels itself."""
    return next((spec.get("node", {}) for spec in queued.get("tpu", {}).get("nodeSpec", ())), {})


def _resource(kind: str, item: Mapping[str, Any], zone: str, state: str, node: Mapping[str, Any], spot: bool) -> Resource:
    """`node` is what was found, or what it will become."""
    return Resource(
        kind,
        item["name"].rpartition("/")[2],
        zone,
        state,
        node.get("labels", {}),
        node.get("acceleratorType", ""),
        workdir=node.get("metadata", {}).get(WORKDIR, ""),
        spot=bool(spot),
        created_at=moment(item.get("createTime")),
    )


def _failed(error: Mapping[str, Any] | None) -> Refused | None:
    """The refusal in a google.rpc.Status, if it is an error."""
    if not error or not error.get("code"):
        return None
    message = str(error.get("message", ""))
    return Refused(refusal_of_code(error["code"], message), with_advice(message))
