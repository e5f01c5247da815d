"""Words that BERT's normaliser and pre-tokenizer leave as they are, and a shorter way to encode those.

Without the stripping of accents, BERT's normaliser looks at one character at a time, and so does its pre-tokenizer. A word all
of whose characters pass unchanged and unsplit needs only the WordPiece model. That is most words, and half of the work saved.
"""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

_JOINED_WORDS = 1024  # handed to the tokenizer as one string


class BareWords:
    """Encodes bare words of a tokenizer for which `possible` holds."""

    def __init__(self, tokenizer: Tokenizer):
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self._model = Tokenizer.from_str(tokenizer.to_str())
        self._model.encode_special_tokens = True
        self._model.normalizer = None
        self._model.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
        prefix = json.loads(tokenizer.to_str())["model"]["continuing_subword_prefix"]
        vocabulary = tokenizer.get_vocab()
        self._begins_word = np.ones(1 + max(vocabulary.values()), bool)
        self._begins_word[[index for token, index in vocabulary.items() if token.startswith(prefix)]] = False
        self._unchanged: set[str] = set()
        self._changed: set[str] = set()

    def divide(self, chunks: list[str]) -> tuple[list[str], list[str]]:
        """The chunks that are bare words, and the others."""
        for character in set(chain.from_iterable(chunks)) - self._unchanged - self._changed:
            (self._unchanged if self._passes(character) else self._changed).add(character)
        bare: list[str] = []
        others: list[str] = []
        is_bare = self._unchanged.issuperset
        for chunk in chunks:
            (bare if is_bare(chunk) else others).append(chunk)
        return bare, others

    def encode(self, words: list[str]) -> list[bytes]:
        """The ids (uint32) of each bare word. Words are told apart by the sign that all their tokens but the first have."""
        found: list[bytes] = []
        groups = [words[start : start + _JOINED_WORDS] for start in range(0, len(words), _JOINED_WORDS)]
        for encoding in self._model.encode_batch_fast([" ".join(group) for group in groups], add_special_tokens=False):
            ids = np.array(encoding.ids, np.uint32)
            starts = (4 * np.flatnonzero(self._begins_word[ids])).tolist()
            data = ids.tobytes()
            found += [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
        return found

    def _passes(self, character: str) -> bool:
        surrounded = f"a{character}a"
        normalized = self._normalizer.normalize_str(surrounded) if self._normalizer else surrounded
        return normalized == surrounded and len(self._pre_tokenizer.pre_tokenize_str(surrounded)) == 1


def possible(tokenizer: Tokenizer) -> bool:
    """Whether the normaliser and pre-tokenizer are BERT's, without accents, and the model is WordPiece with a prefix."""
    specification = json.loads(tokenizer.to_str())
    model, normalizer, pre_tokenizer = (specification[name] or {} for name in ("model", "normalizer", "pre_tokenizer"))
    if pre_tokenizer.get("type") != "BertPreTokenizer" or model["type"] != "WordPiece":
        return False
    prefix = model["continuing_subword_prefix"]
    if not prefix.startswith("#") or model["unk_token"].startswith(prefix):  # "#" is punctuation: no bare word has it
        return False
    if not normalizer:
        return True
    strips = normalizer.get("lowercase") if normalizer.get("strip_accents") is None else normalizer["strip_accents"]
    return normalizer["type"] == "BertNormalizer" and not strips
