"""What tests of emulated TPUs share: an emulator, and Google's own client of it."""

from __future__ import annotations

import contextlib
from typing import Any

from google.api_core.client_options import ClientOptions
from google.api_core.future.polling import DEFAULT_POLLING
from google.auth.credentials import Credentials
from google.cloud import tpu_v2

from cloud_emulator import Emulator
from tpulm import protos
from waiting import until

RUNTIME = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
OLD_RUNTIME = "tpu-ubuntu2204-base"  # of v2 to v4
POLL = DEFAULT_POLLING.with_delay(initial=0.03, maximum=0.05)  # seconds; its own begins with a whole one
ZONE = "us-central1-a"


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


class Login(Credentials):
    """As a real one: a 401 makes the client refresh it, twice, and ask again."""

    def refresh(self, request: Any) -> None:
        self.token = "emulated"


class Rig:
    """`place` is where nodes are made unless another is named."""

    def __init__(self, emulator: Emulator):
        self.emulator = emulator
        self.tpu = emulator.tpu
        options = ClientOptions(api_endpoint=emulator.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"])
        know_operations()
        self.client = tpu_v2.TpuClient(transport="rest", credentials=Login(), client_options=options)
        self.place = self.at(ZONE)

    def at(self, zone: str) -> str:
        return f"projects/tpulm-emulator/locations/{zone}"

    def node(self, kind: str = "v3-8", script: str = "", spot: bool = True, **fields: Any) -> tpu_v2.Node:
        metadata = {"startup-script": script} if script else {}
        fields = {"runtime_version": RUNTIME.get(kind.partition("-")[0], OLD_RUNTIME), "metadata": metadata, **fields}
        return tpu_v2.Node(accelerator_type=kind, scheduling_config=tpu_v2.SchedulingConfig(spot=spot), **fields)

    def begin(self, name: str = "run-a1", kind: str = "v3-8", zone: str = ZONE, **fields: Any) -> Any:
        """The operation of a creation."""
        return self.client.create_node(parent=self.at(zone), node_id=name, node=self.node(kind, **fields), timeout=20)

    def create(self, name: str = "run-a1", kind: str = "v3-8", zone: str = ZONE, **fields: Any) -> tpu_v2.Node:
        return self.begin(name, kind, zone, **fields).result(timeout=20, polling=POLL)

    def get(self, name: str = "run-a1") -> tpu_v2.Node:
        return self.client.get_node(name=f"{self.place}/nodes/{name}", timeout=20)

    def state(self, name: str = "run-a1") -> str:
        return self.get(name).state.name

    def delete(self, name: str = "run-a1") -> None:
        self.client.delete_node(name=f"{self.place}/nodes/{name}", timeout=20).result(timeout=20, polling=POLL)

    def begin_queued(self, name: str = "run-q1", node: tpu_v2.Node | None = None, **fields: Any) -> Any:
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=self.place, node_id=f"{name}-node", node=node or self.node(spot=False))
        resource = tpu_v2.QueuedResource(tpu={"node_spec": [spec]}, **fields)
        return self.client.create_queued_resource(
            parent=self.place, queued_resource_id=name, queued_resource=resource, timeout=20
        )

    def queue(self, name: str = "run-q1", node: tpu_v2.Node | None = None, **fields: Any) -> Any:
        return self.begin_queued(name, node, **fields).result(timeout=20, polling=POLL)

    def queued_state(self, name: str = "run-q1") -> str:
        found = self.client.get_queued_resource(name=f"{self.place}/queuedResources/{name}", timeout=20)
        return found.state.state.name

    def said(self, word: str, node: str = "run-a1", worker: int = 0) -> str:
        """The console once that word is on it."""
        until(lambda: word in self.tpu.console(node, worker), lambda: self.tpu.console(node, worker))
        return self.tpu.console(node, worker)
