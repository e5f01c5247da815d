"""GPT-2's two files, vocab.json and merges.txt, as a tokenizer of the tokenizers library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm import storage
from tpulm.errors import DataError

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_VERSION = "#version"  # how the first line of merges.txt begins
_ADDED = "added_tokens.json"  # older than added_tokens_decoder of tokenizer_config.json
_NAMED = ("unk_token", "bos_token", "eos_token", "pad_token")
_USUAL = "<|endoftext|>"


def read_gpt2_files(folder: PurePath, settings: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE as transformers' GPT2Tokenizer makes it; `settings` are those of tokenizer_config.json.

    Raises DataError where the files contradict each other.
    """
    vocabulary = _read_vocabulary(folder / VOCABULARY)
    if not storage.exists(folder / MERGES):
        raise DataError(f"{MERGES} is missing beside {VOCABULARY}; copy both, or a tokenizer.json", location=str(folder))
    try:
        model = models.BPE(vocabulary, _read_merges(folder / MERGES), continuing_subword_prefix="", end_of_word_suffix="")
    except DataError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise DataError(f"{MERGES} does not go with {VOCABULARY}: {error}; copy both again", location=str(folder)) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, folder, settings)
    return tokenizer


def _read_vocabulary(path: PurePath) -> dict[str, int]:
    ids = storage.read_given_object(path)
    if not ids or not all(isinstance(index, int) and index >= 0 for index in ids.values()):
        raise DataError("not a vocabulary: expected an object of tokens and their ids", location=str(path))
    if len(set(ids.values())) < len(ids):
        raise DataError("two tokens of the vocabulary share an id", location=str(path))
    return ids


def _read_merges(path: PurePath) -> list[tuple[str, str]]:
    """A pair a line, the most important first."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(storage.read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith(_VERSION):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise DataError(f"a line has two tokens and a space between them, not {line!r}", location=f"{path}:{number}")
        merges.append((left, right))
    return merges


def _add_tokens(tokenizer: Tokenizer, folder: PurePath, settings: Mapping[str, Any]) -> None:
    """Those that are found in a text before it is cut into words, and those that were added behind the vocabulary."""
    wanted: dict[int, AddedToken] = {}
    older = storage.read_given_object(folder / _ADDED) if storage.exists(folder / _ADDED) else {}
    for name, index in older.items():
        wanted[index] = AddedToken(name, normalized=False, special=True)
    for index, token in settings.get("added_tokens_decoder", {}).items():
        flags = {flag: bool(token.get(flag)) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        wanted[int(index)] = AddedToken(token["content"], **flags)
    for index, token in sorted(wanted.items()):
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != index:
            raise DataError(
                f"{token.content!r} should be token {index}, but {VOCABULARY} makes it {tokenizer.token_to_id(token.content)}; "
                "copy the tokenizer's files again",
                location=str(folder),
            )
    named = [text_of(settings.get(key)) for key in _NAMED]
    known = {token.content for token in wanted.values()}
    for name in (*named, _USUAL):
        if name is not None and name not in known and tokenizer.token_to_id(name) is not None:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False)])


def text_of(token: Any) -> str | None:
    """A token as tokenizer_config.json states it: its text, or an object that has it."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
