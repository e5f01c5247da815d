"""Batches of documents, about a megabyte each, and unusable input, which is an error, or left out and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Final, Literal, NamedTuple

from tpulm.errors import DataError, shorten

# Why a document, or the rest of a file, is not in the corpus. First, faults of the input, which stop the run unless
# on_error = "skip"; then one of labelled examples only; then wiki pages that are not articles; last, what cleaning and sampling
# leave out.
Reason = Literal[
    "undecodable", "nul_character", "not_unicode", "too_large", "not_json", "no_field", "not_text", "malformed_row",
    "broken_file",
    "no_label",
    "redirect", "other_namespace", "no_wikitext",
    "empty", "too_short", "too_long", "other_language",
]  # fmt: skip
Fault = tuple[Reason, str] | None  # why something is unusable, and a message; None: it is usable

UNDECODABLE: Final = "\udc80"  # stands for an undecodable byte; no codec produces it by itself

# Of a document, a line or a field: anything longer is taken for a mistake (a file without line ends). Bounds memory.
MAX_DOCUMENT_BYTES: Final = 8 << 20


class Wording(NamedTuple):
    """How messages refer to the settings of the caller; {} is a value."""

    skip: str = 'on_error = "skip"'  # "": nothing is skipped
    format: str = "set format = '{}'"
    encoding: str = "set encoding = '{}'"
    some_encoding: str = "set encoding if that is what it is"
    text_field: str = 'name it: {{path = "…", text_field = "{}"}}'


CORPUS: Final = Wording()
# Of commands that are given files of text.
OPTIONS: Final = Wording(
    skip="",
    format="give --format {}",
    encoding="give --encoding {}",
    some_encoding="give --encoding if that is what it is",
    text_field="give --text-field {}",
)


class Faults:
    """Counts the records that are left out; in "stop" mode a fault of the input raises DataError instead."""

    def __init__(self, on_error: Literal["stop", "skip"], name: str = "", wording: Wording = CORPUS):
        self.wording = wording
        self.on_error: Literal["stop", "skip"] = on_error
        self.name = name  # the file being read; "" if the places given to `add` name it
        self.skipped: Counter[str] = Counter()
        self.removed_templates: Counter[str] = Counter()  # in running text, by name
        self.samples = Samples()

    @property
    def stops(self) -> bool:
        return self.on_error == "stop"

    def add(self, reason: Reason, message: str, place: str) -> None:
        """Count one unusable record at `place` ("line 7"), or raise DataError in "stop" mode."""
        if self.stops:
            left_out = "the readable part is used" if reason == "broken_file" else "such records are left out and counted"
            advice = f" With {self.wording.skip} {left_out}." if self.wording.skip else ""
            raise DataError(f"{message}{advice}", location=f"{self.name}, {place}" if self.name else place)
        self.leave_out(reason, f"{self.name}, {place}: {message}")

    def leave_out(self, reason: Reason, sample: str) -> None:
        """Count one record that is left out, in "stop" mode too."""
        self.skipped[reason] += 1
        self.samples.keep(reason, [sample])


_OF_A_PIECE: Final = 3  # samples per reason
_OF_ALL: Final = 20
_CHARACTERS: Final = 200

SamplesByReason = dict[str, tuple[str, ...]]


class Samples:
    """Keeps the first few samples of each reason."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}

    def wants(self, reason: str) -> bool:
        return len(self._samples.get(reason, ())) < _OF_A_PIECE

    def add(self, reason: str, texts: Iterable[str]) -> None:
        """Keep the beginnings of texts of the corpus."""
        self.keep(reason, (shorten(" ".join(text[: 2 * _CHARACTERS].split()), _CHARACTERS, quoted=False) for text in texts))

    def keep(self, reason: str, shown: Iterable[str]) -> None:
        """Keep samples unchanged."""
        samples = self._samples.setdefault(reason, [])
        samples.extend(islice(shown, _OF_A_PIECE - len(samples)))

    def removed(self) -> SamplesByReason:
        return {reason: tuple(texts) for reason, texts in sorted(self._samples.items()) if texts}


def merge_samples(parts: Iterable[Mapping[str, Iterable[str]]]) -> SamplesByReason:
    """Samples of all pieces, by reason: the first of each piece, then the second, …, without repetitions."""
    by_reason: dict[str, list[Iterable[str]]] = {}
    for part in parts:
        for reason, texts in part.items():
            by_reason.setdefault(reason, []).append(texts)
    return {
        reason: tuple(dict.fromkeys(text for text in chain(*zip_longest(*lists)) if text is not None))[:_OF_ALL]
        for reason, lists in sorted(by_reason.items())
    }


BATCH_BYTES: Final = 1 << 20


class DocumentBatch(NamedTuple):
    """One or more documents. They contain neither the separator nor NUL, and can be encoded as UTF-8."""

    text: str
    separator: str  # "\n" or "\0"

    def documents(self) -> list[str]:
        return self.text.split(self.separator)


class Batcher:
    """Gathers documents into batches, refusing those with NUL, undecodable bytes or lone surrogates."""

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

    def full(self) -> Iterator[DocumentBatch]:
        """Yield the documents so far as a batch, if there are enough for one."""
        return self.flush() if self._characters >= BATCH_BYTES or len(self._documents) >= BATCH_BYTES // 8 else iter(())

    def flush(self) -> Iterator[DocumentBatch]:
        """Yield the documents so far as a batch, if there are any."""
        documents, numbers = self._documents, self._numbers
        self._documents, self._numbers, self._characters = [], [], 0
        text = "\0".join(documents)
        if text.count("\0") != len(documents) - 1 or not _is_unicode(text):
            documents = list(self._usable(documents, numbers))
            text = "\0".join(documents)
        if documents:
            yield DocumentBatch(text, "\0")

    def _usable(self, documents: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
        for document, number in zip(documents, numbers, strict=True):
            fault = find_fault(document)
            if fault is None:
                yield document
            else:
                self._faults.add(*fault, self._place(number))


def find_fault(document: str) -> Fault:
    """Why a document is unusable, with a message, or None."""
    if UNDECODABLE in document:
        return "undecodable", "bytes that do not decode."
    if "\0" in document:
        return "nul_character", NUL_MESSAGE
    if not _is_unicode(document):
        bad = next(character for character in document if "\ud800" <= character <= "\udfff")
        return ("not_unicode", f"half of a surrogate pair (\\u{ord(bad):04x}) in {shorten(document.strip(bad))}.")
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
