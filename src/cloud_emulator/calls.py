"""One request, read and taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from cloud_emulator.answers import invalid


@dataclass(frozen=True)
class Call:
    """`segments` are the parts of the path, split at its slashes before %2F is decoded; header names are in lower case."""

    method: str
    segments: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    base_url: str  # of the addresses in the answer
    body: bytes = b""
    complete: bool = True  # False: the client went away before the end of the body
    query: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", dict(reversed(self.arguments)))

    def all_of(self, name: str) -> list[str]:
        """Every value of a repeated argument."""
        return [value for key, value in self.arguments if key == name]

    def whole_number(self, name: str) -> int | None:
        value = self.query.get(name)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise invalid(f"Invalid value for {name}: '{value}' is not a whole number.") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def json(self) -> dict[str, Any]:
        return json_object(self.body)


def json_object(body: bytes) -> dict[str, Any]:
    """A JSON object; nothing at all stands for an empty one."""
    try:
        content = json.loads(body) if body.strip() else {}
    except ValueError:
        raise invalid("Parse Error") from None
    if not isinstance(content, dict):
        raise invalid("Parse Error: the body must be a JSON object.")
    return content


def split_target(path: str, query: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Segments and arguments of a request's target, both percent-decoded."""
    try:
        segments = tuple(unquote(part, errors="strict") for part in path.lstrip("/").split("/"))
        return segments, tuple(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise invalid("The name must be valid UTF-8.") from None
