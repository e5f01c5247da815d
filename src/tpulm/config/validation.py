"""Validate values from files and users. Errors name the origin, the key, the value and the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tpulm.config.schema import settings_class
from tpulm.errors import ConfigError, DataError, StorageError, brief, some_of, suggest

_Config = TypeVar("_Config", bound=BaseModel)
_MOST_LISTED = 10
_PLAIN = {  # in place of pydantic's messages, which use Python's words
    "model_type": "Input should be a group of settings",
    "dict_type": "Input should be a table of names and values",
    "tuple_type": "Input should be a list",
}


_KNOWN = " Known: "


def validated(kind: type[_Config], values: Mapping[str, Any], origin: str) -> _Config:
    """Validate `values`. Raises ConfigError with one line per mistake."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [_explain(item, kind) for item in error.errors(include_url=False)]
        shown = {""}
        for number, line in enumerate(lines):  # list the known settings of a table once
            mistake, _, known = line.partition(_KNOWN)
            lines[number] = mistake if known in shown else line
            shown.add(known)
        raise ConfigError(f"{origin}:\n{listed(lines)}") from error


def listed(lines: Sequence[object]) -> str:
    """The lines of a message, indented, and truncated if there are many."""
    more = [f"and {len(lines) - _MOST_LISTED} more"] if len(lines) > _MOST_LISTED else []
    return "\n".join(f"  {line}" for line in [*lines[:_MOST_LISTED], *more])


def validate_foreign(kind: type[_Config], values: Mapping[str, Any], origin: str) -> _Config:
    """Validate a file that came with somebody's model. Raises DataError, in one line."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = list(dict.fromkeys(_explain(item, kind) for item in error.errors(include_url=False)))
        raise DataError(some_of(lines), location=origin) from error


def validate_own(kind: type[_Config], values: Mapping[str, Any], path: PurePath) -> _Config:
    """Validate a file that tpulm wrote, in the format version that `kind` has, if any. Raises StorageError."""
    version = kind.model_fields.get("format_version")
    if version is not None and (found := values.get("format_version")) != version.default:
        raise StorageError(
            f"{path} has format version {found}, this tpulm reads {version.default}; begin in a new work folder, or continue "
            "with the tpulm version that began this one"
        )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = _explain(error.errors(include_url=False)[0], kind)
        raise StorageError(f"{path} is damaged or was edited ({wrong}); delete its folder and run again") from error


def _explain(item: Any, kind: type[BaseModel]) -> str:
    location = [str(part) for part in item["loc"]]
    name = ".".join(location)
    if item["type"] == "extra_forbidden":
        *path, last = location
        names, above = list(_names(kind)), "".join(f"{part}." for part in path if not part.isdigit())
        known = [one.removeprefix(above) for one in names if one.rpartition(".")[0] == above.rstrip(".")]
        hint = suggest(last, known, within="".join(f"{part}." for part in path))
        if not hint and (elsewhere := [one for one in names if one.endswith(f".{last}")]):
            hint = f" Did you mean '{elsewhere[0]}'?"
        hint = hint or (f"{_KNOWN}{', '.join(known)}." if known else "")
        return f"unknown setting '{name}'.{hint}"
    message: str = _PLAIN.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    if not location:
        return message
    shown = "" if isinstance(item["input"], (dict, BaseModel)) else f" (given: {brief(item['input'])})"
    return f"{name}: {message}{shown}"


def _names(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for name, field in kind.model_fields.items():
        yield f"{prefix}{name}"
        if (group := settings_class(field.annotation)) is not None:
            yield from _names(group, f"{prefix}{name}.")
