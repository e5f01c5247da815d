"""Word boundaries in languages that do not separate words by spaces: morphological analysers, as optional packages.

`mecab`: MeCab with the UniDic dictionary in its lite edition, for Japanese (the packages fugashi and unidic-lite).
`kiwi`: Kiwi with the model in its package, for Korean (kiwipiepy).

Input is sanitized first: MeCab ends a text at NUL, a lone surrogate cannot be encoded, and both keep a whole text in memory,
several hundred bytes per character. So NUL counts as U+FFFD, and a text is analysed line by line, long lines in pieces of up to
`LONGEST_PIECE` characters, split at a blank or a full stop if there is one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from tpulm.errors import MissingExtra, installing

Name = Literal["mecab", "kiwi"]
CHARACTERS_AT_ONCE: Final = 1 << 15  # takes an analyser a few seconds, after which progress is reported
LONGEST_PIECE: Final = 4096  # characters; MeCab counts a morpheme's bytes in 16 bits

# name -> the extra that installs it, and the packages whose versions determine its results
_EXTRAS: Final = {"mecab": "ja", "kiwi": "ko"}
_PACKAGES: Final = {"mecab": ("fugashi", "unidic-lite"), "kiwi": ("kiwipiepy", "kiwipiepy_model")}
_KIWI_MODEL: Final = "cong"  # the one in its package; explicit, so that a new default changes nothing

_LINE = re.compile(r"[^\n]+")
_LAST_BLANK = re.compile(r".*[\s。．！？.!?]", re.DOTALL)
# What belongs to the previous character, besides the marks of all scripts: vowels and finals of conjoining Hangul, half-width
# voice marks, joiners, variation selectors, skin tones.
_BELONGS_BEFORE = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]")
_JOINER: Final = "\u200d"


class TextSpan(NamedTuple):
    offset: int
    text: str


class Analyser(Protocol):
    def morphemes(self, texts: Sequence[str]) -> Iterator[list[TextSpan]]:
        """The morphemes of each text in order, as written there, with their offsets. None contains blanks.

        Contracted morphemes may begin at the same character.
        """
        ...


def versions(name: Name) -> dict[str, str]:
    """The analyser's name, and package -> version for its packages. Raises MissingExtra."""
    try:
        return {"name": name, **{package: metadata.version(package) for package in _PACKAGES[name]}}
    except metadata.PackageNotFoundError as error:
        raise _missing(name) from error


@cache
def load(name: Name) -> Analyser:
    """Load an analyser; takes a second and up to half a gigabyte. Raises MissingExtra."""
    try:
        return Mecab() if name == "mecab" else Kiwi()
    except ImportError as error:
        raise _missing(name) from error


def _missing(name: Name) -> MissingExtra:
    packages = " and ".join(_PACKAGES[name])
    return MissingExtra(f"the analyser '{name}' needs {packages}: {installing(_EXTRAS[name])}")


def word_offsets(texts: Sequence[str], analyser: Analyser) -> Iterator[np.ndarray]:
    """The character offsets at which words begin in each text, int64, ascending from 0, never inside a grapheme cluster.

    The texts have no lone surrogates.
    """
    for text, morphemes in zip(texts, morphemes_of(texts, analyser), strict=True):
        starts = {0, *(morpheme.offset for morpheme in morphemes)}
        yield np.array(sorted(start for start in starts if not _is_inside(text, start)), np.int64)


def morphemes_of(texts: Sequence[str], analyser: Analyser) -> Iterator[list[TextSpan]]:
    """The morphemes of each text, which is analysed in pieces (`cut`)."""
    pieces = [cut(text) for text in texts]
    found = analyser.morphemes([piece.text for some in pieces for piece in some])
    for some in pieces:
        yield [TextSpan(piece.offset + one.offset, one.text) for piece in some for one in next(found)]


def cut(text: str) -> list[TextSpan]:
    """The lines of a text, long ones in several pieces, with NUL replaced by U+FFFD."""
    pieces = []
    for line in _LINE.finditer(text.replace("\0", "\ufffd")):
        offset, rest = line.start(), line.group()
        while len(rest) > LONGEST_PIECE:
            match = _LAST_BLANK.match(rest, 0, LONGEST_PIECE)
            end = match.end() if match else LONGEST_PIECE
            pieces.append(TextSpan(offset, rest[:end]))
            offset, rest = offset + end, rest[end:]
        pieces.append(TextSpan(offset, rest))
    return pieces


def _is_inside(text: str, place: int) -> bool:
    if not 0 < place < len(text):
        return place != 0
    character = text[place]
    if character < "\u0300":
        return False
    return bool(unicodedata.category(character)[0] == "M" or _BELONGS_BEFORE.match(character) or text[place - 1] == _JOINER)


class Mecab:
    """MeCab, opened as transformers' BertJapaneseTokenizer opens it."""

    def __init__(self) -> None:
        import unidic_lite
        from fugashi import GenericTagger  # pyright: ignore[reportAttributeAccessIssue]

        folder = unidic_lite.DICDIR
        self._tagger: Any = GenericTagger(f'-d "{folder}" -r "{folder}/mecabrc"')

    def morphemes(self, texts: Sequence[str]) -> Iterator[list[TextSpan]]:
        for text in texts:
            result, end = [], 0
            for node in self._tagger(text):
                start = text.find(node.surface, end)
                if start >= 0:
                    result.append(TextSpan(start, node.surface))
                    end = start + len(node.surface)
            yield result


class Kiwi:
    """Kiwi, single-threaded: work is divided among processes."""

    def __init__(self) -> None:
        import kiwipiepy

        self._kiwi: Any = kiwipiepy.Kiwi(num_workers=1, model_type=_KIWI_MODEL)

    def morphemes(self, texts: Iterable[str]) -> Iterator[list[TextSpan]]:
        for text, tokens in zip(texts, self._kiwi.tokenize(texts), strict=True):
            yield [TextSpan(token.start, text[token.start : token.start + token.len]) for token in tokens]
