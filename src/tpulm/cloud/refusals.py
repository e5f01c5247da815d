"""What to make of Google's refusals of TPUs: by status, reason and words, since one status stands for several things.

The words are those of `tpulm.emulator.recorded`, which names the source of each.
"""

from __future__ import annotations

import re
from typing import Literal

Refusal = Literal[
    "stock-out",
    "quota",
    "zone",  # closed to the project, or to this type: other zones may not be
    "denied",
    "invalid",
    "taken",
    "preempted",
    "cloud",  # the cloud's own failure
]

# google.rpc.Code
_INVALID_ARGUMENT, _DEADLINE_EXCEEDED, _NOT_FOUND, _PERMISSION_DENIED, _EXHAUSTED, _PRECONDITION = 3, 4, 5, 7, 8, 9

_OF_A_ZONE = re.compile(
    r"permission to submit requests"
    r"|permission denied on 'locations/"
    r"|not found or access is unauthorized"
    r"|could not be found in the zonal accelerator configurations"
    r"|was not found in zone"
    r"|requested zone .* is not supported"
    r"|is not supported for accelerator type .* in location"
    r"|reserved capacity",
    re.IGNORECASE,
)
_RATE = ("per minute", "per_minute", "perminute", "rate_limit", "rate limit")
ADDRESSES = "IN_USE_ADDRESSES"


def of_http(status: int, reason: str, message: str) -> Refusal:
    """Of an answer to a request to create something. `reason` is that of its ErrorInfo, or its status in words."""
    if status == 429:
        return _exhausted(message)
    if reason == "LOCATION_POLICY_VIOLATED" or (status in (400, 403) and _OF_A_ZONE.search(message)):
        return "zone"
    if status in (401, 403):
        return "denied"
    if status == 404:  # the zone, or the type in it
        return "zone"
    return "invalid" if status == 400 and reason != "FAILED_PRECONDITION" else "cloud"


def of_code(code: int, message: str) -> Refusal:
    """Of the error of an operation, or of a queued resource that failed."""
    if code == _EXHAUSTED or ADDRESSES in message:
        return _exhausted(message)
    if code == _INVALID_ARGUMENT and "state PREEMPTED" in message:
        return "preempted"
    if code == _DEADLINE_EXCEEDED:  # it waited until it was not valid any more
        return "stock-out"
    if code == _PERMISSION_DENIED:
        return "denied" if message.startswith("Permission '") else "zone"
    if code == _NOT_FOUND or (code in (_INVALID_ARGUMENT, _PRECONDITION) and _OF_A_ZONE.search(message)):
        return "zone"
    return "cloud"


def is_rate_limit(message: str) -> bool:
    """Of requests, which passes; other quotas are of chips or cores, and last."""
    return any(sign in message.lower() for sign in _RATE)


def advised(message: str) -> str:
    """With the fix, where Google's words do not name it."""
    if ADDRESSES not in message:
        return message
    return (
        f"{message.rstrip('.')}; every host takes an external address: set external_addresses = false (with Private Google "
        "Access in the subnetwork, and Cloud NAT for whatever else it is to reach), or ask for more of that quota"
    )


def _exhausted(message: str) -> Refusal:
    if "reserved capacity" in message.lower():
        return "zone"
    return "quota" if "quota" in message.lower() or ADDRESSES in message else "stock-out"
