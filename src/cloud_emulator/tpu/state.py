"""What nodes and queued resources share: the clock, projects, machines, orders, history and operations."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import proto
from google.cloud.tpu_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ConfigDict, Field

from cloud_emulator import recorded
from cloud_emulator.clock import Clock
from cloud_emulator.errors import ApiError, EmulatorError, rpc_error
from cloud_emulator.faults import Seconds
from cloud_emulator.machines import Machines
from cloud_emulator.projects import Demand, Projects

STOCK_OUT = "stock-out"
Item = TypeVar("Item")


def raw(message: proto.Message) -> Any:
    return type(message).pb(message)


def timestamp(seconds: float) -> Timestamp:
    proto = Timestamp()
    proto.FromMilliseconds(round(seconds * 1000))
    return proto


def refused(name: str, **values: object) -> ApiError:
    """A refusal whose wording is inferred, not Google's."""
    status, message = recorded.load("tpu")["inferred"][name]
    return rpc_error(403 if status == "PERMISSION_DENIED" else 400, recorded.filled(message, **values), status)


def resource_refusal(answer: str, name: str) -> ApiError:
    """The error for "not-found" or "name-taken"; `name` as in projects/p/locations/z/nodes/n."""
    _, project, _, zone, resource = name.split("/", 4)
    return recorded.refusal(answer, project=project, zone=zone, resource=resource)


class Table(dict[str, Item]):
    """Resources by their full names."""

    def find(self, name: str) -> Item:
        if name not in self:
            raise resource_refusal("not-found", name)
        return self[name]

    def within(self, collection: str) -> list[Item]:
        return [self[name] for name in sorted(self) if name.startswith(f"{collection}/")]


class Behaviour(BaseModel):
    """How the service behaves from now on. Times in seconds of the emulator's clock."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    create_seconds: Seconds = 0.3  # a node is CREATING, and the queued resource that it belongs to PROVISIONING
    boot_seconds: Seconds | None = None  # after which its machines run; None: when it is READY
    late_seconds: Seconds = 0.0  # by which `late_worker` boots after the others of its node; None: all of them boot late
    late_worker: Annotated[int, Field(ge=0)] | None = None
    delete_seconds: Seconds = 0.2  # a node or queued resource is DELETING, a queued resource SUSPENDING
    stop_seconds: Seconds = 0.1  # a node is STOPPING or STARTING
    queue_seconds: Seconds = 0.0  # a queued resource is WAITING_FOR_RESOURCES
    addresses: Annotated[int, Field(ge=0)] | None = None  # external ones of a project in a region, one a host; None: no limit
    tenant_project: bool = True  # `project/project-id` on a VM is a tenant project, not the user's
    force_in_provisioning: bool = False  # whether `force` deletes in PROVISIONING; unknown for Google


class Failure(NamedTuple):
    """An error; `code` is a number of google.rpc.Code."""

    code: int
    message: str

    @classmethod
    def recorded(cls, name: str, **values: object) -> Failure:
        """The error of an operation, or of a queued resource that failed, in Google's words."""
        response = recorded.answer(name, **values)
        error = (response.get("operation") or response["failed_data"])["error"]
        return cls(error["code"], error["message"])


@dataclass
class Order:
    """An order to give a recorded answer to requests whose kind begins with `requests`, in `zone` or anywhere."""

    name: str
    requests: str
    zone: str | None
    remaining: int | None  # None: until taken back


