"""The emulator's state as a page for people: read-only, without scripts, reloaded every five seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment


def render(storage: Mapping[str, Any], tpu: Mapping[str, Any] | None) -> str:
    """HTML of what `/_control/status` and `/_control/tpu/status` answer; `tpu` is None before TPUs are used."""
    template = Environment(autoescape=True).from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    faults = {name: value for name, value in storage["faults"].items() if value}
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(tpu["now"] if tpu else time.time()))
    return template.render(storage=storage, tpu=tpu, faults=faults, now=now)
