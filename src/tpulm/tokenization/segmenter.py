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
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple

from tpulm.errors import DataError
from tpulm.tokenization import analysers
from tpulm.tokenization.hf_files import HfSettings
from tpulm.tokenization.offsets import AlignedSteps, Derived, subsequence
from tpulm.tokenization.pipelines import without_surrogates

_FORMS: Final[dict[analysers.Name, Literal["NFC", "NFKC"]]] = {"mecab": "NFKC", "kiwi": "NFC"}
_DICTIONARY: Final = "unidic_lite"
_DEFAULTS: Final = {"normalize_text": True, "mecab_option": None}  # of mecab_kwargs


class Segmenter(NamedTuple):
    """Splits texts. Two segmenters are equal if they split alike; the analyser is loaded on first use."""

    analyser: analysers.Name
    lowercase: bool = False
    normalization: str = "[]"  # what was done to the corpus's characters: steps of tokenizer.json, as JSON

    def segment(self, texts: list[str], names: Sequence[str] = ()) -> list[str]:
        """The texts as morphemes separated by one space, around the names of added tokens. Raises MissingExtra."""
        if names:
            return [text.text for text in self.segment_aligned(list(map(Derived.original, texts)), names)]
        joined = self._joined([self._normalized(without_surrogates(text)) for text in texts])
        return [self._lowered(text) for text in joined]

    def segment_aligned(self, texts: list[Derived], names: Sequence[str] = ()) -> list[Derived]:
        """`segment` for texts without surrogates, with the original characters that each character comes from."""
        steps, form = _steps(self.normalization), partial(unicodedata.normalize, _FORMS[self.analyser])
        cut = [_around(text, names) for text in texts]
        normalized = [steps.normalized(part).mapped(form) for parts in cut for part in parts[::2]]
        segmented = list[Derived]()
        for text, joined in zip(normalized, self._joined([text.text for text in normalized]), strict=True):
            places = subsequence(joined, text.text.replace("\0", "\ufffd"))
            segmented.append(text.then(Derived(joined, places)).mapped(self._lowered))
        rest = iter(segmented)
        return [Derived.joined(part if number % 2 else next(rest) for number, part in enumerate(parts)) for parts in cut]

    def _normalized(self, text: str) -> str:
        for _, step in _steps(self.normalization).steps:
            text = step.normalize_str(text)
        return unicodedata.normalize(_FORMS[self.analyser], text)

    def _lowered(self, text: str) -> str:
        return " ".join(map(str.lower, text.split(" "))) if self.lowercase else text

    def _joined(self, texts: list[str]) -> list[str]:
        analyser = analysers.load(self.analyser)
        if self.analyser == "mecab":
            words = ([one.text for one in morphemes] for morphemes in analysers.morphemes_of(texts, analyser))
        else:
            words = _between_words(texts, analyser)
        # Split again: some white space of Python, at which transformers splits, is a symbol to MeCab.
        return [" ".join(" ".join(some).split()) for some in words]

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
            **({"corpus_normalization": steps} if (steps := json.loads(self.normalization)) else {}),
        }


def declared_segmenter(settings: HfSettings, location: str) -> Segmenter | None:
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
    lowercase = settings.do_lower_case and "do_lower_case" in settings.model_fields_set
    return Segmenter(kind, lowercase, json.dumps(settings.corpus_normalization))


@cache
def _steps(normalization: str) -> AlignedSteps:
    return AlignedSteps(json.loads(normalization))


def _around(text: Derived, names: Sequence[str]) -> list[Derived]:
    """The text before the first of the names, that name, the text up to the next one, …, as transformers cuts it."""
    longest_first = sorted(names, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text.text) if names else [text.text]
    return [Derived(text.text[a:b], text.spans[a:b]) for a, b in pairwise(accumulate(map(len, parts), initial=0))]


def _between_words(texts: list[str], analyser: analysers.Analyser) -> Iterator[list[str]]:
    for text, offsets in zip(texts, analysers.word_offsets(texts, analyser), strict=True):
        yield [text[first:last] for first, last in pairwise([*offsets.tolist(), len(text)])]
