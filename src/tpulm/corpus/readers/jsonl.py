"""JSON Lines, or one JSON array of objects: the `text_field` of each object is a document."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from tpulm.corpus.documents import (
    CORPUS,
    MAX_DOCUMENT_BYTES,
    UNDECODABLE,
    Batcher,
    DocumentBatch,
    Faults,
    Reason,
    Wording,
)
from tpulm.corpus.readers.lines import ByteStream, Input, Lines, decoded, lines_of
from tpulm.errors import shorten, suggest
from tpulm.storage import parse_json

_MOST_VALUES: Final = 500_000  # per record: each takes up to 100 bytes of memory, and as few as three of the file
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_ARRAY: Final = re.compile(r"\s*\[\s*(?:\{|\]\s*\Z)")
_OBJECT_AROUND: Final = re.compile(r'\s*\{\s*"([^"\\\n]+)"\s*:\s*\[\s*\{')  # an array, under this key
_BEFORE_AN_ITEM: Final = re.compile(r"\s*[\[,]\s*(?=[^\s\]])")


def read_jsonl(opened: Input) -> Iterator[DocumentBatch]:
    """Read a file. `text_field` "a.b" means "b" of the object under "a", unless the record has a key "a.b"."""
    faults, text_field = opened.faults, opened.source.text_field
    keys = [f'"{name}"' for name in {text_field, *text_field.split(".")}]
    batcher = Batcher(faults, lambda number: f"{lines.unit} {number}")
    for lines in read_values(opened.stream, opened.file.encoding, faults):
        for number, line, record in parse_lines(lines, faults, once=False):
            text = record.get(text_field) if type(record) is dict else None
            try:
                if type(text) is not str:
                    text = _find_text(record, text_field, faults.wording)
                for key in keys:  # the last one is what is read, so that no other is behind the text
                    if line.count(key, 0, len(line) - len(text)) > 1:
                        parse_json(line, strict=False, once=True)
                batcher.add(text, number)
            except UnusableRecord as fault:
                faults.add(fault.reason, fault.message, f"{lines.unit} {number}")
            except ValueError as error:
                faults.add("not_json", _not_json(line, error), f"{lines.unit} {number}")
        yield from batcher.full()
    yield from batcher.flush()


def read_values(stream: ByteStream, encoding: str, faults: Faults) -> Iterator[Lines]:
    """The lines of a file or, if it is one JSON array of objects, its items."""
    texts = decoded(stream, encoding, faults)
    texts = chain([first := next(texts, "")], texts)
    return _array_items(texts, stream, faults) if _ARRAY.match(first) else lines_of(texts, stream, faults)


def _array_items(texts: Iterator[str], stream: ByteStream, faults: Faults) -> Iterator[Lines]:
    """The items of a JSON array, each on a line of its own, however the array is written. What follows a fault is left out."""
    find, rest, number, line = json.JSONDecoder(strict=False).raw_decode, "", 0, 1
    for text in texts:
        rest, place, items = rest + text, 0, list[str]()
        while before := _BEFORE_AN_ITEM.match(rest, place):
            try:
                _, end = find(rest, before.end())
            except (ValueError, RecursionError):  # the item ends in the next text, or is broken
                break
            items.append(re.sub(r"[\r\n]+", " ", rest[before.end() : end]))
            place = end
        rest, line = rest[place:], line + rest.count("\n", 0, place)
        if items:
            yield Lines("\n".join(items), number, any(UNDECODABLE in item or "\0" in item for item in items), "item")
            number += len(items)
        if len(rest) > MAX_DOCUMENT_BYTES:
            break
    if "".join(rest.split()) not in ("]", "[]") and not stream.torn:
        begun = rest.lstrip(", \t\r\n")
        line += rest.count("\n", 0, len(rest) - len(begun))
        message = f"the JSON array is broken from {shorten(begun) if begun else 'here'} on, where an item or ']' should be."
        faults.add("broken_file", message, f"item {number}, line {line}")


def parse_lines(lines: Lines, faults: Faults, *, once: bool = True) -> Iterator[tuple[int, str, Any]]:
    """The number, the text and the value of each non-blank line. With `once` a key that an object has twice is a fault."""
    for number, line in enumerate(lines.split(), lines.first):
        if not line or line.isspace():
            faults.skipped["empty"] += 1
            continue
        if len(line) > _MOST_VALUES and _values(line) > _MOST_VALUES and _values(_STRING.sub("", line)) > _MOST_VALUES:
            faults.add("too_large", f"a record of more than {_MOST_VALUES:,} values.", f"{lines.unit} {number}")
            continue
        try:
            value = parse_json(line, strict=False, once=once)
        except ValueError as error:
            message = _not_json(line, error, lines.text if number == lines.first else "")
            faults.add("not_json", message, f"{lines.unit} {number}")
        else:
            yield number, line, value


def _values(line: str) -> int:
    """At least as many as the values of a JSON line."""
    return sum(map(line.count, ",[{"))


class UnusableRecord(Exception):
    """A record lacks the value that is looked for; its reader reports a fault."""

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message


def _longest_text(record: Any) -> str:
    """The field, with dots, that holds the longest text of a record, or "…"."""
    longest, pending = ("…", ""), [("", record)]
    while pending:
        prefix, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{prefix}.{name}" if prefix else name, inner) for name, inner in value.items()]
        elif isinstance(value, str):
            longest = max(longest, (prefix, value), key=lambda one: len(one[1]))
    return longest[0]


def find_value(record: Any, field: str, advice: str = "", wording: Wording = CORPUS) -> Any:
    """The value of `field` in `record`; dots descend, unless `field` is itself a key. Raises UnusableRecord."""
    place, value = "the record", record
    path = [field] if isinstance(record, dict) and field in record else field.split(".")
    for name in path:
        if not isinstance(value, dict):
            raise UnusableRecord("no_field", f"{place} is {show(value)}, not an object with the key '{name}'.")
        if name not in value:
            keys = shorten(", ".join(value), 200, quoted=False) if value else "none"
            named = wording.text_field.format(_longest_text(record))
            advice = advice or _around_rows(record) or f"{named[:1].upper()}{named[1:]}."
            raise UnusableRecord("no_field", f"{place} has no '{name}'.{suggest(name, value)} Its keys: {keys}. {advice}")
        place, value = f"'{name}'", value[name]
    return value


def _find_text(record: Any, text_field: str, wording: Wording) -> str:
    value = find_value(record, text_field, wording=wording)
    if not isinstance(value, str):
        raise UnusableRecord("not_text", f"'{text_field}' is {show(value)}, not a string; {wording.text_field.format('…')}.")
    return value


def show(value: Any) -> str:
    """A value of the user's data, shortened for a message."""
    return shorten(json.dumps(value, ensure_ascii=False, default=str), quoted=False)


def _around_rows(record: dict[str, Any]) -> str:
    """What to do with a record that has a list of objects, which may be the rows; "" without one."""
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return f"If '{key}' has the rows: {_without_object(key)}"
    return ""


def _without_object(key: str) -> str:
    path = f".{key}[]" if key.isascii() and key.isidentifier() else f".[{json.dumps(key, ensure_ascii=False)}][]"
    return f"Rows go without an object around them: jq -c {shlex.quote(path)} in.json > out.jsonl."


def _not_json(line: str, error: Exception, text: str = "") -> str:
    if line.rstrip().endswith(("{", "[")) and (around := _OBJECT_AROUND.match(text)):
        return f"an object on several lines. {_without_object(around[1])}"
    if line.strip() == "{":
        return "an object on several lines; write one object a line (jq -c . does it)."
    return f"{shorten(line)} is not JSON ({error})."
