"""What the user sees: results go to stdout, progress, notes and errors to stderr.

Results are `show`, `print_table` and `write`; beside `--json` they go to stderr, since stdout is for the one object then. Where
stdout is no terminal they are plain text: no line is folded, columns are aligned with two blanks or more between them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from tpulm.progress import Progress
from tpulm.readable import escaped, pasteable

_LONGEST_NAME = 30  # letters in the first column of a table that stay on one line beside other texts
UNFOLDED = 1_000_000  # columns


class Screen(Console):
    """Prints whatever it is given with control characters, which might change the terminal, as visible text."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(escaped(pasteable(text)), **settings)


console = Screen(stderr=True, highlight=False)
results = Screen(highlight=False)
_wants_json = False


def begin(*, as_json: bool) -> None:
    """Say where results go from here on: to stdout or, beside JSON, to stderr."""
    global results, _wants_json
    stream = sys.stderr if as_json else sys.stdout
    is_terminal = stream is not None and stream.isatty()
    shared = as_json and is_terminal  # with progress, whose bars a second writer would break
    results = console if shared else Screen(stderr=as_json, highlight=False, width=None if is_terminal else UNFOLDED)
    _wants_json = as_json


def wants_json() -> bool:
    """Whether the command was given --json."""
    return _wants_json


@contextmanager
def naming_stdout() -> Iterator[None]:
    """An error of the system is said to be of stdout."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "stdout"
        raise


def print_error(message: str, *, title: str = "error") -> None:
    _print_prose(f"{title}:", "bold yellow" if title == "stopped" else "bold red", message)


def say(line: str, *, lead: str = "", style: str = "") -> None:
    """A note, never folded, so that it can be copied; `style` is that of what leads it, or of all of it."""
    _print_line(console, line, lead, style)


def say_note(message: str) -> None:
    _print_prose("note:", "yellow", message)


def _print_prose(lead: str, style: str, message: str) -> None:
    """On a terminal lines end between words; a longer word, such as a path, is left to the terminal."""
    text = f"{lead} {message}"
    shown = "\n".join(_between_words(text, console.width)) if console.is_terminal else text
    console.print(f"[{style}]{lead}[/]{escape(shown.removeprefix(lead))}", soft_wrap=True)


def _between_words(text: str, width: int) -> Iterator[str]:
    for line in text.split("\n"):
        words = list[str]()
        for word in line.split(" "):
            if any(words) and cell_len(" ".join([*words, word])) > width:
                yield " ".join(words)
                words = []
            words.append(word)
        yield " ".join(words)


def show(what: RenderableType = "", *, lead: str = "", style: str = "", fold: bool = False) -> None:
    """A line of a result, likewise; or anything else that rich can print. Prose may `fold` on a terminal."""
    with naming_stdout():
        if isinstance(what, str):
            _print_line(results, what, lead, style, fold)
        else:
            results.print(what, soft_wrap=True)


def _print_line(to: Console, line: str, lead: str, style: str, fold: bool = False) -> None:
    line, lead = escape(line), escape(lead)
    text = f"[{style}]{lead or line}[/]" if style else lead or line
    to.print(text + (line if lead else ""), soft_wrap=not fold)


def write(text: str, *, style: str = "") -> None:
    """A part of a result as it is, at once; on a terminal with its control characters made visible."""
    with naming_stdout():
        results.out(escaped(text) if results.is_terminal else text, style=style, end="")


def print_json(value: Any) -> None:
    """With --json: one JSON object on stdout, the last thing a command says."""
    if not _wants_json:
        return
    is_unicode = sys.stdout.encoding.lower().startswith("utf")
    with naming_stdout():
        print(escaped(json.dumps(value, ensure_ascii=not is_unicode)), flush=True)


def print_table(
    title: str, rows: Mapping[str, str] | Sequence[Sequence[str]], *, header: Sequence[str] = (), to: Console | None = None
) -> None:
    """Two columns of names and values, or any number of columns under a header: a result, unless it is said where it goes."""
    from rich.table import Table

    to = to or results
    table = Table(show_header=bool(header), box=None, padding=(0, 2, 0, 0))
    lines = list(rows.items()) if isinstance(rows, Mapping) else [tuple(row) for row in rows]
    columns = range(len(lines[0]) if lines else len(header))
    numeric = [number > 0 and bool(lines) and all(_is_number(line[number]) for line in lines) for number in columns]
    short = bool(header) and max(len(line[0]) for line in lines or [("",)]) <= _LONGEST_NAME
    for number in columns:
        justify = "right" if numeric[number] and header else "left"
        named = number == 0 and short and not all(numeric[1:])  # beside numbers, which must not be folded, a name is
        table.add_column(escape(header[number]) if header else "", justify=justify, overflow="fold", no_wrap=named)
    for line in lines:
        table.add_row(*map(escape, line))
    with naming_stdout():
        if title:  # as a line of its own: a table's would be folded to the table's width
            to.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
        if to.width < UNFOLDED:
            to.print(table)
            return
        with to.capture() as drawn:
            to.print(table)
        to.out("\n".join(map(str.rstrip, drawn.get().split("\n"))), end="")


def _is_number(cell: str) -> bool:
    return bool(cell) and cell.strip().lstrip("-+<>$")[:1].isdigit()


def drawn_progress() -> AbstractContextManager[Progress]:
    """A `Progress` for the commands: bars on a terminal, a line now and then elsewhere."""
    from tpulm.cli.bars import drawn

    return drawn(console)
