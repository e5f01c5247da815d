"""GPT-2's two files, vocab.json and merges.txt, as a tokenizer of the tokenizers library."""

from __future__ import annotations

from pathlib import PurePath

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm import storage
from tpulm.errors import DataError, brief
from tpulm.tokenization.given import TOKENIZER_CONFIG, GivenSettings
from tpulm.tokenization.guard import check_usable, guarded

VOCABULARY, MERGES = "vocab.json", "merges.txt"
_VERSION = "#version"  # how the first line of merges.txt begins
_ADDED = "added_tokens.json"  # older than added_tokens_decoder of tokenizer_config.json
_NAMED = ("unk_token", "bos_token", "eos_token", "pad_token")
_USUAL = "<|endoftext|>"


def read_gpt2_files(folder: PurePath, settings: GivenSettings) -> Tokenizer:
    """Byte-level BPE as transformers' GPT2Tokenizer makes it; `settings` are those of tokenizer_config.json.

    Raises DataError where the files contradict each other.
    """
    vocabulary = _read_vocabulary(folder / VOCABULARY)
    if not storage.exists(folder / MERGES):
        raise DataError(f"{MERGES} is missing beside {VOCABULARY}; copy both, or a tokenizer.json", location=str(folder))
    merges = _read_merges(folder / MERGES)
    with guarded(str(folder), f"{MERGES} does not go with {VOCABULARY} (copy both again)"):
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.add_prefix_space))
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, folder, settings)
    check_usable(tokenizer, str(folder / VOCABULARY))
    return tokenizer


def _read_vocabulary(path: PurePath) -> dict[str, int]:
    ids = _read_ids(path)
    if not ids:
        raise DataError("the vocabulary is empty", location=str(path))
    if len(set(ids.values())) < len(ids):
        raise DataError("two tokens of the vocabulary share an id", location=str(path))
    return ids


def _read_ids(path: PurePath) -> dict[str, int]:
    """An object of tokens and their ids, which the library has in 32 bits."""
    ids = storage.read_given_object(path)
    wrong = next((token for token, index in ids.items() if type(index) is not int or not 0 <= index < 1 << 32), None)
    if wrong is not None:
        shown = brief(ids[wrong])
        raise DataError(f"not a vocabulary: the id of {wrong!r} is {shown}, not a whole number", location=str(path))
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


def _add_tokens(tokenizer: Tokenizer, folder: PurePath, settings: GivenSettings) -> None:
    """Those that are found in a text before it is cut into words, and those that were added behind the vocabulary."""
    wanted: dict[int, AddedToken] = {}
    older = _read_ids(folder / _ADDED) if storage.exists(folder / _ADDED) else {}
    for name, index in older.items():
        wanted[index] = AddedToken(name, normalized=False, special=True)
    for index, token in settings.added_tokens_decoder.items():
        if not index.isdecimal():
            raise DataError(f"added_tokens_decoder: {index!r} is no id", location=str(folder / TOKENIZER_CONFIG))
        wanted[int(index)] = AddedToken(token.content, **token.flags)
    for index, token in sorted(wanted.items()):
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != index:
            raise DataError(
                f"{token.content!r} should be token {index}, but {VOCABULARY} makes it {tokenizer.token_to_id(token.content)}; "
                "copy the tokenizer's files again",
                location=str(folder),
            )
    named = [settings.token(key) for key in _NAMED]
    known = {token.content for token in wanted.values()}
    for name in (*named, _USUAL):
        if name is not None and name not in known and tokenizer.token_to_id(name) is not None:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False)])
