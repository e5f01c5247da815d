"""Reading third-party tokenizer files: the JSON settings beside them, and the tokenizers library's untyped errors."""

from __future__ import annotations

import base64
import contextlib
import math
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import PurePath
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, model_validator
from tokenizers import AddedToken, Tokenizer

from tpulm import storage
from tpulm.config.validation import validate_foreign
from tpulm.errors import DataError, TpulmError, brief, shorten
from tpulm.progress import held_stderr
from tpulm.tokenization.pipelines import steps

TOKENIZER_CONFIG = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"  # an older form of added_tokens_decoder in tokenizer_config.json
TOKEN_KEYS = ("unk_token", "bos_token", "eos_token", "pad_token", "cls_token", "sep_token", "mask_token")
SETTINGS_FILES = ("special_tokens_map.json", TOKENIZER_CONFIG)  # the latter takes precedence
_PANICS: Final = "pyo3_runtime"  # the module of PanicException, which is not an Exception and cannot be imported
_SAMPLE: Final = "A 1, 가 \U000f0000"  # the last character is in no vocabulary
_SLOW_SECONDS: Final = 60.0  # for the texts of one call, which take milliseconds
_MOST_GROWTH: Final = 200  # SentencePiece's tables make up to 18 characters of one
_MAY_BE_EMPTY: Final = re.compile(r"[*?|^$(]|\{0?,|\{0\}|\\[bBAzZGKR]")  # a pattern that matches between two characters
_LARGEST_ID: Final = 10_000_000  # tables have a row for every id
_CHARACTERS: Final = " ".join(map(chr, (*range(0xD800), *range(0xE000, 0x10000))))


class _HfModel(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)  # further keys are ignored


class HfToken(_HfModel):
    content: str
    single_word: bool | None = None
    lstrip: bool | None = None
    rstrip: bool | None = None
    normalized: bool | None = None
    special: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise ValueError("Input should be a token: its text, or an object with its content")
        return {"content": value} if isinstance(value, str) else value

    def added(self) -> AddedToken:
        return AddedToken(**self.model_dump(exclude_none=True))


class HfSettings(_HfModel):
    """The keys of tokenizer_config.json and special_tokens_map.json, None where they are absent or null."""

    tokenizer_class: str | None = None
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    word_tokenizer_type: str = "basic"
    subword_tokenizer_type: str = "wordpiece"
    mecab_kwargs: dict[str, Any] | None = None
    model_max_length: Any = None
    truncation_side: str | None = None
    add_prefix_space: bool | None = None
    add_bos_token: bool | None = None
    corpus_normalization: list[dict[str, Any]] = []  # of a segmenter of ours
    added_tokens_decoder: dict[str, HfToken] = {}
    pad_token: HfToken | None = None
    unk_token: HfToken | None = None
    cls_token: HfToken | None = None
    sep_token: HfToken | None = None
    mask_token: HfToken | None = None
    bos_token: HfToken | None = None
    eos_token: HfToken | None = None
    additional_special_tokens: list[HfToken] | None = None
    extra_special_tokens: list[HfToken] | dict[str, HfToken] | None = None  # what transformers 5 calls them

    def token(self, key: str) -> str | None:
        """The text of the token under a key, if any."""
        value: HfToken | None = getattr(self, key)
        return None if value is None else value.content


def read_settings(folder: PurePath, names: Iterable[str] = SETTINGS_FILES) -> HfSettings:
    """The settings in the files that exist. Raises DataError naming file and key for a value of the wrong type."""
    values: dict[str, Any] = {}
    for name in names:
        if storage.exists(folder / name):
            content = storage.read_given_object(folder / name)
            validate_foreign(HfSettings, content, str(folder / name))
            values |= content
    return HfSettings.model_validate(values)


def read_ids(path: PurePath) -> dict[str, int]:
    """A JSON object from tokens to ids, which must fit in the library's 32 bits."""
    ids = storage.read_given_object(path)
    wrong = next((token for token, index in ids.items() if type(index) is not int or not 0 <= index < 1 << 32), None)
    if wrong is not None:
        message = f"not a vocabulary: the id of {wrong!r} is {brief(ids[wrong])}, not a whole number"
        raise DataError(message, location=str(path))
    return ids


