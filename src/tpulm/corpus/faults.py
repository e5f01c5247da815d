"""Input that cannot be used: an error, or left out and counted, as the source's `on_error` says."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, NamedTuple

from tpulm.corpus.samples import Samples
from tpulm.errors import DataError

# Why a document, or the rest of a file, is not in the corpus. The first group is faults of the input and stops the run unless
# on_error = "skip", the next one of labelled examples alone; then pages of a wiki that are no articles; the last is what the
# cleaning settings ask for.
Reason = Literal[
    "undecodable", "nul_character", "not_unicode", "too_large", "not_json", "no_field", "not_text", "malformed_row",
    "broken_file",
    "no_label",
    "redirect", "other_namespace", "no_wikitext",
    "empty", "too_short", "too_long", "other_language", "sampled_out",
]  # fmt: skip

# One document, one line, one field: more than this is taken for a mistake (a file without line ends), and bounds memory.
MAX_DOCUMENT_BYTES: Final = 8 << 20


class Wording(NamedTuple):
    """What messages call the settings of whoever reads; {} is a value."""

    skip: str = 'on_error = "skip"'
    format: str = "set format = '{}'"
    encoding: str = "set encoding = '{}'"
    some_encoding: str = "set encoding if that is what it is"


CORPUS: Final = Wording()


class Faults:
    """Counts what one piece of the corpus leaves out; in "stop" mode a fault of the input raises DataError instead."""

    def __init__(self, on_error: Literal["stop", "skip"], name: str = "", wording: Wording = CORPUS):
        self.wording = wording
        self.on_error: Literal["stop", "skip"] = on_error
        self.name = name  # the file being read; "" where a place says more than a number
        self.skipped: Counter[str] = Counter()
        self.samples = Samples()

    @property
    def stops(self) -> bool:
        return self.on_error == "stop"

    def add(self, reason: Reason, message: str, place: str) -> None:
        """One unusable record at `place` ("line 7"). Raises DataError in "stop" mode."""
        if self.stops:
            left_out = (
                "the readable part of such files is used"
                if reason == "broken_file"
                else "such records are left out and counted"
            )
            raise DataError(
                f"{message} With {self.wording.skip} {left_out}.", location=f"{self.name}, {place}" if self.name else place
            )
        self.leave_out(reason, f"{self.name}, {place}: {message}")

    def leave_out(self, reason: Reason, sample: str) -> None:
        """One record that is none of the corpus's documents, and no fault: counted."""
        self.skipped[reason] += 1
        self.samples.keep(reason, [sample])
