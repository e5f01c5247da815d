"""The tokenizers library while it reads what anybody may have written: its errors have no type, and it may panic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from tokenizers import Tokenizer

from tpulm.errors import DataError, TpulmError, shorten
from tpulm.progress import held_stderr

_PANICS: Final = "pyo3_runtime"  # the module of PanicException, which is no Exception and has no name to import
_SAMPLE: Final = "A 1, 가 \U000f0000"  # the last character is in no vocabulary
_LARGEST_ID: Final = 10_000_000  # tables have a row for every id
_CHARACTERS: Final = " ".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000))))


@contextlib.contextmanager
def guarded(location: str, problem: str = "the tokenizers library cannot read it") -> Iterator[None]:
    """Turn whatever the library raises inside the block into a DataError. What a panic prints is not shown."""
    with held_stderr() as held:
        try:
            yield
        except TpulmError:
            raise
        except BaseException as error:
            if type(error).__module__ == _PANICS:
                held.truncate(0)
            elif not isinstance(error, Exception):
                raise
            raise DataError(f"{problem}: {shorten(str(error), 300, quoted=False)}", location=location) from error


def check_usable(tokenizer: Tokenizer, location: str, *, has_compiled_rules: bool = False) -> None:
    """Raises DataError for a tokenizer that was read, but fails at text: without a token for unknown characters, or damaged.

    `has_compiled_rules`: SentencePiece's table is used as it is, so that damage in it shows at single characters.
    """
    with guarded(location, "the tokenizers library reads it, but cannot encode text with it, so it is damaged or incomplete"):
        if has_compiled_rules:
            tokenizer.normalizer.normalize_str(_CHARACTERS)
        tokenizer.decode(tokenizer.encode(_SAMPLE).ids)
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=itemgetter(1))
    if largest > _LARGEST_ID:
        raise DataError(f"{token!r} has the id {largest:,}; ids end at {_LARGEST_ID:,}", location=location)