class Orders:
    """The orders to give recorded answers; the first that fits is used."""

    def __init__(self) -> None:
        self._orders: list[Order] = []

    def add(self, name: str, zone: str | None, count: int | None, requests: str | None = None) -> None:
        """`requests` None: as recorded, or all that create something; for errors of operations all that create a node."""
        response = recorded.answer(name)
        usual = "CREATE node" if "operation" in response else "CREATE queued" if "failed_data" in response else "CREATE"
        if count is not None and (isinstance(count, bool) or count < 1):
            raise EmulatorError(f"count is a whole number, 1 or more, or none for no end; found {count!r}")
        self._orders.append(Order(name, response.get("requests", usual) if requests is None else requests, zone, count))

    def take_back(self, name: str | None = None, zone: str | None = None) -> None:
        """Remove orders by name and zone; None: any."""
        self._orders = [
            order for order in self._orders if (name and order.name != name) or (zone and order.zone not in (zone, None))
        ]

    def is_out_of_stock(self, zone: str) -> bool:
        return any(order.name == STOCK_OUT and order.zone in (zone, None) for order in self._orders)

    def ordered(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(order) for order in self._orders]

    def take(self, form: Literal["http", "operation", "failed_data"], request: str, zone: str | None) -> str | None:
        """Use up an order for a request such as "GET node", in this form; returns the answer's name, or None."""
        for order in self._orders:
            fits = request.startswith(order.requests) and (order.zone is None or order.zone == zone)
            if fits and form in recorded.answer(order.name):
                if order.remaining is not None:
                    order.remaining -= 1
                    if order.remaining == 0:
                        self._orders.remove(order)
                return order.name
        return None

    def failure(self, form: Literal["operation", "failed_data"], request: str, zone: str, **values: object) -> Failure | None:
        """Use up an order for a creation's operation, or for a queued resource; returns its failure, or None."""
        name = self.take(form, request, zone)
        return None if name is None else Failure.recorded(name, zone=zone, **values)


class Event(NamedTuple):
    """`at` is in seconds since 1970 by the emulator's clock; `what` is such as "created", "ready", "preempted", "deleted"."""

    at: float
    what: str
    name: str  # projects/p/locations/z/nodes/n, or …/queuedResources/q
    reason: str


class Operations(Table[Operation]):
    """Long-running operations, begun by a call and ended by the clock."""

    def __init__(self, clock: Clock):
        self._clock = clock

    def begin(self, target: str, verb: str) -> Operation:
        """A new operation, named in the location of its target."""
        location, now, digits = target.rsplit("/", 2)[0], self._clock.now(), uuid.uuid4().hex
        parts = f"{digits[:13]}-{digits[13:21]}-{digits[21:29]}"
        operation = Operation(name=f"{location}/operations/operation-{round(now * 1000)}-{parts}")
        metadata = types.OperationMetadata(target=target, verb=verb, api_version="v2", create_time=timestamp(now))
        operation.metadata.Pack(raw(metadata))
        self[operation.name] = operation
        return operation

    def end(self, operation: Operation, result: proto.Message | Failure | None = None) -> None:
        """End it once, with a response, nothing, or the error of a failure."""
        if operation.done:
            return
        if isinstance(result, Failure):
            operation.error.code, operation.error.message = result
        else:
            response: Message = Empty() if result is None else raw(result)
            operation.response.Pack(response)
        self.note(operation, end_time=timestamp(self._clock.now()))
        operation.done = True

    def note(self, operation: Operation, **fields: Any) -> types.OperationMetadata:
        """The operation's metadata, with these fields changed."""
        metadata = types.OperationMetadata()
        operation.metadata.Unpack(raw(metadata))
        for name, value in fields.items():
            setattr(metadata, name, value)
        operation.metadata.Pack(raw(metadata))
        return metadata


class State:
    """The shared state; callers hold the clock's lock. `holders` return what a project holds of its quota."""

    def __init__(self, projects: Projects, machines: Machines):
        self.clock = Clock()
        self.projects = projects
        self.machines = machines
        self.behaviour = Behaviour()
        self.orders = Orders()
        self.events: list[Event] = []
        self.operations = Operations(self.clock)
        self.holders: list[Callable[[str], list[Demand]]] = []

    def record(self, what: str, name: str, reason: str = "") -> None:
        self.events.append(Event(self.clock.now(), what, name, reason))

    def check_quota(self, project: str, demands: list[Demand]) -> None:
        """Raises ApiError (429). Preempted nodes and suspended queued resources count."""
        held = [demand for holder in self.holders for demand in holder(project)]
        for demand in demands:
            self.projects.known(project).quotas.check(demand, held)
            held.append(demand)
