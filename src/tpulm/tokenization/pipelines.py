"""The stock `tokenizers` pipeline of each algorithm before it has a vocabulary, and changes to finished tokenizers.

Every pipeline is written to tokenizer.json in full, so any reader of that file splits text as training did.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tpulm.config import CleaningConfig, TokenizerConfig
from tpulm.corpus.cleaning import CONTROLS, ODD_BLANKS
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import special

CONTINUATION = "##"
SPACE = "▁"  # how Unigram's vocabulary writes the space before a word
MAX_WORD_CHARACTERS = 100  # WordPiece: a longer word is unknown as a whole, as in Google's code

# Unigram: letters, their marks and digits together; other visible characters together; each with the space before it; line ends
# and other blanks apart. Otherwise a Japanese line would be one word, and the trainer's time and memory would explode.
_UNIGRAM_WORDS = rf"{SPACE}?[\p{{L}}\p{{M}}\p{{N}}]+|{SPACE}?[^\s\p{{L}}\p{{M}}\p{{N}}{SPACE}]+|\s+|{SPACE}"

# BPE: GPT-2's words, except that a letter's marks and joiners are a part of its word, as Indic vowels and vowelled Arabic are
# written with them.
JOINERS: Final = "\u200c\u200d"
_BPE_WORDS: Final = rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}[\p{{L}}\p{{M}}{JOINERS}]*| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def wordpiece(config: TokenizerConfig, *, as_google: bool = False) -> Tokenizer:
    """BERT's normalizer and pre-tokenizer.

    Stripping accents first decomposes every character. Google's code leaves it decomposed, which breaks a Hangul syllable into
    three letters. Here it is composed again, unless `as_google`: a vocabulary made with their code expects the letters.

    With `config.morphemes` the input is morphemes separated by spaces, and is split only there.
    """
    tokenizer = Tokenizer(wordpiece_model({}))
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    if config.morphemes != "none":
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer
    bert = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=config.split_cjk, strip_accents=config.strip_accents, lowercase=config.lowercase
    )
    compose = config.strip_accents and not as_google
    tokenizer.normalizer = normalizers.Sequence([bert, normalizers.NFC()]) if compose else bert
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def wordpiece_model(vocabulary: dict[str, int]) -> models.WordPiece:
    return models.WordPiece(
        vocabulary,
        unk_token=special.UNKNOWN,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix=CONTINUATION,
    )


def bpe(config: TokenizerConfig) -> Tokenizer:
    """Byte-level words: no character is ever unknown."""
    tokenizer = Tokenizer(models.BPE())
    _set_normalizer(tokenizer, config)
    words = pre_tokenizers.Split(Regex(_BPE_WORDS), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram(config: TokenizerConfig) -> Tokenizer:
    """SentencePiece's spaces, words split at punctuation, bytes for rare characters."""
    tokenizer = Tokenizer(models.Unigram())
    _set_normalizer(tokenizer, config)
    tokenizer.pre_tokenizer = unigram_words()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement=SPACE)])
    return tokenizer


def unigram_words() -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of our Unigram, which puts a space before each text."""
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    return pre_tokenizers.Sequence([metaspace, pre_tokenizers.Split(Regex(_UNIGRAM_WORDS), "isolated")])


# -- the corpus's normalization --


def _replace(kind: Literal["String", "Regex"], pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


_FORMS: Final = ("NFC", "NFD", "NFKC", "NFKD")
_ODD: Final = "".join(ODD_BLANKS)  # stand in the pattern themselves: not every reader's expressions know \x{3000}
_COLLAPSE: Final = [
    _replace("String", "\r\n", "\n"),
    _replace("Regex", f"[ {_ODD}]{{2,}}|[{_ODD}]", " "),
    _replace("Regex", " \n ?|\n ", "\n"),
]
_REMOVE: Final = _replace("Regex", CONTROLS, "")
_REPEATS: Final = re.compile(r"\(\[\^\\d\]\)\(\?=\\1\{(\d+)\}\)")


def normalization(cleaning: CleaningConfig) -> list[dict[str, Any]]:
    """What cleaning does to the corpus's characters, wherever they stand, as steps of tokenizer.json.

    Blanks at the edges of a text stay: sentences are encoded with the blank before them.
    """
    form = [] if cleaning.unicode_form == "none" else [{"type": cleaning.unicode_form}]
    repeats = [_replace("Regex", rf"([^\d])(?=\1{{{cleaning.max_repeats}}})", "")] if cleaning.max_repeats else []
    return [_REMOVE, *form, *(_COLLAPSE if cleaning.whitespace == "collapse" else []), *repeats]


def normalization_before(whole: list[dict[str, Any]]) -> tuple[CleaningConfig, list[dict[str, Any]]]:
    """The settings whose `normalization` a normalizer's steps begin with, and these; older versions removed no controls."""
    first = [step for step in whole[:1] if step == _REMOVE]
    remaining = whole[len(first) :]
    forms: Any = [step["type"] for step in remaining[:1] if step["type"] in _FORMS] or ["none"]
    patterns = [step.get("pattern", {}).get("Regex", "") for step in remaining[: 2 + len(_COLLAPSE)]]
    repeats = [int(match[1]) for match in map(_REPEATS.fullmatch, patterns) if match and int(match[1]) >= 2]
    whitespace = "collapse" if _COLLAPSE[0] in remaining else "keep"
    read = CleaningConfig(unicode_form=forms[0], whitespace=whitespace, max_repeats=repeats[0] if repeats else None)
    if remaining[: len(normalization(read)) - 1] != normalization(read)[1:]:
        read = CleaningConfig(unicode_form=forms[0], whitespace="keep")
    return read, [*first, *normalization(read)[1:]]