def add_hf_tokens(tokenizer: Tokenizer, path: PurePath, settings: HfSettings) -> None:
    """Add the tokens that are matched in a text before it is split into words, as transformers does for a vocabulary's file.

    Raises DataError if the files beside `path` number them otherwise, and for a token of which normalization leaves nothing:
    with one the library encodes without end.
    """
    expected: dict[int, AddedToken] = {}
    extra = settings.extra_special_tokens or []
    further = [*(settings.additional_special_tokens or []), *(extra.values() if isinstance(extra, dict) else extra)]
    special = {*map(settings.token, TOKEN_KEYS), *(token.content for token in further)}
    added_file = path.with_name(ADDED_TOKENS)
    for name, index in (read_ids(added_file) if storage.exists(added_file) else {}).items():
        expected[index] = AddedToken(name, special=name in special)
    for index, token in settings.added_tokens_decoder.items():
        if not index.isdecimal():
            raise DataError(f"added_tokens_decoder: {index!r} is no id", location=str(path.with_name(TOKENIZER_CONFIG)))
        expected[int(index)] = token.added()
    for index, token in sorted(expected.items()):
        tokenizer.add_tokens([token])
        if (actual := tokenizer.token_to_id(token.content)) != index:
            raise DataError(
                f"{token.content!r} should be token {index}, but {path.name} makes it {actual}: {ADDED_TOKENS} or "
                f"{TOKENIZER_CONFIG} is of another tokenizer; copy its files again",
                location=str(path.parent),
            )
    known = {token.content for token in expected.values()}
    tokenizer.add_special_tokens([one.added() for one in further if one.content not in known])
    for token in tokenizer.get_added_tokens_decoder().values() if tokenizer.normalizer else ():
        if token.normalized and not tokenizer.normalizer.normalize_str(token.content):
            advice = f'"normalized": false for it, in {TOKENIZER_CONFIG} and tokenizer.json, has it found as it is written'
            raise DataError(f"of the added token {token.content!r} normalization leaves nothing; {advice}", location=str(path))


@contextlib.contextmanager
def guarded(location: str | None = None, problem: str = "the tokenizers library cannot read it") -> Iterator[None]:
    """Turn whatever the library raises inside the block into a DataError, and suppress what a panic prints.

    Without a location, while texts are encoded, only panics are turned, and stderr is not held back, which takes time.
    """
    with contextlib.nullcontext() if location is None else held_stderr() as held:
        try:
            yield
        except TpulmError:
            raise
        except BaseException as error:
            is_panic = type(error).__module__ == _PANICS
            if not is_panic and (held is None or not isinstance(error, Exception)):
                raise
            reason = shorten(str(error), 300, quoted=False)
            if held is None:
                problem = f"this tokenizer cannot read the text ({reason}); see the patterns in its tokenizer.json"
                raise DataError(problem) from error
            if is_panic:
                held.truncate(0)
            raise DataError(f"{problem}: {reason}", location=location) from error


@contextlib.contextmanager
def watched(tokenizer: Tokenizer, texts: Sequence[str], *, seconds: float = _SLOW_SECONDS) -> Iterator[None]:
    """Warn, naming the tokenizer's patterns and the longest of the texts, if their encoding inside the block takes so long: a
    regular expression may take exponential time, in which the library cannot be stopped."""

    def warn() -> None:
        patterns = sorted(set(re.findall(r'"Regex": ?("(?:[^"\\]|\\.)*")', tokenizer.to_str())))
        warnings.warn(
            f"{len(texts):,} texts have been encoded for {seconds:g} s, the longest being {shorten(max(texts, key=len))}. "
            f"If this does not end, a pattern of tokenizer.json takes too long on them: {', '.join(patterns) or 'it has none'}",
            stacklevel=2,
        )

    timer = threading.Timer(seconds, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_growth(specification: dict[str, Any], location: str) -> None:
    """Raise DataError for a tokenizer.json whose rules may make a text so long that it fills the memory."""
    for part, key in (("normalizer", "normalizers"), ("decoder", "decoders")):
        growth = math.prod(map(_growth, steps(specification.get(part), key)))
        if growth > _MOST_GROWTH:
            raise DataError(
                f"its {part} may make a text {growth:,} times as long, and {_MOST_GROWTH} times is the most that is read; "
                "shorten what its rules insert",
                location=location,
            )


def _growth(step: dict[str, Any]) -> int:
    """The most characters that a step makes of one; of steps that insert at an end, or by Unicode's tables, 1."""
    if step["type"] == "Precompiled":  # the trie's size, the trie, and the texts that it leads to
        table = base64.b64decode(step["precompiled_charsmap"])
        return max(len(text) for text in table[4 + int.from_bytes(table[:4], "little") :].decode(errors="replace").split("\0"))
    if step["type"] != "Replace":
        return 1
    pattern, content = step["pattern"], len(step["content"])
    if "String" in pattern:
        return -(-content // max(1, len(pattern["String"])))
    return max(1, content + bool(_MAY_BE_EMPTY.search(pattern["Regex"])))


def check_usable(tokenizer: Tokenizer, location: str, *, has_compiled_rules: bool = False) -> None:
    """Raise DataError for a tokenizer that loads but fails on text: without a token for unknown characters, or damaged.

    `has_compiled_rules`: SentencePiece's table is used unchanged, so damage in it shows only at single characters.
    """
    with guarded(location, "the tokenizers library reads it, but cannot encode text with it, so it is damaged or incomplete"):
        if has_compiled_rules:
            tokenizer.normalizer.normalize_str(_CHARACTERS)
        tokenizer.decode(tokenizer.encode(_SAMPLE).ids)
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=itemgetter(1))
    if largest > _LARGEST_ID:
        raise DataError(f"{token!r} has the id {largest:,}; ids end at {_LARGEST_ID:,}", location=location)
