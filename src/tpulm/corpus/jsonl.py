"""JSON lines: an object a line, whose `text_field` is the document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tpulm.corpus.faults import Faults, Reason, shorten
from tpulm.corpus.lines import Lines
from tpulm.corpus.records import Batch, Batcher
from tpulm.errors import suggest


def read_jsonl(stretches: Iterable[Lines], text_field: str, faults: Faults) -> Iterator[Batch]:
    """`text_field` "a.b" is the "b" of the object under "a", unless the object has a key "a.b"."""
    batcher = Batcher(faults)
    for lines in stretches:
        for number, line in enumerate(lines.split(), lines.first):
            if not line or line.isspace():
                faults.skipped["empty"] += 1
                continue
            try:
                record = json.loads(line)
                text = record.get(text_field) if type(record) is dict else None
                batcher.add(text if type(text) is str else _find_text(record, text_field), number)
            except _UnusableRecord as fault:
                faults.add(fault.reason, fault.message, f"line {number}")
            except (ValueError, RecursionError) as error:
                faults.add("not_json", _not_json(line, error), f"line {number}")
        yield from batcher.full()
    yield from batcher.flush()


class _UnusableRecord(Exception):
    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message


def _find_text(record: Any, text_field: str) -> str:
    place, value = "the record", record
    path = [text_field] if isinstance(record, dict) and text_field in record else text_field.split(".")
    for name in path:
        if not isinstance(value, dict):
            raise _UnusableRecord("no_field", f"{place} is {_show(value)}, not an object with the key '{name}'.")
        if name not in value:
            keys = shorten(", ".join(value), 200, quoted=False) if value else "none"
            raise _UnusableRecord(
                "no_field", f"{place} has no '{name}'.{suggest(name, value)} Its keys: {keys}. Set text_field."
            )
        place, value = f"'{name}'", value[name]
    if not isinstance(value, str):
        raise _UnusableRecord(
            "not_text", f"'{text_field}' is {_show(value)}, not a string; name another text_field or correct it."
        )
    return value


def _show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), quoted=False)


def _not_json(line: str, error: Exception) -> str:
    if line.lstrip().startswith("[") or line.strip() == "{":
        return f"{shorten(line)} is not a JSON object on a line of its own; write one object a line (jq -c '.[]' does it)."
    return f"{shorten(line)} is not JSON ({error})."
