"""Plain text: one document per line, per paragraph (between blank lines), or per file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tpulm.corpus.documents import MAX_DOCUMENT_BYTES, Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import Input, Lines
from tpulm.errors import DataError

# How text in another format begins, what it is, and what to do.
_OTHERS: Final = (
    (r'\[?\s*\{\s*"[^"\n]*"\s*:', "JSON", "{format}", "jsonl"),
    (r"(?-i:<doc )[^>\n]*>\n", "WikiExtractor's output", "read the dump itself, or have it write --json and {format}", "jsonl"),
    (r"(?:<\?xml[^>]*>\s*)?<mediawiki\b", "a dump of a wiki", "{format}", "wikipedia"),
    (r"<!doctype html|<html\b", "HTML", "extract its text first (trafilatura does it)", ""),
    (r"<\?xml\b|<!doctype\b", "XML", "extract its text first", ""),
    (r"\{\\rtf", "RTF", "save it as plain text", ""),
    (r"(?:WEBVTT\b.*\s+)?(?:\d+\s*\n)?[\d:]+[.,]\d{3} --> ", "subtitles", "take numbers and times out first", ""),
)
_LINES_JUDGED: Final = 50

# One or more blank lines; a form feed or U+2028 does not end a line.
_BLANK_LINES: Final = re.compile(r"^(?:[^\S\n]*+\n)++", re.MULTILINE)


def read_text(opened: Input) -> Iterator[DocumentBatch]:
    """Read a file. A last document truncated by broken compression is left out.

    Raises DataError, whatever `on_error` is, if it plainly has another format, unless format = "text" is set.
    """
    return _each_line(opened) if opened.source.documents == "line" else _long_documents(opened)


def _lines(opened: Input) -> Iterator[Lines]:
    for lines in opened.lines():
        if lines.first == 1 and opened.source.format == "auto":
            _check_plain(lines, opened.faults)
        yield lines


def _check_plain(lines: Lines, faults: Faults) -> None:
    text = lines.joined().lstrip()
    other_format = next((other for other in _OTHERS if re.match(other[0], text, re.IGNORECASE)), None)
    rows = [line.strip().count("\t") for line in text.split("\n", _LINES_JUDGED)[:_LINES_JUDGED] if line.strip()]
    if other_format is None and len(rows) > 2 and rows[0] and len(set(rows)) == 1:
        other_format = "", "tab-separated values", "{format}", "tsv"
    if other_format is not None:
        _, name, advice, form = other_format
        advice = advice.format(format=faults.wording.format.format(form))
        raise DataError(
            f"it begins like {name}: {advice}. To read its lines as they stand, {faults.wording.format.format('text')}.",
            location=f"{faults.name}, line {lines.first}",
        )


def _each_line(opened: Input) -> Iterator[DocumentBatch]:
    for lines in _lines(opened):
        if not lines.suspect:
            yield DocumentBatch(lines.joined(), "\n")
            continue
        batcher = Batcher(opened.faults)
        for number, line in enumerate(lines.split(), lines.first):
            batcher.add(line, number)
        yield from batcher.flush()


def _long_documents(opened: Input) -> Iterator[DocumentBatch]:
    """Paragraphs, or the whole file as one document."""
    batcher = Batcher(opened.faults)
    document = OpenDocument(opened.faults)
    for lines in _lines(opened):
        position, number = 0, lines.first
        for gap in _BLANK_LINES.finditer(lines.text) if opened.source.documents == "paragraph" else ():
            document.extend(lines.text[position : gap.start()], number)
            document.close(batcher)
            number += lines.text.count("\n", position, gap.end())
            position = gap.end()
        document.extend(lines.text[position:], number)
        yield from batcher.full()
    if not opened.stream.torn:
        document.close(batcher)
    yield from batcher.flush()


class OpenDocument:
    """A document of several lines, which may continue in the next chunk; `number` is that of the text's first line.

    What is longer than MAX_DOCUMENT_BYTES is a fault, and left out. After the last chunk it is closed, unless `stream.torn`:
    then the end of the document is missing.
    """

    def __init__(self, faults: Faults):
        self._faults = faults
        self._parts: list[str] = []
        self._bytes = 0
        self._first = 1
        self._dropped = False

    def extend(self, text: str, number: int) -> None:
        if not text or self._dropped:
            return
        if not self._parts:
            self._first = number
        self._parts.append(text)
        self._bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > MAX_DOCUMENT_BYTES:
            self._faults.add("too_large", _TOO_LARGE, f"line {self._first}")
            self._parts, self._bytes, self._dropped = [], 0, True

    def close(self, batcher: Batcher) -> None:
        if self._parts:
            batcher.add("".join(self._parts), self._first)
        self._parts, self._bytes, self._dropped = [], 0, False


_TOO_LARGE = (
    f"a document longer than {MAX_DOCUMENT_BYTES >> 20} MiB. A document that long is of no use; "
    "set documents = 'line' or 'paragraph', or cut the file up."
)
