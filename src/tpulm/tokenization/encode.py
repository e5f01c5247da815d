"""Encoding in bulk: texts in, one flat array of ids out.

The ids are those of the `tokenizers` library, by definition. tokie gives the same ids ten times faster for the tokenizers that
`_engine` knows, but its Unicode tables differ, as do some of its rules for blanks and controls. So it only gets texts whose
code points the two were seen to treat alike, with this tokenizer and in the contexts below. The library encodes all other
texts, and everything for other tokenizers and on platforms without a wheel of tokie (docs/design/encoding.md).
"""

from __future__ import annotations

import json
import re
import tempfile
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import tokenizers
from tokenizers import Tokenizer

from tpulm.corpus.cleaning import CONTROLS
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization.hf_files import guarded, watched
from tpulm.tokenization.pipelines import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    composing,
    in_sequence,
    is_byte_level,
    is_ours,
    marks,
    normalization_before,
    normalizer,
    steps,
    without_special_names,
    without_surrogates,
)

try:
    import tokie
except ImportError:
    tokie = None

LIBRARY: Final = f"tokenizers {tokenizers.__version__}"
ENGINE: Final = "tokie 0.1.4"  # pinned in pyproject.toml: the contexts were found with this version
_AT_ONCE: Final = 1 << 20  # characters
_BY_LIBRARY_AT_ONCE: Final = 1 << 18  # its results take a hundred bytes per token
_FIRST_CHARACTERS: Final = 1 << 13  # that an encoder sees: always compared
_LONGEST: Final = 1 << 13  # characters of a text for the engine
_AGREES, _DIFFERS = 1, 2
_FORM, _ODD, _SPACE, _LINE = 4, 8, 16, 32  # what the corpus's normalization may change, alone or next to another
_GPT2_WORDS: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BPE_VARIATIONS: Final = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout", "ignore_merges")

# Where a word begins in any context; not line ends for Metaspace, which would put a space before what follows.
_SPACES, _BLANKS = re.compile(r"(?<=\S)(?= \S)"), re.compile(r"(?<=\S)(?=[ \n]\S)")

_CONTROL = re.compile(CONTROLS)
# Circled and squared letters.
_CIRCLED = re.compile("[\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]")

# At the beginning, inside and at the end of words, next to numbers, marks, an accent, Hangul, a Chinese character.
_AMONG_LETTERS: Final = "{c} a{c}1{c} {c}{c}\u0301.{c}한{c}漢"
# Blanks and controls also next to each other, and before English contractions.
_AMONG_BLANKS: Final = (
    "{c}",
    "{c} {c}{c}a{c}b 한{c}글 1{c}2.{c},{c} {c}\u0301{c}a\u0301\u0327{c}漢{c}字\n{c}\n\n{c}\t{c}'{c}s",
    "\u3000{c}\x85{c} a \xa0{c}\x0b{c}a{c}'sa{c}'ta{c}'rea{c}'vea{c}'ma{c}'lla{c}'da",
)


class Encoded(NamedTuple):
    """The concatenated ids of N texts, `ids` uint32 [T], and how many each text has, `lengths` int32 [N]."""

    ids: np.ndarray
    lengths: np.ndarray

    def split(self) -> list[np.ndarray]:
        """The ids of each text."""
        return np.split(self.ids, np.cumsum(self.lengths, dtype=np.int64)[:-1])[: len(self.lengths)]


NOTHING: Final = Encoded(np.zeros(0, np.uint32), np.zeros(0, np.int32))