def in_sequence(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Steps as one normalizer of tokenizer.json."""
    return {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else steps[0] if steps else None


def normalizer(steps: list[dict[str, Any]]) -> Any:
    """The normalizer of these steps; None without any."""
    empty = json.loads(Tokenizer(models.BPE()).to_str())
    return Tokenizer.from_str(json.dumps({**empty, "normalizer": in_sequence(steps)})).normalizer


def steps(component: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A normalizer (`key` "normalizers") or pre-tokenizer ("pretokenizers") of tokenizer.json as a flat list."""
    if component is None:
        return []
    if component["type"] == "Sequence":
        return [step for part in component[key] for step in steps(part, key)]
    return [component]


_OURS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "unigram": (
        {"type": "Metaspace", "replacement": SPACE, "split": True},
        {"type": "Split", "pattern": {"Regex": _UNIGRAM_WORDS}, "behavior": "Isolated", "invert": False},
    ),
    "bpe": (
        {"type": "Split", "pattern": {"Regex": _BPE_WORDS}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    ),
}


def is_ours(algorithm: Literal["unigram", "bpe"], pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer of tokenizer.json is that of `unigram` or `bpe`, with any prepend scheme."""
    found = steps(pre_tokenizer, "pretokenizers")
    return len(found) == 2 and all(own.items() <= one.items() for own, one in zip(_OURS[algorithm], found, strict=True))


def add_special_tokens(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    """Register the five tokens as special, and frame texts as [CLS] A [SEP] B [SEP] with token types 0 and 1."""
    names = {index: tokenizer.id_to_token(index) for index in sorted(set(tokens))}
    spaced = tokenizer.model.__class__.__name__ != "WordPiece"  # these models include the space before a word in the word
    tokenizer.add_special_tokens(
        [AddedToken(name, lstrip=spaced and index == tokens.mask, normalized=False) for index, name in names.items()]
    )
    frame(tokenizer, tokens)


def frame(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    cls, sep = tokenizer.id_to_token(tokens.cls), tokenizer.id_to_token(tokens.sep)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=[(cls, tokens.cls), (sep, tokens.sep)]
    )


def frame_causal(tokenizer: Tokenizer, begin: int) -> None:
    """Begin texts with this token and add nothing at the end, as causal models expect."""
    name = tokenizer.id_to_token(begin)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, begin)]
    )


def _set_normalizer(tokenizer: Tokenizer, config: TokenizerConfig) -> None:
    steps: list[normalizers.Normalizer] = []
    if config.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)


# -- byte-level vocabularies --

# Visible Latin-1 bytes are written as themselves, the others as U+0100 and up (GPT-2, encoder.py, bytes_to_unicode).
_VISIBLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(256) if byte not in _VISIBLE)
_BYTE_OF: Final = {chr(byte): byte for byte in _VISIBLE} | {chr(0x100 + number): byte for number, byte in enumerate(_OTHERS)}
BYTE_CHARACTERS: Final = tuple(sorted(_BYTE_OF, key=_BYTE_OF.__getitem__))  # by byte


def to_byte_characters(text: str) -> str:
    return "".join(map(BYTE_CHARACTERS.__getitem__, text.encode()))


def from_byte_characters(token: str) -> bytes | None:
    """The bytes of a token; None for an added token, which is not in this notation."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return None


def is_byte_level(model: Mapping[str, Any]) -> bool:
    """Whether a model of tokenizer.json is BPE with a token for each byte."""
    return model["type"] == "BPE" and all(character in model["vocab"] for character in BYTE_CHARACTERS)


# -- special tokens' names as ordinary text --

# Corpus text may contain "[SEP]". The library's own switch, `encode_special_tokens`, stops the search for special tokens, but a
# model may still know the name as a word (Unigram and word-level vocabularies do). So a copy renames them to something no text
# contains, and leaves out merges that would produce one. Ids, scores and everything else are unchanged.
_HIDING: Final = f"\U0010fffc{secrets.token_hex(8)}"  # differs in each process, so no text can be crafted to contain it
DROPPED: Final = f"{_HIDING}dropped"


class Specified(NamedTuple):
    """A tokenizer and its parsed tokenizer.json: writing and parsing one takes as long as encoding many texts."""

    tokenizer: Tokenizer
    specification: dict[str, Any]


def without_special_names(tokenizer: Tokenizer, specials: SpecialTokens, *, reads_added: bool = False) -> Specified:
    """A copy without special tokens, padding or truncation, in which names of special tokens and slots are plain text.

    With `reads_added`, only those of the five roles and of slots: other added tokens are read, as transformers reads them.
    """
    specification = json.loads(tokenizer.to_str())
    roles = {tokenizer.id_to_token(index) for index in specials}
    names = roles | {token["content"] for token in specification["added_tokens"] if token["special"]}
    model = specification["model"]
    tokens = [token for token, _ in model["vocab"]] if isinstance(model["vocab"], list) else model["vocab"]
    names |= {token for token in tokens if token.startswith("[") and special.is_slot(token)}  # startswith() for speed
    if is_byte_level(model):
        names -= set(BYTE_CHARACTERS)  # a byte without a token would be dropped silently
    if reads_added:
        names = roles | names.difference(token["content"] for token in specification["added_tokens"])
    hidden = {name: f"{_HIDING}{name}{_HIDING}" for name in names if name is not None}

    if isinstance(model["vocab"], list):
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    else:
        model["vocab"] = {hidden.get(token, token): index for token, index in model["vocab"].items()}
    if model["type"] == "BPE":
        model["merges"] = _merges_without(hidden, model)
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    for token in specification["added_tokens"]:
        token["special"] &= not reads_added or token["content"] in roles
        token["content"] = hidden.get(token["content"], token["content"])
    specification["post_processor"] = specification["padding"] = specification["truncation"] = None
    copy = Tokenizer.from_str(json.dumps(specification))
    copy.encode_special_tokens = True
    return Specified(copy, specification)


def marking_dropped(tokenizer: Tokenizer, specials: SpecialTokens) -> Tokenizer | None:
    """A copy as of `without_special_names`, with the token `DROPPED` in place of what the library silently drops: characters
    that a BPE vocabulary lacks, and has no unknown token for. None if it drops nothing."""
    if not isinstance(tokenizer.model, models.BPE) or tokenizer.model.unk_token is not None:
        return None
    specification = without_special_names(tokenizer, specials).specification
    model = specification["model"]
    if is_byte_level(model):
        return None
    tokens = len(model["vocab"]) + len(specification["added_tokens"])
    model["vocab"][DROPPED] = 1 + max(2 * tokens, *model["vocab"].values())  # added tokens may be numbered anew
    copy = Tokenizer.from_str(json.dumps({**specification, "model": {**model, "unk_token": DROPPED}}))
    copy.encode_special_tokens = True
    return copy


def _merges_without(names: Collection[str], model: Mapping[str, Any]) -> list[list[str]]:
    """The merges of a BPE model that neither produce one of these tokens nor continue from one."""
    cut = len(model["continuing_subword_prefix"] or "")  # dropped from the second half when the two are joined
    return [
        [first, second]
        for first, second in model["merges"]
        if not (first in names or second in names or first + second[cut:] in names)
    ]


def without_surrogates(text: str) -> str:
    """Replace every lone surrogate, which UTF-8 cannot encode, by U+FFFD; a pair becomes its character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@cache
def marks() -> frozenset[int]:
    """Code points that `bpe` keeps with the letter before them, and GPT-2's words do not."""
    points = (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0))
    return frozenset(point for point in points if unicodedata.category(chr(point))[0] == "M") | set(map(ord, JOINERS))


@cache
def composing(first_hangul: int) -> frozenset[int]:
    """Code points that NFC composes with the previous character, and conjoining Hangul from `first_hangul` to U+11FF."""
    decompositions = (unicodedata.decomposition(chr(point)).split() for point in range(0xC0, 0x12000))
    seconds = {int(parts[1], 16) for parts in decompositions if len(parts) == 2 and not parts[0].startswith("<")}
    return frozenset((*seconds, *range(first_hangul, 0x1200)))
