"""What Google answers, as data: each entry of the JSON files beside this one has its grade and its source.

Texts hold placeholders such as {zone}; `answer` fills them.
"""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import Any

from cloud_emulator.errors import EmulatorError, suggest

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")

# What stands for placeholders that nobody names.
_PLAUSIBLE = {
    "project": "tpulm-emulator",
    "number": "123456789012",
    "service": "tpu.googleapis.com",
    "title": "Cloud TPU API",
    "zone": "us-central1-a",
    "region": "us-central1",
    "place": "zone us-central1-a",
    "node": "run-a1",
    "resource": "nodes/run-a1",
    "type": "v5litepod-8",
    "quota": "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI",
    "limit": "4",
    "permission": "tpu.nodes.create",
    "state": "PROVISIONING",
}


def answer(name: str, file: str = "tpu", /, **values: object) -> dict[str, Any]:
    """The entry of that name in FILE.json, its placeholders filled with `values`. Raises EmulatorError for an unknown name."""
    known = _file(file)["answers"]
    if name not in known:
        raise EmulatorError(
            f"no answer is recorded as '{name}' in {file}.json.{suggest(name, known)} Known: {', '.join(known)}"
        )
    return filled(known[name], **values)


def names(file: str = "tpu") -> list[str]:
    return list(_file(file)["answers"])


def metadata() -> dict[str, Any]:
    """metadata.json with its placeholders: `keys` and `failures` of the metadata server of a TPU VM."""
    return _file("metadata")


def filled(content: Any, **values: object) -> Any:
    """A copy with the placeholders of all its texts filled."""
    if isinstance(content, dict):
        return {key: filled(value, **values) for key, value in content.items()}
    if isinstance(content, list):
        return [filled(value, **values) for value in content]
    if isinstance(content, str):
        return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], _PLAUSIBLE.get(found[1], found[0]))), content)
    return content


@functools.cache
def _file(name: str) -> dict[str, Any]:
    return json.loads((resources.files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
