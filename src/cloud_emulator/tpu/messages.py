"""JSON to google-cloud-tpu's own types and back, so that what is spoken cannot drift from what its client speaks."""

from __future__ import annotations

from typing import Any, TypeVar

import proto
from google.cloud.tpu_v2 import types
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.rpc import bad_argument

Kind = TypeVar("Kind", bound=proto.Message)

__all__ = ["answer", "page", "parsed", "raw", "timestamp", "types"]


def raw(message: proto.Message) -> Message:
    return type(message).pb(message)


def parsed(kind: type[Kind], content: dict[str, Any]) -> Kind:
    """Raises RpcError for what the type does not have."""
    message = kind()
    try:
        json_format.ParseDict(content, raw(message))
    except json_format.ParseError as error:
        raise bad_argument(f"Invalid JSON payload received. {error}") from None
    return message


def as_dict(message: Message, call: Call) -> dict[str, Any]:
    numbers = "enum-encoding=int" in (call.query.get("$alt") or "")
    return json_format.MessageToDict(message, use_integers_for_enums=numbers)


def answer(message: proto.Message | Message, call: Call) -> Answer:
    return json_answer(as_dict(raw(message) if isinstance(message, proto.Message) else message, call))


def page(key: str, found: list[Any], call: Call, usual: int = 500) -> Answer:
    """One page of a listing of messages or dictionaries; the token is where the next one begins."""
    token, size = call.query.get("pageToken", ""), call.whole_number("pageSize") or usual
    if size < 0 or not (token == "" or token.isdecimal()):
        raise bad_argument("Request contains an invalid argument: the page size or page token is invalid.")
    start = int(token or 0)
    items = [item if isinstance(item, dict) else as_dict(raw(item), call) for item in found[start : start + size]]
    more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
    return json_answer(({key: items} if items else {}) | more)


def timestamp(seconds: float) -> Timestamp:
    made = Timestamp()
    made.FromMilliseconds(round(seconds * 1000))
    return made
