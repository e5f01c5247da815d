"""How the emulated service behaves from now on: how long things take, what is out of stock, what will fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cloud_emulator import recorded
from cloud_emulator.errors import EmulatorError, suggest
from cloud_emulator.rpc import RpcError, recorded_refusal

STOCK_OUT = "stock-out"


@dataclass(frozen=True)
class Behaviour:
    """Times in seconds of the emulator's clock."""

    create_seconds: float = 0.3  # a node is CREATING, and the queued resource that it belongs to PROVISIONING
    boot_seconds: float | None = None  # after which its machines run; None: when it is READY
    delete_seconds: float = 0.2  # a node or queued resource is DELETING, a queued resource SUSPENDING
    stop_seconds: float = 0.1  # a node is STOPPING or STARTING
    queue_seconds: float = 0.0  # a queued resource is WAITING_FOR_RESOURCES
    addresses: int | None = None  # external ones that a project may use in a region, one a host; None: any number
    tenant_project: bool = True  # what `project/project-id` says on a VM, and not the user's project
    force_in_provisioning: bool = False  # `force` deletes a queued resource in PROVISIONING, which nobody knows of Google

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            if name in ("tenant_project", "force_in_provisioning"):
                if not isinstance(value, bool):
                    raise EmulatorError(f"{name} is true or false; found {value!r}")
            elif not number and not (name in ("boot_seconds", "addresses") and value is None):
                raise EmulatorError(f"{name} is a number, 0 or more; found {value!r}")

    def changed(self, **settings: bool | float | None) -> Behaviour:
        known = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in known:
                raise EmulatorError(f"there is no setting '{name}'.{suggest(name, known)} Known: {', '.join(known)}")
        return dataclasses.replace(self, **settings)


class Failure(NamedTuple):
    """`code` is google.rpc.Code's number."""

    code: int
    message: str

    @classmethod
    def recorded(cls, name: str, **values: object) -> Failure:
        """The error of an operation, or of a queued resource that failed, in Google's words."""
        found = recorded.answer(name, **values)
        error = (found.get("operation") or found["failed_data"])["error"]
        return cls(error["code"], error["message"])


@dataclass
class Order:
    """A recorded answer that is going to be given: to requests whose kind begins with `requests`, in `zone` or anywhere."""

    name: str
    requests: str
    zone: str | None
    left: int | None  # None: until it is taken back

    def __post_init__(self) -> None:
        if self.left is not None and (isinstance(self.left, bool) or not isinstance(self.left, int) or self.left < 1):
            raise EmulatorError(f"count is a whole number, 1 or more, or none for no end; found {self.left!r}")


class Orders:
    """Which recorded answers are going to be given, the first that fits first."""

    def __init__(self) -> None:
        self._orders: list[Order] = []

    def add(self, name: str, zone: str | None, count: int | None, requests: str | None = None) -> None:
        """`requests` None: as recorded, or all that create something; for errors of operations all that create a node."""
        found = recorded.answer(name)
        usual = "CREATE node" if "operation" in found else "CREATE queued" if "failed_data" in found else "CREATE"
        self._orders.append(Order(name, found.get("requests", usual) if requests is None else requests, zone, count))

    def take_back(self, name: str | None = None, zone: str | None = None) -> None:
        """None: any."""
        self._orders = [
            order for order in self._orders if (name and order.name != name) or (zone and order.zone not in (zone, None))
        ]

    def is_out_of_stock(self, zone: str) -> bool:
        return any(order.name == STOCK_OUT and order.zone in (zone, None) for order in self._orders)

    def ordered(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(order) for order in self._orders]

    def http(self, request: str, zone: str | None, values: Mapping[str, object]) -> RpcError | None:
        """The refusal of a request of that kind, such as "GET node"; counted."""
        name = self._take("http", request, zone)
        return None if name is None else recorded_refusal(name, **values)

    def failure(self, form: Literal["operation", "failed_data"], request: str, zone: str, **values: object) -> Failure | None:
        """What becomes of a creation in its operation, or of a queued resource later on; counted."""
        name = self._take(form, request, zone)
        return None if name is None else Failure.recorded(name, zone=zone, **values)

    def _take(self, form: str, request: str, zone: str | None) -> str | None:
        for order in self._orders:
            fits = request.startswith(order.requests) and (order.zone is None or order.zone == zone)
            if fits and form in recorded.answer(order.name):
                if order.left is not None:
                    order.left -= 1
                    if order.left == 0:
                        self._orders.remove(order)
                return order.name
        return None
