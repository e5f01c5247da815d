"""Seeded damage to small files: of bytes, of text, and of the values in JSON and TOML."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from random import Random
from typing import Any, Literal

Kind = Literal["binary", "text", "json", "toml"]

DEEP = 5_000
NUMBERS = ["0", "-1", "1", "2147483648", "18446744073709551616", "1e308", "1e999", "NaN", "Infinity", "-Infinity", "0.5", "1_0"]
TOML_NUMBERS = ["0", "-1", "2147483648", "18446744073709551616", "1e308", "nan", "inf", "-inf", "0.5"]
BINARY_NUMBERS = [
    *(number.to_bytes(4, "little") for number in (0, 2**32 - 1, 2**31, 2**31 - 1)),
    *(number.to_bytes(8, "little") for number in (0, 2**64 - 1, 2**63, 2**31 - 1)),
    *(struct.pack("<f", number) for number in (float("nan"), float("inf"), 3e38)),
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # the longest varint
]
VALUES: list[Any] = [
    *(None, False, True, 0, -1, 1, 3, 2**31, 2**64, 0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "[PAD]", "\0", "../x", "~x"),
    *("\ud800", "\x1b[2J", "가" * 300, [], {}, [0], [None], ["a", "b"], {"a": 0}, [[]], {"": {}}, "none", "[" * 40),
]
TEXTS = [
    *("\0", "\r", "\n", "\r\n", "\t", ",", '"', '"""', "'", "{", "}", "[", "]", ":", "=", "#", "\\", "\\u0000", "\\ud800"),
    *("null", "\ufeff", "\u2028", "\x1b[2J", "<", ">", "&", "&x;", "]]>", "{{", "[[", "가", "e\u0301", "🙂"),
    *("a" * 3_000, "[" * DEEP, "{" * 200),
]
BYTES = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xfe\xff", b"\x00", b"\x80", b"\x1f\x8b", b"PAR1", b"BZh9"]


def mutate(random: Random, data: bytes, other: bytes, kind: Kind) -> tuple[list[str], bytes]:
    """One to three changes, and what they were; `other` is a file to take slices from."""
    done: list[str] = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change = random.choice(_OF_KIND[kind])
        data = change(random, data, other)
        done.append(change.__name__.removeprefix("_"))
    return done, data


# -- bytes -------------------------------------------------------------------------------------------------------------------


def _place(random: Random, data: bytes) -> int:
    """The beginning and the end of a file, where most is said, are as likely as all the rest."""
    edge = min(len(data), 64)
    return random.choice([random.randint(0, len(data)), random.randint(0, edge), len(data) - random.randint(0, edge)])


def _stretch(random: Random, data: bytes) -> tuple[int, int]:
    start = _place(random, data)
    return start, min(len(data), start + random.choice([1, 2, 4, 8, random.randint(1, 200)]))


def _flip_bit(random: Random, data: bytes, other: bytes) -> bytes:
    place = min(_place(random, data), len(data) - 1)
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :] if data else b"\x01"


def _set_bytes(random: Random, data: bytes, other: bytes) -> bytes:
    start, end = _stretch(random, data)
    return data[:start] + random.randbytes(end - start) + data[end:]


def _insert_bytes(random: Random, data: bytes, other: bytes) -> bytes:
    place = _place(random, data)
    return data[:place] + random.choice([*BYTES, random.randbytes(random.randint(1, 20))]) + data[place:]


def _delete(random: Random, data: bytes, other: bytes) -> bytes:
    start, end = _stretch(random, data)
    return data[:start] + data[end:]


def _duplicate(random: Random, data: bytes, other: bytes) -> bytes:
    start, end = _stretch(random, data)
    return data[:end] + data[start:end] * random.choice([1, 1, 50]) + data[end:]


def _truncate(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: _place(random, data)]


def _take_slice(random: Random, data: bytes, other: bytes) -> bytes:
    start, end = _stretch(random, data)
    first, last = _stretch(random, other)
    return data[:start] + other[first:last] + data[end:]


def _extreme_bytes(random: Random, data: bytes, other: bytes) -> bytes:
    number = random.choice(BINARY_NUMBERS)
    place = _place(random, data)
    return data[:place] + number + data[place + len(number) :]


# -- text --------------------------------------------------------------------------------------------------------------------


def _insert_text(random: Random, data: bytes, other: bytes) -> bytes:
    place = _place(random, data)
    return data[:place] + random.choice(TEXTS).encode() + data[place:]


def _replace_one(random: Random, data: bytes, pattern: bytes, choices: list[str]) -> bytes:
    """One of the places that the pattern finds becomes one of `choices`."""
    found = list(re.finditer(pattern, data))
    if not found:
        return _insert_text(random, data, b"")
    chosen = random.choice(found)
    return data[: chosen.start()] + random.choice(choices).encode() + data[chosen.end() :]


