"""What the user sees on the terminal: everything human goes to stderr, the one JSON object to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.markup import escape

from tpulm.progress import Progress

_LONGEST_NAME = 30  # letters in the first column of a table that stay on one line beside other texts
console = Console(stderr=True, highlight=False)


def print_error(message: str, *, title: str = "error") -> None:
    colour = "yellow" if title == "stopped" else "red"
    console.print(f"[bold {colour}]{title}:[/] {escape(message)}", soft_wrap=True)


def say(line: str, *, lead: str = "", style: str = "") -> None:
    """One line for people, never folded, so that it can be copied; `style` is that of what leads it, or of all of it."""
    text = f"[{style}]{escape(lead or line)}[/]" if style else escape(lead or line)
    console.print(text + (escape(line) if lead else ""), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON object on stdout, the last thing a command says."""
    print(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()


def print_table(title: str, rows: Mapping[str, str] | Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Two columns of names and values, or any number of columns under a header."""
    from rich.table import Table

    if title:  # as a line of its own: a table's would be folded to the table's width
        console.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    table = Table(show_header=bool(header), box=None, padding=(0, 2, 0, 0))
    lines = list(rows.items()) if isinstance(rows, Mapping) else [tuple(row) for row in rows]
    columns = range(len(lines[0]) if lines else len(header))
    numeric = [number > 0 and bool(lines) and all(_is_number(line[number]) for line in lines) for number in columns]
    short = bool(header) and max(len(line[0]) for line in lines or [("",)]) <= _LONGEST_NAME
    for number in columns:
        justify = "right" if numeric[number] and header else "left"
        named = number == 0 and short and not all(numeric[1:])  # beside numbers, which must not be folded, a name is
        table.add_column(header[number] if header else "", justify=justify, overflow="fold", no_wrap=named)
    for line in lines:
        table.add_row(*(escape(cell) for cell in line))
    console.print(table)


def _is_number(cell: str) -> bool:
    return bool(cell) and cell.strip().lstrip("-+<>$")[:1].isdigit()


def drawn_progress() -> AbstractContextManager[Progress]:
    """A `Progress` for the commands: bars on a terminal, a line now and then elsewhere."""
    from tpulm.cli.bars import drawn

    return drawn(console)
