"""What readers hand on: batches of documents as one string each, so that cleaning can work on a megabyte at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tpulm.corpus.codec import UNDECODABLE
from tpulm.corpus.faults import Faults, Reason
from tpulm.errors import shorten

BATCH_BYTES: Final = 1 << 20


class Batch(NamedTuple):
    """At least one document. Documents hold neither the separator nor NUL, and encode as UTF-8."""

    text: str
    separator: str  # "\n" or "\0"

    def documents(self) -> list[str]:
        return self.text.split(self.separator)


class Batcher:
    """Gathers single documents into batches, refusing those that hold NUL or are not Unicode."""

    def __init__(self, faults: Faults, place: Callable[[int], str] = "line {}".format):
        self._faults = faults
        self._place = place
        self._documents: list[str] = []
        self._numbers: list[int] = []
        self._characters = 0

    def add(self, document: str, number: int) -> None:
        self._documents.append(document)
        self._numbers.append(number)
        self._characters += len(document)

    def full(self) -> Iterator[Batch]:
        """The documents so far as a batch, if they are enough for one."""
        return self.flush() if self._characters >= BATCH_BYTES or len(self._documents) >= BATCH_BYTES // 8 else iter(())

    def flush(self) -> Iterator[Batch]:
        """The documents so far as a batch, if there are any."""
        documents, numbers = self._documents, self._numbers
        self._documents, self._numbers, self._characters = [], [], 0
        text = "\0".join(documents)
        if text.count("\0") != len(documents) - 1 or not _is_unicode(text):
            documents = list(self._usable(documents, numbers))
            text = "\0".join(documents)
        if documents:
            yield Batch(text, "\0")

    def _usable(self, documents: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
        for document, number in zip(documents, numbers, strict=True):
            fault = find_fault(document)
            if fault is None:
                yield document
            else:
                self._faults.add(*fault, self._place(number))


def find_fault(document: str) -> tuple[Reason, str] | None:
    """Why a text cannot be used, with a message, or None."""
    if UNDECODABLE in document:
        return "undecodable", "bytes that do not decode."
    if "\0" in document:
        return "nul_character", NUL_MESSAGE
    if not _is_unicode(document):
        bad = next(character for character in document if "\ud800" <= character <= "\udfff")
        return (
            "not_unicode",
            f"half of a surrogate pair (\\u{ord(bad):04x}) in {shorten(document.strip(bad))}: it has no UTF-8.",
        )
    return None


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


NUL_MESSAGE: Final = "a NUL character: this is not plain text, or its encoding is another one (utf-16?)."