class Encoder:
    """Encodes texts without adding special tokens; their names within a text are as `without_special_names` describes.

    `engine` is None if the library does everything. Single-threaded in workers, multi-threaded elsewhere.
    """

    def __init__(self, tokenizer: Tokenizer, specials: SpecialTokens, *, reads_added: bool = False):
        pipeline = without_special_names(tokenizer, specials, reads_added=reads_added)
        self._library = pipeline.tokenizer
        normalizers = steps(pipeline.specification["normalizer"], "normalizers")
        self._cleaning, first = normalization_before(normalizers)
        own = normalizers[len(first) :]
        self.engine = _engine({**pipeline.specification, "normalizer": in_sequence(own)})
        # With an engine, both get texts that are normalized as the corpus was, and do the rest.
        self._normalizer = None if self.engine is None else normalizer(first)
        if self._normalizer is not None:
            self._library.normalizer = normalizer(own)
        self._agreement = np.zeros(0x110000, np.uint8)  # by code point, with what normalization may change; 0: not tried yet
        by_library = composing(0x1100) if "NFC" in {step["type"] for step in own} else frozenset[int]()
        by_library |= marks() if is_ours("bpe", pipeline.specification["pre_tokenizer"]) else frozenset[int]()
        self._agreement[list(by_library)] = _DIFFERS | _FORM * (self._cleaning.unicode_form != "none")
        self._is_bpe = pipeline.specification["model"]["type"] == "BPE"
        self._was_checked = False

    @guarded()
    def encode(self, texts: list[str]) -> Encoded:
        """The ids of the texts. A lone surrogate counts as U+FFFD."""
        parts = [NOTHING]
        for some in slices(texts, _AT_ONCE):
            try:
                parts.append(self._encode(some))
            except (UnicodeEncodeError, TypeError):  # caused by a lone surrogate
                parts.append(self._encode(list(map(without_surrogates, some))))
        return joined(parts)

    def check(self, texts: list[str]) -> bool:
        """Whether the engine, if any, gives the library's ids for these texts; after a difference it is no longer used."""
        self._was_checked = True
        if self.engine is not None and not same(self.encode(texts), self._by_library(texts)):
            self.engine = None
            warnings.warn(
                f"{ENGINE} and the tokenizers library give different ids for this text; the library is used", stacklevel=2
            )
        return self.engine is not None

    def _encode(self, texts: list[str]) -> Encoded:
        if self.engine is None:
            return self._by_library(texts)
        if not self._was_checked and not self.check(next(slices(texts, _FIRST_CHARACTERS))):
            return self._by_library(texts)
        points, agreement, sizes = self._classified(texts)
        if self._normalizer is not None:
            changing = _texts_at(self._changing(points, agreement), sizes)
            form: Any = self._cleaning.unicode_form
            for place in np.flatnonzero(_texts_at(agreement & _FORM, sizes)).tolist():
                changing[place] |= not unicodedata.is_normalized(form, texts[place])
            if changing.any():
                texts = [
                    self._normalizer.normalize_str(text) if bad else text for text, bad in zip(texts, changing, strict=True)
                ]
                points, agreement, sizes = self._classified(texts)
        is_slow = _texts_at(agreement & _DIFFERS, sizes)
        for place in np.flatnonzero(sizes > _LONGEST).tolist():
            is_slow[place] |= not self.engine.pieces(texts[place])
        return self._apart(texts, is_slow) if is_slow.any() else self.engine.encode(texts)

    def _classified(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The code points of the texts, what is known of each, and how many each text has."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        agreement = self._agreement.take(points)
        if not agreement.all():
            self._try(np.unique(points[agreement == 0]))
            agreement = self._agreement.take(points)
        return points, agreement, np.fromiter(map(len, texts), np.int64, len(texts))

    def _changing(self, points: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """Not 0 where the corpus's normalization may change a text, except for the form; uint8 [characters].

        The end of a text counts as next to the beginning of the next one: some are normalized in vain.
        """
        changing = classes & _ODD
        if self._cleaning.whitespace == "collapse":
            blanks = classes >> 4
            changing[1:] |= blanks[1:] * blanks[:-1] & 3  # not two line ends
        if self._cleaning.max_repeats:
            run = same_as_next = points[1:] == points[:-1]
            for _ in range(self._cleaning.max_repeats - 1):
                run = run[1:] & same_as_next[: len(run) - 1] if run.any() else run[1:]
            changing[: len(run)] |= run
        return changing

    def _by_library(self, texts: list[str]) -> Encoded:
        """By the library, after the corpus's normalization if it is done here."""
        return _by_library(self._library, list(map(self._normalizer.normalize_str, texts)) if self._normalizer else texts)

    def _apart(self, texts: list[str], is_slow: np.ndarray) -> Encoded:
        """Encode slow texts with the library, the others with the engine."""
        assert self.engine is not None
        fast = self.engine.encode([text for text, slow in zip(texts, is_slow, strict=True) if not slow])
        slow = _by_library(self._library, [text for text, slow in zip(texts, is_slow, strict=True) if slow])
        parts = {False: iter(fast.split()), True: iter(slow.split())}
        ids = [next(parts[by_library]) for by_library in is_slow.tolist()]
        return Encoded(np.concatenate(ids), np.fromiter(map(len, ids), np.int32, len(ids)))

    def _try(self, points: np.ndarray) -> None:
        """Find out on which of these code points the engine and the library agree."""
        assert self.engine is not None
        characters = list(map(chr, points.tolist()))
        templates = [(_AMONG_LETTERS,) if one.isalnum() else _AMONG_BLANKS for one in characters]
        texts = [
            form.replace("{c}", character) for character, forms in zip(characters, templates, strict=True) for form in forms
        ]
        owners = np.repeat(points, list(map(len, templates)))
        ours, reference = self.engine.encode(texts), _by_library(self._library, texts)
        self._agreement[points] = _AGREES
        if not same(ours, reference):
            pairs = zip(owners.tolist(), ours.split(), reference.split(), strict=True)
            self._agreement[[point for point, one, other in pairs if not np.array_equal(one, other)]] = _DIFFERS
        if self._is_bpe:
            self._agreement[[ord(one) for one in characters if _is_of_a_word(one)]] = _DIFFERS
        if self._normalizer is not None:
            self._agreement[points] |= np.fromiter(map(self._kind, characters), np.uint8, len(characters))

    def _kind(self, character: str) -> int:
        """What the corpus's normalization may do with a character."""
        if character in " \n":
            return _SPACE if character == " " else _LINE
        if unicodedata.category(character) == "Cn" or character.isspace() or _CONTROL.fullmatch(character):
            return _ODD
        form: Any = self._cleaning.unicode_form
        if form == "none":
            return 0
        moves = unicodedata.combining(character) or ord(character) in composing(0x1100)
        return _FORM if moves or not unicodedata.is_normalized(form, character) else 0


class _Engine(NamedTuple):
    """tokie's tokenizer; `lowers`: Python lower-cases the text first; `cuts`: where a long text may be cut."""

    tokenizer: Any
    lowers: bool
    cuts: re.Pattern[str]

    def encode(self, texts: list[str]) -> Encoded:
        """Long texts must be ones that `pieces` can cut."""
        if max(map(len, texts), default=0) <= _LONGEST:
            return self._encode(texts)
        pieces = [self.pieces(text) for text in texts]
        encoded = self._encode(list(chain.from_iterable(pieces)))
        first = np.cumsum([0, *map(len, pieces[:-1])])
        return Encoded(encoded.ids, np.add.reduceat(encoded.lengths, first, dtype=np.int32))

    def _encode(self, texts: list[str]) -> Encoded:
        if self.lowers:
            texts = [text.lower() for text in texts]
        ids, lengths = self.tokenizer.encode_batch_flat(texts, add_special_tokens=False)
        return Encoded(ids, lengths.astype(np.int32))

    def pieces(self, text: str) -> list[str]:
        """A text in pieces if it is long; [] if it cannot be cut. tokie cuts texts from 65,536 bytes, which changes ids."""
        begin, cuts = 0, []
        while len(text) - begin > _LONGEST:
            cut = self.cuts.search(text, begin + _LONGEST // 2, begin + _LONGEST)
            if cut is None:
                return []
            cuts.append(text[begin : cut.start()])
            begin = cut.start()
        return [*cuts, text[begin:]]


def _texts_at(marked: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which of the texts that follow each other have a character that is not 0; bool [N]."""
    is_marked = np.zeros(len(sizes), bool)
    is_marked[np.searchsorted(np.cumsum(sizes), np.flatnonzero(marked), side="right")] = True
    return is_marked


def _is_of_a_word(character: str) -> bool:
    """Whether tokie takes a character into a word where GPT-2's expression, or its Unicode, does not: Ⅻ, ⓐ, letters of new
    scripts. A trial may miss this: ids differ only where the vocabulary merges bytes of both sides."""
    return unicodedata.category(character) in ("Nl", "Cn") or _CIRCLED.match(character) is not None


def _engine(specification: dict[str, Any]) -> _Engine | None:
    """An engine if tokie agrees with the library except at some code points: for BERT's WordPiece, GPT-2's BPE, our Unigram."""
    if tokie is None or any(not token["special"] for token in specification["added_tokens"]):
        return None
    if is_ours("bpe", specification["pre_tokenizer"]):  # texts with `marks` go to the library
        specification = {**specification, "pre_tokenizer": _GPT2_WORDS}
    vocabulary = specification["model"]["vocab"]
    known = _known(specification)
    if known is None or (isinstance(vocabulary, dict) and max(vocabulary.values()) >= len(vocabulary)):  # ids have gaps
        return None
    normalizer, lowers = known
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
        file.write(json.dumps({**specification, "normalizer": normalizer}, ensure_ascii=False))  # many times faster than dump
        file.flush()
        cuts = _SPACES if specification["model"]["type"] == "Unigram" else _BLANKS
        return _Engine(tokie.Tokenizer.from_json(file.name), lowers, cuts)


def _known(specification: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool] | None:
    """The normalizer for tokie, and whether to lower-case text first; None if tokie cannot be used."""
    model, normalizer, pre_tokenizer = (specification[part] for part in ("model", "normalizer", "pre_tokenizer"))
    match model["type"], steps(normalizer, "normalizers"), steps(pre_tokenizer, "pretokenizers"):
        case "WordPiece", [{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True} as bert, *rest], [
            {"type": "BertPreTokenizer"}
        ]:
            if (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) != (CONTINUATION, MAX_WORD_CHARACTERS):
                return None
            strips = bert["lowercase"] if bert["strip_accents"] is None else bert["strip_accents"]
            if [step["type"] for step in rest] not in ([], ["NFC"][: int(strips)]) or (strips and not bert["lowercase"]):
                return None
            return (normalizer, False) if strips == bert["lowercase"] else ({**bert, "lowercase": False}, True)
        case "BPE", [] | [{"type": "Lowercase"}] as lowers, [
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        ] if is_byte_level(model) and not any(map(model.get, _BPE_VARIATIONS)):
            return None, bool(lowers)
        case "Unigram", [] | [{"type": "Lowercase"}] as lowers, _ if is_ours("unigram", pre_tokenizer):
            # Sums of such scores are exact, so both choose the same among equally good paths.
            return (None, bool(lowers)) if all((1024 * score).is_integer() for _, score in model["vocab"]) else None
    return None


def slices(texts: list[str], characters: int) -> Iterator[list[str]]:
    """The texts in order, in lists of about this many characters."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    first = done = 0
    while first < len(texts):
        last = min(int(np.searchsorted(ends, done + characters)) + 1, len(texts))
        yield texts[first:last]
        first, done = last, int(ends[last - 1])


def joined(parts: list[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts]))


def same(one: Encoded, other: Encoded) -> bool:
    return np.array_equal(one.lengths, other.lengths) and np.array_equal(one.ids, other.ids)


def _by_library(tokenizer: Tokenizer, texts: list[str]) -> Encoded:
    ids: list[np.ndarray] = []
    for some in slices(texts, _BY_LIBRARY_AT_ONCE):
        with watched(tokenizer, some):
            encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        ids += [np.array(encoding.ids, np.uint32) for encoding in encodings]
    return Encoded(np.concatenate([NOTHING.ids, *ids]), np.fromiter(map(len, ids), np.int32, len(ids)))
