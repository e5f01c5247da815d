"""How the emulated service behaves from now on: how long things take, what is out of stock, what will fail."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from tpulm.errors import ConfigError, suggest


@dataclass(frozen=True)
class Behaviour:
    """All in seconds of the emulator's clock."""

    create_seconds: float = 0.3  # a node is CREATING
    boot_seconds: float | None = None  # after which its machines run; None: when it is READY
    delete_seconds: float = 0.2  # a node or queued resource is DELETING
    stop_seconds: float = 0.1  # a node is STOPPING or STARTING
    queue_seconds: float = 0.0  # a queued resource is WAITING_FOR_RESOURCES

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            if not number and not (name == "boot_seconds" and value is None):
                raise ConfigError(f"{name} is a number of seconds, 0 or more; found {value!r}")

    def changed(self, **settings: float | None) -> Behaviour:
        known = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            if name not in known:
                raise ConfigError(f"there is no setting '{name}'.{suggest(name, known)} Known: {', '.join(known)}")
        return dataclasses.replace(self, **settings)


class Failure(NamedTuple):
    """`code` is google.rpc.Code's number."""

    code: int
    message: str


class Plans:
    """What is going to fail, in order."""

    def __init__(self) -> None:
        self._stockouts: dict[str, int | None] = {}
        self._failures: list[Failure] = []

    def stock_out(self, zone: str, count: int | None) -> None:
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"count is a whole number, 1 or more, or none for no end; found {count!r}")
        self._stockouts[zone] = count

    def restock(self, zone: str | None) -> None:
        """`zone` None: everywhere."""
        self._stockouts = {} if zone is None else {name: left for name, left in self._stockouts.items() if name != zone}

    def is_out_of_stock(self, zone: str) -> bool:
        return zone in self._stockouts

    def stockouts(self) -> dict[str, int | None]:
        return dict(self._stockouts)

    def fail_next(self, failure: Failure) -> None:
        self._failures.append(failure)

    def failure_of_create(self, zone: str) -> Failure | None:
        """What becomes of one creation of a node; counted."""
        if self._failures:
            return self._failures.pop(0)
        if zone not in self._stockouts:
            return None
        left = self._stockouts[zone]
        if left is not None:
            self._stockouts[zone] = left - 1
            if left == 1:
                del self._stockouts[zone]
        message = (
            f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are offered '
            "(see https://cloud.google.com/tpu/docs/regions) [EID: 0x1f48947a7d57c8d]"
        )
        return Failure(8, message)
