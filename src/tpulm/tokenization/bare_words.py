"""Words that BERT's normaliser and pre-tokenizer leave as they are, and a shorter way to encode those.

Without the stripping of accents, BERT's normaliser looks at one character at a time, and so does its pre-tokenizer. A word all
of whose characters pass unchanged and unsplit needs only the WordPiece model. That is most words, and half of the work saved.
"""

from __future__ import annotations

import json

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from tpulm.tokenization.encoded import NOTHING, Encoded, ids_of

_JOINED_WORDS = 1024  # handed to the tokenizer as one string
_UNSEEN, _UNCHANGED, _CHANGED = range(3)


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
        self._character = np.full(0x110000, _UNSEEN, np.uint8)

    def are_bare(self, chunks: list[str]) -> np.ndarray:
        """Which of the chunks, none of them empty, are bare words; bool [N]."""
        points = np.frombuffer("".join(chunks).encode("utf-32-le"), "<u4")
        new = np.unique(points[self._character[points] == _UNSEEN])
        self._character[new] = [_UNCHANGED if self._passes(chr(point)) else _CHANGED for point in new.tolist()]
        sizes = np.fromiter(map(len, chunks), np.int64, len(chunks))
        changes = np.concatenate([[0], np.cumsum(self._character[points] == _CHANGED)])
        ends = np.cumsum(sizes)
        return changes[ends] == changes[ends - sizes]

    def encode(self, words: list[str]) -> Encoded:
        """The ids of bare words. Words are told apart by the sign that all their tokens but the first have."""
        groups = [words[start : start + _JOINED_WORDS] for start in range(0, len(words), _JOINED_WORDS)]
        ids = np.concatenate([NOTHING.ids, *ids_of(self._model, [" ".join(group) for group in groups])])
        starts = np.flatnonzero(self._begins_word[ids])
        return Encoded(ids, np.diff(starts, append=len(ids)).astype(np.int32))

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
