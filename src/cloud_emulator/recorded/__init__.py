"""Google's answers, as data: each entry of the JSON files beside this module has its source, and a grade that says
how it is known: recorded from the service, documented, seen by users, taken from a client's code, or inferred.

Texts hold placeholders such as {zone}; `answer` fills them.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from cloud_emulator.errors import ApiError, EmulatorError, suggest

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def answer(name: str, file: str = "tpu", /, **values: object) -> dict[str, Any]:
    """The entry of that name in FILE.json, its placeholders filled with `values`, or else with the file's `examples`."""
    known = load(file)["answers"]
    if name not in known:
        hint = f"{suggest(name, known)} Known: {', '.join(known)}"
        raise EmulatorError(f"no answer is recorded as '{name}' in {file}.json.{hint}")
    return filled(known[name], **{**load(file).get("examples", {}), **values})


def names(file: str = "tpu") -> list[str]:
    return list(load(file)["answers"])


def refusal(name: str, file: str = "tpu", /, **values: object) -> ApiError:
    """A recorded error answer, to raise."""
    response = answer(name, file, **values)["http"]
    return ApiError(response["status"], response["body"]["error"])


def filled(content: Any, **values: object) -> Any:
    """A copy with the placeholders in all its strings filled."""
    if isinstance(content, dict):
        return {key: filled(value, **values) for key, value in content.items()}
    if isinstance(content, list):
        return [filled(value, **values) for value in content]
    if isinstance(content, str):
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), content)
    return content


@functools.cache
def load(file: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(f"{file}.json").read_text(encoding="utf-8"))
