"""A tokenizer with its special tokens located: what the rest of tpulm works with."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tpulm.errors import ConfigError, DataError
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization.encode import Encoded, Encoder
from tpulm.tokenization.hf_files import guarded, watched
from tpulm.tokenization.offsets import Aligned, Aligner, Derived
from tpulm.tokenization.pipelines import (
    CONTINUATION,
    DROPPED,
    SPACE,
    frame,
    frame_causal,
    marking_dropped,
    without_special_names,
    without_surrogates,
)
from tpulm.tokenization.segmenter import Segmenter

# Line feed, carriage return and tab: by GPT-2's table of bytes, and as they are or, in a vocabulary without them, as bytes.
_BLANKS = {"BPE": ("Ċ", "č", "ĉ"), "Unigram": ("\n", "\r", "\t", "<0x0A>", "<0x0D>", "<0x09>")}


class Tokenization:
    """An immutable stock tokenizer, the ids of its special tokens, and fast encoding.

    It can be pickled, but in a worker process prefer `load` from the folder, which takes a tenth of a second.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        special: SpecialTokens,
        segmenter: Segmenter | None = None,
        *,
        reads_added: bool = False,
        keeps_end: bool = False,
    ):
        self._tokenizer = tokenizer
        self.special = special
        self.segmenter = segmenter  # cuts texts into morphemes before the tokenizer sees them
        self._reads_added = reads_added
        self.keeps_end = keeps_end  # of a labelled text that is too long (truncation_side "left"), and not its beginning

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(Tokenization, reads_added=self._reads_added, keeps_end=self.keeps_end)
        return make, (self._tokenizer, self.special, self.segmenter)  # without cached properties

    def __repr__(self) -> str:
        return f"Tokenization({self.algorithm}, {self.vocab_size:,} tokens, {self.fingerprint[:12]})"

    @cached_property
    def algorithm(self) -> str:
        """The library's name of the model: "WordPiece", "BPE", "Unigram" or "WordLevel"."""
        return type(self._tokenizer.model).__name__

    @cached_property
    def max_word_characters(self) -> int:
        """WordPiece: a longer word is unknown as a whole."""
        return getattr(self._tokenizer.model, "max_input_chars_per_word", sys.maxsize)

    @cached_property
    def vocab_size(self) -> int:
        """The largest id, plus one."""
        return 1 + max(self._ids.values())

    @cached_property
    def canonical_json(self) -> str:
        """tokenizer.json with sorted keys: the same tokenizer gives the same bytes."""
        return json.dumps(json.loads(self._tokenizer.to_str()), sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical tokenizer.json and the settings of its segmenter, in hexadecimal."""
        before = "" if self.segmenter is None else json.dumps(self.segmenter.settings(), sort_keys=True)
        return hashlib.sha256((self.canonical_json + before).encode()).hexdigest()

    @property
    def ends(self) -> frozenset[int]:
        """The ids that end a text of a causal model."""
        return frozenset((self.special.sep,))

    @cached_property
    def separators(self) -> int:
        """How many [SEP] stand between the two texts of a pair: one, or RoBERTa's two."""
        return max(1, len(self._tokenizer.encode("", "", add_special_tokens=True).ids) - 2)

    @cached_property
    def begins(self) -> int:
        """The id before a labelled text: [CLS], or [SEP] if made by `for_classes`."""
        framed = self._tokenizer.encode("", add_special_tokens=True).ids
        return self.special.sep if framed[:1] == [self.special.sep] else self.special.cls

    def normalized(self, text: str) -> str:
        """The text as its rules leave it, before it is split."""
        rules = self._tokenizer.normalizer
        text = text.lower() if self.segmenter is not None and self.segmenter.lowercase else text
        return text if rules is None else str(rules.normalize_str(text))

    @property
    def lowers_case(self) -> bool:
        return self.normalized("A") == self.normalized("a")

    def vocabulary(self) -> dict[str, int]:
        """Token -> id, in the order of the ids."""
        return dict(sorted(self._ids.items(), key=itemgetter(1)))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, texts: list[str]) -> Encoded:
        """The ids of every text, without special tokens; a special token's name within a text is plain text.

        A lone surrogate counts as U+FFFD.
        """
        if self.segmenter is not None:
            texts = self.segmenter.segment(texts, self._names_read)
        return self.encoder.encode(texts)

    def encode_with_offsets(self, texts: list[str]) -> Aligned:
        """The ids as `encode` gives them, and the characters of the original text that each token comes from.

        With a normalizer that decomposes characters (Hangul into letters), several tokens may come from one character.
        """
        texts = list(texts)
        derived = [Derived.original(text) for text in texts]
        if self.segmenter is not None:
            derived = self.segmenter.segment_aligned(derived, self._names_read)
        return self._aligner.align(derived, texts)

    @cached_property
    def _aligner(self) -> Aligner:
        library = without_special_names(self._tokenizer, self.special, reads_added=self._reads_added).tokenizer
        return Aligner(library, drops=self._marking is not None)

    @guarded()
    def dropped(self, texts: Sequence[str]) -> list[set[int]]:
        """The places in each text of the visible characters that the tokenizer drops, wholly or some of their bytes, because
        its vocabulary lacks them and has no unknown token. What its normalizer deletes is not dropped."""
        if self._marking is None:
            return [set() for _ in texts]
        valid, mark = list(map(without_surrogates, texts)), self._marking.token_to_id(DROPPED)
        with watched(self._marking, valid):
            encodings = self._marking.encode_batch(valid, add_special_tokens=False)
        spans = [[range(*span) for index, span in zip(one.ids, one.offsets, strict=True) if index == mark] for one in encodings]
        return [
            {place for place in chain.from_iterable(some) if not text[place].isspace()}
            for text, some in zip(valid, spans, strict=True)
        ]

    @cached_property
    def _marking(self) -> Tokenizer | None:
        return None if self.segmenter is not None else marking_dropped(self._tokenizer, self.special)

    @cached_property
    def reading_added(self) -> Tokenization:
        """The same tokenizer, which reads names of special tokens within a text, except those of the five roles."""
        added = self._tokenizer.get_added_tokens_decoder()
        if set(added) <= set(self.special):
            return self
        return Tokenization(self._tokenizer, self.special, self.segmenter, reads_added=True, keeps_end=self.keeps_end)

    @cached_property
    def _names_read(self) -> list[str]:
        """Names of added tokens that are read within a text."""
        added = self._tokenizer.get_added_tokens_decoder() if self._reads_added else {}
        return [token.content for index, token in added.items() if index not in self.special]

    @guarded()
    def encode_one(self, text: str, special_tokens: bool = True) -> list[int]:
        """The ids of one text, with [CLS] … [SEP] around it ([SEP] before it if made by `causal`); a literal "[MASK]" in it is
        the mask token.

        With `special_tokens` false, as `encode`.
        """
        if not special_tokens:
            return self.encode([text]).ids.tolist()
        if self.segmenter is not None:
            added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
            (text,) = self.segmenter.segment([text], added)
        with watched(self._tokenizer, [text]):
            return self._tokenizer.encode_batch([without_surrogates(text)], add_special_tokens=True)[0].ids

    @guarded()
    def decode(self, ids: Sequence[int] | np.ndarray, special_tokens: bool = False) -> str:
        """Readable text; special tokens are left out unless asked for."""
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=not special_tokens)

    def token(self, index: int) -> str:
        """The token of an id, as the vocabulary writes it. Raises DataError."""
        token = self._tokenizer.id_to_token(int(index))
        if token is None:
            raise DataError(f"id {index} has no token: ids of this vocabulary end at {self.vocab_size - 1:,}")
        return token

    def is_continuation(self, index: int) -> bool:
        """Whether the token of this id continues a word: "##ing", or one without the mark for a leading space.

        Byte-level and Unigram vocabularies write a text's first word, and punctuation after a word, without that mark.
        """
        token = self.token(index)
        if index in tuple(self.special):
            return False
        match self.algorithm:
            case "WordPiece":
                return token.startswith(CONTINUATION) and token != CONTINUATION
            case "BPE":
                return not token.startswith(("Ġ", SPACE))
            case "Unigram":
                return not token.startswith(SPACE)
        return False

    def word_starts(self) -> np.ndarray:
        """Whether the token of each id begins a word, wherever it stands; bool [V].

        Line ends and tabs do, too, except in WordPiece's, which has none. The first token of a text always begins a word.
        """
        starts, blanks = np.ones(self.vocab_size, bool), _BLANKS.get(self.algorithm, ())
        for token, index in self.vocabulary().items():
            starts[index] = token.startswith(blanks) or not self.is_continuation(index)
        return starts

    def causal(self) -> Tokenization:
        """The same tokenizer for a causal model: `encode_one` puts [SEP] before a text, as in causal rows."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        frame_causal(tokenizer, self.special.sep)
        return Tokenization(tokenizer, self.special, keeps_end=self.keeps_end)

    def for_classes(self) -> Tokenization:
        """The same tokenizer for a causal model that classifies texts: [SEP] A [SEP], and of a pair [SEP] A [SEP] B [SEP]. In
        pretraining, too, a text has [SEP] before and after it, and [CLS] is never seen."""
        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        frame(tokenizer, replace(self.special, cls=self.special.sep))
        return Tokenization(tokenizer, self.special, self.segmenter, keeps_end=self.keeps_end)

    def plain(self) -> Tokenizer:
        """A stock tokenizer that adds nothing and takes special tokens' names as plain text; has offsets, unlike `encode`.

        Raises ConfigError with a segmenter: the stock tokenizer would skip it, and offsets would be those of other text.
        """
        if self.segmenter is not None:
            raise ConfigError(
                f"this tokenizer splits texts into morphemes first ({self.segmenter.analyser}), so its tokens' offsets in a "
                "text are not known; it can encode (run, fill-mask, finetune, classify), and nothing else"
            )
        return without_special_names(self._tokenizer, self.special).tokenizer

    @cached_property
    def encoder(self) -> Encoder:
        """The bulk encoder."""
        return Encoder(self._tokenizer, self.special, reads_added=self._reads_added)