def _extreme_number(random: Random, data: bytes, other: bytes) -> bytes:
    return _replace_one(random, data, rb"-?\d+(\.\d+)?", NUMBERS)


def _exchange_lines(random: Random, data: bytes, other: bytes) -> bytes:
    lines = data.split(b"\n")
    first, second = random.randrange(len(lines)), random.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


def _repeat_line(random: Random, data: bytes, other: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(random.randrange(len(lines)), random.choice(lines))
    return b"\n".join(lines)


# -- JSON --------------------------------------------------------------------------------------------------------------------


def _containers(value: Any) -> list[Any]:
    found = [value] if isinstance(value, (dict, list)) else []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += _containers(item)
    return found


def _json_value(random: Random, data: bytes, other: bytes) -> bytes:
    """One value becomes another, or goes, or a key another: in an object, a list, or each line of jsonl."""
    lines = data.split(b"\n") if b"\n{" in data else [data]
    line = random.randrange(len(lines))
    try:
        value = json.loads(lines[line])
    except (ValueError, RecursionError):
        return _insert_text(random, data, other)
    groups = [group for group in _containers(value) if group]
    if not groups:
        value = random.choice(VALUES)
    else:
        # Those near the top are few and say most; a list of a thousand tokens is one group like any other.
        group = random.choice(groups[: random.choice([3, 20, len(groups)])])
        key = random.choice(list(group) if isinstance(group, dict) else range(len(group)))
        match random.randrange(6):
            case 0:
                del group[key]
            case 1 if isinstance(group, dict):
                group[random.choice(["", "a", "\0", "-1", "99", "\ud800", *group])] = group.pop(key)
            case 2:
                group[key] = random.choice(_containers(value))  # perhaps itself: then it cannot be written
            case 3 if isinstance(group[key], int):
                group[key] = random.choice([group[key] + 1, -group[key], bool(group[key]), float(group[key]), str(group[key])])
            case _:
                group[key] = random.choice(VALUES)
    try:
        lines[line] = json.dumps(value, ensure_ascii=random.random() < 0.7).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return _insert_text(random, data, other)
    return b"\n".join(lines)


def _deep_json(random: Random, data: bytes, other: bytes) -> bytes:
    depth = random.choice([90, 300, 950, DEEP])
    opening, closing = random.choice([(b"[", b"]"), (b'{"a":', b"}")])
    nested = opening * depth + b"0" + closing * depth
    found = list(re.finditer(rb": ?[^,{}\[\]\n]+", data))
    if not found:
        return nested
    chosen = random.choice(found)
    return data[: chosen.start()] + b":" + nested + data[chosen.end() :]


# -- TOML --------------------------------------------------------------------------------------------------------------------


TOML_KEY = rb"(?m)^[\w.\[\]]+"
TOML_KEYS = ["a", '""', "[a]", "[[corpus]]", '"a.b"', ".".join("a" * 3_000), '"\\u0000"']
TOML_VALUES = [
    *("true", "false", '""', '"a"', '"\\u0000"', '"a\\u0000b"', '"none"', '"~nobody/x"', "[]", "{}", "[0]", '["", 1]'),
    *("{a = 1}", "1979-05-27", "07:32:00", '"/nowhere"', '"gs:/x"', '"x://y"', '"\\u001b[2J"', f'"{"a" * 300}"', '"."'),
    *(TOML_NUMBERS * 2),
    *("[" * DEEP + "]" * DEEP, "[" * 300 + "]" * 300, "{a=" * 300 + "1" + "}" * 300),
]


def _toml_value(random: Random, data: bytes, other: bytes) -> bytes:
    return _replace_one(random, data, rb"(?<== )[^\n#]+", TOML_VALUES)


def _toml_key(random: Random, data: bytes, other: bytes) -> bytes:
    return _replace_one(random, data, TOML_KEY, [*TOML_KEYS, *(key.decode() for key in re.findall(TOML_KEY, other))])


Change = Callable[[Random, bytes, bytes], bytes]
_BINARY: list[Change] = [
    *(_flip_bit, _flip_bit, _set_bytes, _insert_bytes, _delete, _duplicate, _truncate, _take_slice),
    *(_extreme_bytes, _extreme_bytes),
]
_TEXT: list[Change] = [
    *(_flip_bit, _set_bytes, _insert_bytes, _delete, _duplicate, _truncate, _take_slice, _insert_text, _insert_text),
    *(_extreme_number, _exchange_lines, _repeat_line),
]
_OF_KIND: dict[Kind, list[Change]] = {
    "binary": _BINARY,
    "text": _TEXT,
    "json": [*_TEXT, *[_json_value] * 20, _deep_json],
    "toml": [*_TEXT, *[_toml_value] * 12, *[_toml_key] * 3],
}
