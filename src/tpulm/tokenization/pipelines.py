"""The stock `tokenizers` pipeline of each algorithm, before it has a vocabulary.

Everything here is written to tokenizer.json, so that any reader of that file splits text as training did.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tpulm.config import TokenizerConfig
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import special

CONTINUATION = "##"
SPACE = "▁"  # how Unigram's vocabulary writes the space before a word
MAX_WORD_CHARACTERS = 100  # WordPiece: a longer word is unknown as a whole, as in Google's code

# Unigram: letters with their marks and digits together, other visible signs together, each with the space before it; line ends
# and other blanks apart. Without it a Japanese line would be one word, and the trainer's time and memory explode.
_UNIGRAM_WORDS = rf"{SPACE}?[\p{{L}}\p{{M}}\p{{N}}]+|{SPACE}?[^\s\p{{L}}\p{{M}}\p{{N}}{SPACE}]+|\s+|{SPACE}"


class Specified(NamedTuple):
    """A tokenizer, and its tokenizer.json as objects: writing and parsing that takes as long as encoding many a text."""

    tokenizer: Tokenizer
    specification: dict[str, Any]


def specified(tokenizer: Tokenizer) -> Specified:
    return Specified(tokenizer, json.loads(tokenizer.to_str()))


def wordpiece(config: TokenizerConfig, *, as_google: bool = False) -> Tokenizer:
    """BERT's normalizer and pre-tokenizer.

    Stripping accents decomposes every character first, and Google's code leaves it so, which breaks a Hangul syllable into
    three letters. Here it is composed again, unless `as_google`: a vocabulary made with their code expects the letters.

    With `config.morphemes` the text comes as words with spaces between them, and is split there.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=special.UNKNOWN, max_input_chars_per_word=MAX_WORD_CHARACTERS))
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    if config.morphemes != "none":
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer
    bert = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.split_cjk,
        strip_accents=config.strip_accents,
        lowercase=config.lowercase,
    )
    compose = config.strip_accents and not as_google
    tokenizer.normalizer = normalizers.Sequence([bert, normalizers.NFC()]) if compose else bert
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bpe(config: TokenizerConfig) -> Tokenizer:
    """GPT-2's byte-level words: no character is ever unknown."""
    tokenizer = Tokenizer(models.BPE())
    _set_normalizer(tokenizer, config)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram(config: TokenizerConfig) -> Tokenizer:
    """SentencePiece's spaces, words bounded at punctuation, bytes for rare characters."""
    tokenizer = Tokenizer(models.Unigram())
    _set_normalizer(tokenizer, config)
    tokenizer.pre_tokenizer = unigram_words("always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement=SPACE)])
    return tokenizer


def unigram_words(prepend_scheme: Literal["always", "never"]) -> pre_tokenizers.PreTokenizer:
    """What cuts text for our Unigram; "always" puts a space before each text."""
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=prepend_scheme)
    return pre_tokenizers.Sequence([metaspace, pre_tokenizers.Split(Regex(_UNIGRAM_WORDS), "isolated")])


def steps(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A normalizer (`key` "normalizers") or pre-tokenizer ("pretokenizers") of tokenizer.json as a flat list."""
    if component is None:
        return []
    if component["type"] == "Sequence":
        return [step for part in component[key] for step in steps(part, key)]
    return [component]


def is_unigram(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer of tokenizer.json is that of `unigram`, whatever it puts before a text."""
    match pre_tokenizer:
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Metaspace", "replacement": replacement, "split": True},
                {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False},
            ],
        }:
            return replacement == SPACE and expression == _UNIGRAM_WORDS
    return False


def add_special_tokens(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    """Make the five tokens known as special, and frame texts as [CLS] A [SEP] B [SEP] with types 0 and 1."""
    names = {index: tokenizer.id_to_token(index) for index in sorted(set(tokens))}
    spaced = tokenizer.model.__class__.__name__ != "WordPiece"  # these models write the space before a word into the word
    tokenizer.add_special_tokens(
        [AddedToken(name, lstrip=spaced and index == tokens.mask, normalized=False) for index, name in names.items()]
    )
    frame(tokenizer, tokens)


def frame(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    cls, sep = tokenizer.id_to_token(tokens.cls), tokenizer.id_to_token(tokens.sep)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, tokens.cls), (sep, tokens.sep)],
    )


def frame_causal(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    """For a causal model a text begins with [SEP], the end of the one before, and is open at its own end."""
    sep = tokenizer.id_to_token(tokens.sep)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{sep} $A", pair=f"{sep} $A {sep} $B", special_tokens=[(sep, tokens.sep)]
    )


def _set_normalizer(tokenizer: Tokenizer, config: TokenizerConfig) -> None:
    steps: list[normalizers.Normalizer] = []
    if config.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
