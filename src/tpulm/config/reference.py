"""Every setting with its type, default and meaning, from the source code: for `tpulm settings` and docs/settings.md."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tpulm.config.schema import MOST, MOST_TEXT, Names, settings_class

_WORDS: Final = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "none"}
_BOUNDS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Setting(NamedTuple):
    name: str
    type: str
    default: str  # as written in a run file
    meaning: str  # "" if the name says it all

    @property
    def default_words(self) -> str:
        return f"default {self.default}" if self.default != "required" else "required"


class Group(NamedTuple):
    """The settings of one table of a file; `many` if the file may have several such tables."""

    name: str
    many: bool
    meaning: str
    settings: tuple[Setting, ...]


def groups_of(model: type[BaseModel], name: str = "", *, many: bool = False) -> Iterator[Group]:
    """The model's own settings, then those of each nested model."""
    meanings, hints = _meanings(model), get_type_hints(model, include_extras=True)
    settings, below = list[Setting](), list[Group]()
    for field, info in model.model_fields.items():
        group, repeated = settings_class(hints[field]), get_origin(hints[field]) is tuple
        if group is not None:
            below += groups_of(group, f"{name}.{field}".lstrip("."), many=repeated)
        if group is None or repeated:
            settings.append(Setting(field, type_words(hints[field]), _default(info), meanings.get(field, "")))
    text = inspect.cleandoc(vars(model).get("__doc__") or "")
    yield Group(name, many, text, tuple(settings))
    yield from below


def option_type(model: type[BaseModel], field: str) -> Any:
    """The type of a command's option for a field: without None and bounds, and a list for a tuple."""
    kind = get_type_hints(model)[field]
    kind = next(one for one in (get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)) if one is not NoneType)
    return list[get_args(kind)[0]] if get_origin(kind) is tuple else kind


def type_words(kind: Any) -> str:
    """A type in words: `int | None` -> "whole number or none"; bounds as ≥, >, ≤, <."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if names := [item for item in arguments if isinstance(item, Names)]:
            return _or([json.dumps(name) for name in names[0]])
        return type_words(arguments[0]) + _bounds(arguments[1:])
    if origin is Literal:
        return _or([json.dumps(choice) for choice in arguments])
    if origin is tuple and settings_class(kind):
        return "list of tables"
    if origin is tuple:
        return f"list of {type_words(arguments[0])}"
    if origin is dict:
        return f"table of {type_words(arguments[1])}"
    return _or([type_words(argument) for argument in arguments]) if arguments else _WORDS[kind]


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _bounds(metadata: tuple[Any, ...]) -> str:
    rules = [rule for item in metadata for rule in (item.metadata if isinstance(item, FieldInfo) else [item])]
    bounds = [(sign, getattr(rule, name)) for rule in rules for name, sign in _BOUNDS.items() if hasattr(rule, name)]
    signs = [f"{sign} {bound:,}" for sign, bound in bounds if bound not in (MOST, MOST_TEXT)]
    return f" {', '.join(signs)}" if signs else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The comment of each field: the lines above it and the end of its own line, joined by spaces."""
    found, above = dict[str, str](), list[str]()
    for line in inspect.getsource(model).splitlines():
        if comment := re.match(r"    # (.+)$", line):
            above.append(comment.group(1))
        elif field := re.match(r"    (\w+): .*?(?:  # (.+))?$", line):
            found[field.group(1)] = " ".join(filter(None, [*above, field.group(2)]))
            above = []
        else:
            above = []
    return found
