"""JSON and TOML that anybody may have written: whatever is wrong with it is a ValueError, and no value is deeply nested."""

from __future__ import annotations

import json
import math
import re
import tomllib
from typing import Any, Final

_DEEPEST: Final = 100  # brackets within brackets; what walks through the values is recursive
_TOO_DEEP: Final = f"brackets are nested more than {_DEEPEST} deep"
_LONG_KEY: Final = re.compile(rf"""(?m)(?:^|[{{,\[])[ \t]*(?:[\w"'-]+[ \t]*\.[ \t]*){{{_DEEPEST}}}""")  # each part takes longer
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: bytes | str, *, strict: bool = True) -> Any:
    """The value. With `strict` all its numbers are finite and all its strings have UTF-8, so that it can be written again."""
    try:
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        value = json.loads(decoded) if not strict else json.loads(decoded, parse_constant=_not_finite, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start:,}") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if decoded.count("[") + decoded.count("{") > _DEEPEST:
        _check_depth(value)
    if strict and _SURROGATE.search(decoded) and (half := re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))):
        raise ValueError(f"half of a surrogate pair (\\u{ord(half[0]):04x}), which has no UTF-8")
    return value


def parse_toml(text: str) -> dict[str, Any]:
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_DEEPEST} parts")
    try:
        value = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        values = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        level = [item for item in values if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _not_finite(text)


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
