"""What may be due for a run in the cloud; `decide` says which of these is."""

from __future__ import annotations

from dataclasses import dataclass

from tpulm.cloud.job import Ending, Status


@dataclass(frozen=True)
class Wait:
    """Nothing to do yet."""

    why: str


@dataclass(frozen=True)
class Intend:
    """Record a new attempt."""


@dataclass(frozen=True)
class Create:
    """Ask the cloud for the recorded node; asking again for one that is there does nothing."""


@dataclass(frozen=True)
class Adopt:
    """The node is there although nobody recorded that it was asked for: an earlier supervisor did."""


@dataclass(frozen=True)
class Note:
    """Record the state that the node is seen in."""

    state: str


@dataclass(frozen=True)
class AskToStop:
    """Have the trainer save and stop."""

    because: Ending


@dataclass(frozen=True)
class Condemn:
    """Record that the node is to be deleted, and why."""

    why: Ending
    detail: str
    step: int | None = None  # at which it hung


@dataclass(frozen=True)
class Promote:
    """A spare node becomes the one that counts."""

    node: str


@dataclass(frozen=True)
class Beside:
    """The same for a spare node."""

    node: str
    action: Intend | Create | Adopt | Note | Condemn | Bury


@dataclass(frozen=True)
class Delete:
    """Ask the cloud to delete all nodes that are given up; asking again does nothing."""


@dataclass(frozen=True)
class GiveUp:
    """Something cannot be deleted: leave it recorded, and say so."""


@dataclass(frozen=True)
class Bury:
    """The node is gone: record the end of its attempt."""

    pause: float  # before the next one


@dataclass(frozen=True)
class Close:
    """The run is over, and nothing of it is left."""

    status: Status
    message: str


@dataclass(frozen=True)
class Rest:
    """It was over already."""


Action = Wait | Intend | Create | Adopt | Note | AskToStop | Condemn | Promote | Beside | Delete | GiveUp | Bury | Close | Rest
