"""The Cloud TPU API v2 as a `Provider`: nodes, and queued resources of one node each, which has the same name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tpulm import protos
from tpulm.cloud.google_rest import needing_extra
from tpulm.cloud.provider import (
    WORKDIR,
    Creation,
    NodeStatus,
    Refused,
    Request,
    Resource,
    is_rate_limit,
    refusal_of_code,
    refusal_of_http,
    with_advice,
)
from tpulm.errors import CloudRefused, Unavailable
from tpulm.storage.causes import expired, no_login, passes, words

if TYPE_CHECKING:
    from google.cloud import tpu_v2

ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"  # gcloud's own variable
_SECONDS = 60.0  # of one request
_PATIENCE_SECONDS = 180.0  # of retries

_ENDED = frozenset(["SUSPENDING", "SUSPENDED", "FAILED"])  # states of queued resources

Answer = TypeVar("Answer")


class TpuApi:
    """Raises CloudRefused for what is refused, and Unavailable where nobody answers for minutes; `create` raises `Refused`."""

    def __init__(self, project: str):
        self.project = project

    def create(self, request: Request) -> str:
        begin = self._create_queued if request.queued else self._create_node
        with self._explained():
            from google.api_core import exceptions

            try:
                return begin(request).operation.name
            except exceptions.Conflict:
                return ""
            except exceptions.Unauthorized:  # of the login, which is not the request's fault
                raise
            except exceptions.GoogleAPICallError as error:
                raise _refused(error) from error

    def _create_node(self, request: Request) -> Any:
        return self._client.create_node(
            parent=self._location(request.zone), node=_node(request), node_id=request.name, **self._patience
        )

    def _create_queued(self, request: Request) -> Any:
        from google.cloud import tpu_v2
        from google.protobuf import duration_pb2

        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
            parent=self._location(request.zone), node_id=request.name, node=_node(request)
        )
        wait = duration_pb2.Duration(seconds=round(request.valid_seconds))
        queued = tpu_v2.QueuedResource(
            tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]),
            queueing_policy=tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=wait),
        )
        if request.spot:
            queued.spot = tpu_v2.QueuedResource.Spot()
        return self._client.create_queued_resource(
            parent=self._location(request.zone), queued_resource=queued, queued_resource_id=request.name, **self._patience
        )

    def progress(self, operation: str) -> Creation:
        if not operation:
            return Creation()
        found = self._unless_missing(lambda: self._client.get_operation({"name": operation}, **self._patience))
        if found is None:  # it is forgotten after a while
            return Creation()
        if not found.done:
            return Creation(pending=True)
        if not found.HasField("error"):
            return Creation()
        return Creation(refused=_failed(found.error))

    def look(self, name: str, zone: str) -> NodeStatus:
        """A node that its queued resource is deleting shows the state of that, which says more."""
        node = self._node(name, zone)
        if node is not None and node.state.name != "DELETING":
            return NodeStatus(
                node.state.name, dict(node.labels), max(1, len(node.network_endpoints)), created_at=_created_at(node)
            )
        queued = self._queued(name, zone)
        if queued is not None and (node is None or queued.state.state.name in _ENDED):
            error = queued.state.failed_data.error
            return NodeStatus(queued.state.state.name, _labels(queued), refused=_failed(error) if error.code else None)
        return NodeStatus(None) if node is None else NodeStatus(node.state.name, dict(node.labels))

    def delete(self, name: str, zone: str) -> str:
        """A node that a queued resource made goes with that; either may be gone before."""
        with self._explained():
            from google.api_core import exceptions

            try:
                if self._queued(name, zone) is not None:
                    path = f"{self._location(zone)}/queuedResources/{name}"
                    self._client.delete_queued_resource({"name": path, "force": True}, **self._patience)
                else:
                    self._client.delete_node(name=f"{self._location(zone)}/nodes/{name}", **self._patience)
            except exceptions.NotFound:
                pass
            except exceptions.Conflict as error:
                return words(error)
            except exceptions.BadRequest as error:  # google.api_core knows HTTP's 400 alone
                if _status(error) != "FAILED_PRECONDITION":
                    raise
                return words(error)
        return ""

    def boot_progress(self, name: str, zone: str) -> str:
        """As its agents write it into guest attributes: "0: installing, 1: training" of two workers."""
        with contextlib.suppress(Exception):  # it is but told
            path = {"name": f"{self._location(zone)}/nodes/{name}", "query_path": "tpulm/boot"}
            found = self._client.get_guest_attributes(path, timeout=_SECONDS).guest_attributes
            told = [next((item.value for item in worker.query_value.items), "nothing") for worker in found]
            return told[0] if len(told) == 1 else ", ".join(f"{worker}: {value}" for worker, value in enumerate(told))
        return ""

    def queued_state(self, name: str, zone: str) -> str | None:
        """Of a queued resource, whatever its node is; None: there is none."""
        return None if (queued := self._queued(name, zone)) is None else queued.state.state.name

    def resources(self, zone: str) -> Iterator[Resource]:
        with self._explained():
            spot_ones = set()
            for queued in self._client.list_queued_resources(parent=self._location(zone), **self._patience):
                wanted = next((spec.node for spec in queued.tpu.node_spec), None)
                if "spot" in queued:
                    spot_ones.update(spec.node_id for spec in queued.tpu.node_spec)
                yield _resource("queued resource", queued, zone, queued.state.state.name, wanted, "spot" in queued)
            for node in self._client.list_nodes(parent=self._location(zone), **self._patience):
                spot = node.scheduling_config.spot or node.scheduling_config.preemptible or _last(node.name) in spot_ones
                yield _resource("node", node, zone, node.state.name, node, spot)

    def zones(self) -> list[str]:
        """Those of the TPU API that the project may use."""
        names, token = [], ""
        while True:
            with self._explained():
                asked = {"name": f"projects/{self.project}", "page_token": token}
                found = self._client.list_locations(asked, **self._patience)
            names += [location.location_id for location in found.locations]
            if not (token := found.next_page_token):
                return sorted(names)

    def types(self, zone: str) -> set[str]:
        """The accelerator types offered in a zone; none where there is no such zone, or where it is closed to the project."""
        with self._explained():
            from google.api_core import exceptions

            try:
                found = self._client.list_accelerator_types(parent=self._location(zone), **self._patience)
                return {kind.type_ for kind in found}
            except exceptions.ClientError as error:
                if _refused(error).kind == "zone":
                    return set()
                raise

    def _node(self, name: str, zone: str) -> tpu_v2.Node | None:
        path = f"{self._location(zone)}/nodes/{name}"
        return self._unless_missing(lambda: self._client.get_node(name=path, **self._patience))

    def _queued(self, name: str, zone: str) -> tpu_v2.QueuedResource | None:
        path = f"{self._location(zone)}/queuedResources/{name}"
        return self._unless_missing(lambda: self._client.get_queued_resource(name=path, **self._patience))

    def _unless_missing(self, ask: Callable[[], Answer]) -> Answer | None:
        with self._explained():
            from google.api_core import exceptions

            try:
                return ask()
            except exceptions.NotFound:
                return None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """As `_explained`; after a refusal of the login the next request reads it anew, since somebody may log in again."""
        try:
            with _explained():
                yield
        except CloudRefused:
            self.__dict__.pop("_client", None)
            raise

    def _location(self, zone: str) -> str:
        return f"projects/{self.project}/locations/{zone}"

    @cached_property
    def _client(self) -> tpu_v2.TpuClient:
        with needing_extra():
            from google.api_core.client_options import ClientOptions
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import tpu_v2
        know_operations()
        endpoint = os.environ.get(ENDPOINT, "").rstrip("/")
        options = ClientOptions(api_endpoint=endpoint) if endpoint else ClientOptions(quota_project_id=self.project)
        # Over plain HTTP, as to an emulator, no credentials are sent.
        credentials = AnonymousCredentials() if endpoint.startswith("http://") else None
        with self._explained():
            return tpu_v2.TpuClient(transport="rest", credentials=credentials, client_options=options)

    @cached_property
    def _patience(self) -> dict[str, Any]:
        """The client has neither a time limit nor retries of its own."""
        import requests
        from google.api_core import exceptions, retry
        from google.auth import exceptions as auth

        answers = (
            exceptions.InternalServerError,
            exceptions.BadGateway,
            exceptions.ServiceUnavailable,
            exceptions.GatewayTimeout,
        )
        none = (requests.exceptions.ConnectionError, requests.exceptions.Timeout, auth.TransportError, ConnectionError)
        failed = retry.if_exception_type(*answers, *none)

        def when(error: Exception) -> bool:
            too_often = isinstance(error, exceptions.TooManyRequests) and is_rate_limit(str(error))
            return failed(error) or too_often

        return {"timeout": _SECONDS, "retry": retry.Retry(when, initial=1.0, maximum=20.0, timeout=_PATIENCE_SECONDS)}


def _node(request: Request) -> tpu_v2.Node:
    from google.cloud import tpu_v2

    node = tpu_v2.Node(
        accelerator_type=request.accelerator,
        runtime_version=request.runtime_version,
        network_config=tpu_v2.NetworkConfig(
            network=request.network or "",
            subnetwork=request.subnetwork or "",
            enable_external_ips=request.external_addresses,
        ),
        labels=dict(request.labels),
        metadata=dict(request.metadata),
    )
    if not request.queued:  # of a queued resource its own `spot` says it
        node.scheduling_config = tpu_v2.SchedulingConfig(spot=request.spot)
    if request.service_account is not None:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node.service_account = tpu_v2.ServiceAccount(email=request.service_account, scope=scope)
    return node


def _labels(queued: tpu_v2.QueuedResource) -> dict[str, str]:
    """A queued resource has none of its own."""
    return next((dict(spec.node.labels) for spec in queued.tpu.node_spec), {})


def _resource(kind: str, found: Any, zone: str, state: str, node: tpu_v2.Node | None, spot: bool) -> Resource:
    """`node` is what it is, or is to become."""
    return Resource(
        kind,
        _last(found.name),
        zone,
        state,
        {} if node is None else dict(node.labels),
        "" if node is None else node.accelerator_type,
        workdir="" if node is None else dict(node.metadata).get(WORKDIR, ""),
        spot=bool(spot),
        created_at=_created_at(found),
    )


def _created_at(found: Any) -> float | None:
    return found.create_time.timestamp() if found.create_time else None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _refused(error: Any) -> Refused:
    """Of an answer to a request to create something."""
    reason = getattr(error, "reason", None) or _status(error)
    message = words(error)
    return Refused(refusal_of_http(int(error.code or 0), reason, message), with_advice(message))


def _failed(error: Any) -> Refused:
    """Of a google.rpc.Status: an operation's, or a queued resource's."""
    return Refused(refusal_of_code(error.code, error.message), with_advice(error.message))


def _status(error: Any) -> str:
    """google.rpc.Code in words, which HTTP's status does not tell: "FAILED_PRECONDITION"; "" where the answer has none."""
    with contextlib.suppress(Exception):  # an answer of something in between
        return str(error.response.json()["error"]["status"])
    return ""


