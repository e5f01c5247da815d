"""Splitting text into morphemes before the subword model sees it, as Tohoku University's Japanese BERTs do.

A text becomes its morphemes separated by spaces, and the tokenizer after it splits only at spaces. So the stock library trains
and encodes as usual, and needs no analyser.

`mecab` does what transformers' BertJapaneseTokenizer does with unidic_lite: NFKC, then MeCab's surface forms, each lower-cased
if that is set. Ids are the same, except for texts with NUL or with lines longer than analysers.py takes at once, and for what
that class does not do to characters: of the corpus's normalization, it neither removes controls nor cuts repeats. `kiwi` is
the equivalent for Korean, with NFC, since NFKC turns ㅋㅋ into letters of syllables; contracted morphemes stay together.
transformers has no equivalent of it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple, TypeVar

from tpulm.errors import DataError
from tpulm.tokenization import analysers
from tpulm.tokenization.given import GivenSettings
from tpulm.tokenization.offsets import AlignedSteps, Derived, subsequence
from tpulm.tokenization.pipelines import without_surrogates

_FORMS: Final[dict[analysers.Name, Literal["NFC", "NFKC"]]] = {"mecab": "NFKC", "kiwi": "NFC"}
_Text = TypeVar("_Text", str, Derived)
_DICTIONARY: Final = "unidic_lite"
_DEFAULTS: Final = {"normalize_text": True, "mecab_option": None}  # of mecab_kwargs


class Segmenter(NamedTuple):
    """Splits texts. Two segmenters are equal if they split alike; the analyser is loaded on first use."""

    analyser: analysers.Name
    lowercase: bool = False
    normalization: str = ""  # what was done to the corpus's characters: steps of tokenizer.json, as JSON

    def segment(self, texts: list[str]) -> list[str]:
        """The texts as morphemes separated by one space. Raises MissingExtra."""
        joined = self._joined([self._normalized(without_surrogates(text)) for text in texts])
        return [self._lowered(text) for text in joined]

    def segment_aligned(self, texts: list[Derived]) -> list[Derived]:
        """`segment` for texts without surrogates, with the original characters that each character comes from."""
        steps, form = _steps(self.normalization), partial(unicodedata.normalize, _FORMS[self.analyser])
        normalized = [steps.normalized(text).mapped(form) for text in texts]
        found = list[Derived]()
        for text, joined in zip(normalized, self._joined([text.text for text in normalized]), strict=True):
            places = subsequence(joined, text.text.replace("\0", "\ufffd"))
            found.append(text.then(Derived(joined, places)).mapped(self._lowered))
        return found

    def _normalized(self, text: str) -> str:
        for _, step in _steps(self.normalization).steps:
            text = step.normalize_str(text)
        return unicodedata.normalize(_FORMS[self.analyser], text)

    def _lowered(self, text: str) -> str:
        return " ".join(map(str.lower, text.split(" "))) if self.lowercase else text

    def _joined(self, texts: list[str]) -> list[str]:
        analyser = analysers.load(self.analyser)
        words = _surfaces(texts, analyser) if self.analyser == "mecab" else _stretches(texts, analyser)
        # Split again: some white space of Python, at which transformers splits, is a symbol to MeCab.
        return [" ".join(" ".join(some).split()) for some in words]

    def segment_around(self, texts: list[str], names: Sequence[str]) -> list[str]:
        """`segment`, leaving the names of added tokens unchanged, as transformers does."""
        return [" ".join(filter(None, parts)) for parts in _around([_cut(text, names) for text in texts], self.segment)]

    def segment_aligned_around(self, texts: list[Derived], names: Sequence[str]) -> list[Derived]:
        """`segment_aligned`, in the same way."""
        ends = [pairwise([0, *accumulate(map(len, _cut(text.text, names)))]) for text in texts]
        cut = [[Derived(text.text[a:b], text.spans[a:b]) for a, b in some] for text, some in zip(texts, ends, strict=True)]
        return [Derived.joined(parts) for parts in _around(cut, self.segment_aligned)]

    def settings(self) -> dict[str, Any]:
        """Entries of tokenizer_config.json. transformers refuses "kiwi", which is better than silently different tokens."""
        return {
            "do_lower_case": self.lowercase,
            "do_subword_tokenize": True,
            "do_word_tokenize": True,
            "mecab_kwargs": {"mecab_dic": _DICTIONARY} if self.analyser == "mecab" else None,
            "subword_tokenizer_type": "wordpiece",
            "tokenizer_class": "BertJapaneseTokenizer",
            "word_tokenizer_type": self.analyser,
            **({"corpus_normalization": json.loads(self.normalization)} if self.normalization else {}),
        }


def declared_segmenter(settings: GivenSettings, location: str) -> Segmenter | None:
    """The segmenter that a tokenizer_config.json declares, if any. Raises DataError for an unknown analyser or dictionary."""
    if settings.tokenizer_class != "BertJapaneseTokenizer":
        return None
    kind: Any = settings.word_tokenizer_type
    subwords = settings.subword_tokenizer_type
    options = settings.mecab_kwargs or {}
    known = kind == "kiwi" or (kind == "mecab" and _DEFAULTS | options == _DEFAULTS | {"mecab_dic": _DICTIONARY})
    if not known or subwords != "wordpiece":
        # The default of transformers was ipadic until September 2024 (its pull request 33372), unidic_lite since then.
        unnamed = kind == "mecab" and not {"mecab_dic", "mecab_option"} & {name for name in options if options[name]}
        hint = f'. An older model meant ipadic; if its words were cut with {_DICTIONARY}, add "mecab_dic": "{_DICTIONARY}"'
        raise DataError(
            f"BertJapaneseTokenizer with {kind} ({'no mecab_dic in mecab_kwargs' if unnamed else options}) and {subwords} "
            f"cannot be used here; mecab with {_DICTIONARY} and wordpiece can{hint if unnamed else ''}",
            location=location,
        )
    steps = json.dumps(settings.corpus_normalization) if settings.corpus_normalization else ""
    return Segmenter(kind, settings.do_lower_case and "do_lower_case" in settings.model_fields_set, steps)


@cache
def _steps(normalization: str) -> AlignedSteps:
    return AlignedSteps(json.loads(normalization or "[]"))


def _cut(text: str, names: Sequence[str]) -> list[str]:
    """The text before the first of the names, that name, the text up to the next one, …"""
    longest_first = sorted(names, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if names else [text]


def _around(cut: list[list[_Text]], segment: Callable[[list[_Text]], list[_Text]]) -> list[list[_Text]]:
    """Segment every first, third, … part."""
    found = iter(segment([part for parts in cut for part in parts[::2]]))
    return [[part if number % 2 else next(found) for number, part in enumerate(parts)] for parts in cut]


def _surfaces(texts: list[str], analyser: analysers.Analyser) -> Iterator[list[str]]:
    pieces = [analysers.cut(text) for text in texts]
    found = analyser.morphemes([piece.text for some in pieces for piece in some])
    for some in pieces:
        yield [morpheme.text for _ in some for morpheme in next(found)]


def _stretches(texts: list[str], analyser: analysers.Analyser) -> Iterator[list[str]]:
    for text, offsets in zip(texts, analysers.word_offsets(texts, analyser), strict=True):
        yield [text[first:last] for first, last in pairwise([*offsets.tolist(), len(text)])]
