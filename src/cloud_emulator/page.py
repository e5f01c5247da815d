"""The emulator's state as a page for people: read-only, without scripts, reloaded every five seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1000px; padding: 16px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 20px 0 4px; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
th, td { border-bottom: 1px solid #8886; padding: 3px 12px 3px 0; text-align: left; vertical-align: top; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'"


def render(storage: Mapping[str, Any], tpu: Mapping[str, Any] | None) -> str:
    """HTML of what `/_control/status` and `/_control/tpu/status` answer; `tpu` is None before TPUs are used."""
    parts = [_section("Buckets", _rows(storage["buckets"], "bucket"))]
    if tpu is not None:
        parts += [
            _section("Nodes", _rows(tpu["nodes"], "node", "state")),
            _section("Queued resources", _rows(tpu["queued_resources"], "queued resource", "state")),
            _section("How long nodes were up", _rows(tpu["node_seconds"], "node", "seconds")),
        ]
    faults = {name: value for name, value in storage["faults"].items() if value}
    parts.append(_section("Faults of Cloud Storage in force", _rows(faults, "fault", "setting")))
    injected = {f"storage: {name}": count for name, count in storage["injected"].items()}
    injected |= {f"TPU: {name}": count for name, count in (tpu["injected"] if tpu else {}).items()}
    parts.append(_section("Faults injected so far", _rows(injected, "fault", "times")))
    parts.append(_section("Requests answered", _rows(storage["requests"], "request", "times")))
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(tpu["now"] if tpu else time.time()))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/><title>Cloud emulator</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/><meta http-equiv="refresh" content="5"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/><style>{_STYLE}</style></head>'
        f"<body><h1>Cloud emulator</h1><p>Its clock: {escape(now)}</p>{''.join(parts)}</body></html>"
    )


def _section(title: str, table: str) -> str:
    return f"<h2>{escape(title)}</h2><div>{table or 'none'}</div>"


def _rows(items: Mapping[str, Any], name: str, what: str = "value") -> str:
    return _table([{name: key, **(value if isinstance(value, Mapping) else {what: value})} for key, value in items.items()])


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(_shown(row.get(column, '')))}</td>" for column in columns) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
