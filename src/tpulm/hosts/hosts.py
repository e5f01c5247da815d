"""This host among the hosts of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tpulm.errors import PeerLost, Stopped

Item = TypeVar("Item")


class Channel(Protocol):
    """What connects the hosts; see `tpulm.hosts.channel`."""

    def barrier(self, name: str) -> None: ...

    def lost(self, wait_seconds: float) -> PeerLost | Stopped | None: ...


@dataclass(frozen=True)
class Hosts:
    """`index` of `count`. What only one may do is the first one's; every list of tasks is shared out by number."""

    index: int = 0
    count: int = 1
    coordinator: str = ""  # address:port, where there are several
    channel: Channel | None = None
    record: Callable[[PeerLost | Stopped], None] = lambda error: None  # leaves word of a loss, where this process cannot go on

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def are_several(self) -> bool:
        return self.count > 1

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This host's share of a list that all hosts have in the same order."""
        return items[self.index :: self.count]

    def barrier(self, name: str) -> None:
        """Wait until all hosts have come here. Raises PeerLost when one is gone, Stopped when a stop was requested.

        The rule for files that hosts share: look, barrier, write. Nobody then looks at what another one is writing.
        """
        if self.channel is not None:
            self.channel.barrier(name)

    def lost(self, *, wait_seconds: float = 0.0) -> PeerLost | Stopped | None:
        """The error that says who is gone, if one is; what fails here just then fails because of it."""
        return None if self.channel is None else self.channel.lost(wait_seconds)


ALONE = Hosts()