def know_operations() -> None:
    """Make Google's client able to read operations of the TPU API over REST.

    Their metadata has a type of google-cloud-common, which google-cloud-tpu neither has nor asks for. Without it the
    client raises ParseError at the answer to a creation, when the node is already there (k8s-config-connector, mocktpu).
    """
    from google.protobuf import descriptor_pool, timestamp_pb2

    pool = descriptor_pool.Default()
    with contextlib.suppress(KeyError):
        pool.FindMessageTypeByName("google.cloud.common.OperationMetadata")
        return
    file = protos.new_file("google.cloud.common")
    file.name, kind = "google/cloud/common/operation_metadata.proto", protos.KIND
    file.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    message = file.message_type.add(name="OperationMetadata")
    for number, name in enumerate(("create_time", "end_time"), 1):
        message.field.append(protos.field(name, number, "Timestamp", package="google.protobuf"))
    for number, name in enumerate(("target", "verb", "status_detail", "cancel_requested", "api_version"), 3):
        scalar = kind.TYPE_BOOL if name == "cancel_requested" else kind.TYPE_STRING
        message.field.append(protos.field(name, number, scalar))
    pool.Add(file)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What google's client raises when there is no good answer, as errors that a command tells."""
    with needing_extra():
        from google.api_core import exceptions
        from google.auth import exceptions as auth

    try:
        yield
    except auth.DefaultCredentialsError as error:
        raise CloudRefused(no_login()) from error
    except auth.RefreshError as error:
        if passes(error):
            raise Unavailable(f"the metadata server of this VM gives no token now: {words(error)}") from error
        raise CloudRefused(expired(str(error))) from error
    except exceptions.Conflict as error:
        raise Unavailable(f"the TPU API cannot do it now: {words(error)}") from error
    except exceptions.TooManyRequests as error:
        raise Unavailable(f"the TPU API is asked too often: {words(error)}") from error
    except exceptions.ClientError as error:
        raise CloudRefused(f"the TPU API refused: {words(error)}") from error
    except exceptions.RetryError as error:
        why = words(error.cause) if isinstance(error.cause, exceptions.GoogleAPICallError) else "no answer; is there a network?"
        raise Unavailable(f"the TPU API has failed for {_PATIENCE_SECONDS:.0f} s: {why}") from error
    except exceptions.GoogleAPICallError as error:
        raise Unavailable(f"the TPU API failed: {words(error)}; try again later") from error
    except (exceptions.GoogleAPIError, auth.GoogleAuthError, OSError) as error:
        raise Unavailable(f"the TPU API does not answer ({type(error).__name__}); is there a network?") from error
