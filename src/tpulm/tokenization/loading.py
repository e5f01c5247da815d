"""Taking a tokenizer from a folder, a tokenizer.json or a vocab.txt."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import PurePath
from typing import Any, NamedTuple

from tokenizers import Tokenizer, models

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError, DataError, StorageError, brief
from tpulm.progress import SILENT, Progress
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import pipelines, special
from tpulm.tokenization.given import TOKENIZER_CONFIG, read_settings
from tpulm.tokenization.guard import check_usable, guarded
from tpulm.tokenization.pipelines import CONTINUATION, MAX_WORD_CHARACTERS
from tpulm.tokenization.saving import load_manifest
from tpulm.tokenization.segmenter import Segmenter, declared
from tpulm.tokenization.tokenization import Tokenization


def load(path: str | os.PathLike[str], config: TokenizerConfig | None = None, *, progress: Progress = SILENT) -> Tokenization:
    """Read a folder (one written by `save`, or any with a tokenizer.json or vocab.txt), a tokenizer.json, SentencePiece's
    .model, or a vocab.txt.

    A vocab.txt says nothing of the text it is for: `lowercase`, `strip_accents` and `split_cjk` of `config` do. Raises
    StorageError for files that cannot be read, DataError for vocabularies that cannot be used.
    """
    source = storage.as_path(path)
    if storage.is_folder(source):
        return _from_folder(source, config, progress)
    settings = config or TokenizerConfig()
    wanted = None if settings.morphemes == "none" else Segmenter(settings.morphemes, settings.lowercase)
    if source.suffix not in (".json", ".model"):
        return _from_vocabulary(source, settings, progress, wanted)
    if source.suffix == ".json":
        read = read_tokenizer
    else:
        from tpulm.tokenization.sentencepiece_model import read  # and protobuf: a twentieth of a second
    found = _with_specials(read(source), source)
    if wanted is not None and found.segmenter is None:
        raise ConfigError(
            f"tokenizer.morphemes is '{settings.morphemes}', but {source} says itself how texts are cut, and not so; leave "
            "morphemes out, or name a vocab.txt that was made of morphemes"
        )
    return found


class Vocabulary(NamedTuple):
    """What a model must know of a tokenizer before it can be compiled."""

    vocab_size: int
    special: SpecialTokens


def expected(config: TokenizerConfig, path: str | os.PathLike[str] | None = None) -> Vocabulary:
    """Of the tokenizer that `config` leads to, or of the one at `path`: the one named, or one that is yet to be trained."""
    path = path or config.path
    if path is None:
        return Vocabulary(config.vocab_size, special.TRAINED)
    given = load(path, config)
    return Vocabulary(given.vocab_size, given.special)


def vocab_size_of(path: str | os.PathLike[str]) -> int:
    """The number of ids of a tokenizer that `load` could read, without building it."""
    source = storage.as_path(path)
    if storage.is_folder(source):
        manifest = load_manifest(source)
        if manifest is not None:
            return manifest["vocab_size"]
        source = _file_in(source)
    if source.suffix == ".model":
        return load(source).vocab_size
    if source.suffix != ".json":
        return len(_read_vocabulary(source))
    specification = _specification_of(storage.read_bytes(source), source)
    vocabulary = specification["model"]["vocab"]
    size = len(vocabulary) if isinstance(vocabulary, list) else 1 + max(vocabulary.values(), default=-1)
    return max(size, 1 + max((token["id"] for token in specification["added_tokens"]), default=-1))


def _from_folder(folder: PurePath, config: TokenizerConfig | None, progress: Progress) -> Tokenization:
    manifest = load_manifest(folder)
    source = _file_in(folder)
    if source.suffix != ".json":
        segmenter = _segmenter_beside(source)
        settings = config or TokenizerConfig()
        if segmenter is not None:
            settings = TokenizerConfig(lowercase=segmenter.lowercase, morphemes=segmenter.analyser)
        return _from_vocabulary(source, settings, progress, segmenter)
    content = storage.read_bytes(source)
    tokenization = _with_specials(_tokenizer_of(content, source), source)
    if manifest is not None and hashlib.sha256(content).hexdigest() == manifest["fingerprint"]:
        tokenization.fingerprint = manifest["fingerprint"]  # which takes longer to compute
    if manifest is not None and tokenization.fingerprint != manifest["fingerprint"]:
        raise StorageError(
            f"{source} was changed after it was written: its fingerprint is {tokenization.fingerprint[:16]}…, the manifest has "
            f"{manifest['fingerprint'][:16]}…. Restore it, or delete the folder and run again."
        )
    beside = folder / "vocab.txt"  # a copy of it for older tools, which the export has, too
    if manifest is not None and storage.exists(beside):
        wanted = "".join(f"{token}\n" for token in tokenization.vocabulary())
        if storage.read_bytes(beside) != wanted.encode():
            raise StorageError(
                f"{beside} is not the vocabulary of {source}: it was changed or damaged. Restore it, or delete it."
            )
    return tokenization


def _file_in(folder: PurePath) -> PurePath:
    for name in ("tokenizer.json", "vocab.txt"):
        if storage.exists(folder / name):
            return folder / name
    raise StorageError(f"{folder} holds no tokenizer: neither tokenizer.json nor vocab.txt is there")


def read_tokenizer(path: PurePath) -> Tokenizer:
    """A tokenizer.json as it is, but that it neither cuts nor fills texts: the dataset does. Raises DataError."""
    return _tokenizer_of(storage.read_bytes(path), path)


def _tokenizer_of(content: bytes, path: PurePath) -> Tokenizer:
    vocabulary = _specification_of(content, path)["model"]["vocab"]
    with guarded(str(path)):
        tokenizer = Tokenizer.from_buffer(content)
    if isinstance(vocabulary, dict) and len(set(vocabulary.values())) < len(vocabulary):
        index, count = Counter(vocabulary.values()).most_common(1)[0]
        names = [token for token, other in vocabulary.items() if other == index]
        raise DataError(
            f"{count} tokens share the id {index}: {', '.join(map(repr, names[:4]))}; give each its own", location=str(path)
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_usable(tokenizer, str(path), has_compiled_rules=b'"Precompiled"' in content)
    return tokenizer


def _with_specials(tokenizer: Tokenizer, path: PurePath) -> Tokenization:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = special.locate(vocabulary, str(path), _declared(path.parent))
    _refuse_bytes(tokenizer, tokens, path)
    known = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if not set(tokens) <= known:
        pipelines.add_special_tokens(tokenizer, tokens)
    if tokenizer.encode("", add_special_tokens=True).ids not in ([tokens.cls, tokens.sep], [tokens.sep]):
        pipelines.frame(tokenizer, tokens)
    return Tokenization(tokenizer, tokens, _segmenter_beside(path))


def _refuse_bytes(tokenizer: Tokenizer, tokens: SpecialTokens, path: PurePath) -> None:
    """A special token is never text, and of a byte-level vocabulary each byte must be."""
    names = {tokenizer.id_to_token(index) for index in tokens}
    taken = [character for character in pipelines.BYTE_CHARACTERS if character in names]
    if taken and pipelines.is_byte_level(json.loads(tokenizer.to_str())["model"]):
        raise DataError(
            f"{taken[0]!r} is declared as a special token, but is how this byte-level vocabulary writes a byte, so that text "
            "with it could not be encoded. Declare another in special_tokens_map.json or tokenizer_config.json",
            location=str(path),
        )


def _segmenter_beside(path: PurePath) -> Segmenter | None:
    """What the tokenizer_config.json beside a tokenizer says of morphemes."""
    return declared(read_settings(path.parent, [TOKENIZER_CONFIG]), str(path.parent / TOKENIZER_CONFIG))


def _specification_of(content: bytes, path: PurePath) -> dict[str, Any]:
    try:
        specification = storage.parse_json(content)
        vocabulary = specification["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            "not a tokenizer.json of the tokenizers library (an object with model.vocab). GPT-2's vocab.json with merges.txt "
            "has to be converted first: transformers' save_pretrained does it",
            location=str(path),
        ) from error
    if not isinstance(vocabulary, (dict, list)) or not vocabulary:
        raise DataError("its vocabulary is empty", location=str(path))
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    try:
        ids += [token["id"] for token in specification.setdefault("added_tokens", [])]
    except (KeyError, TypeError) as error:
        raise DataError("added_tokens is not a list of objects with an id each", location=str(path)) from error
    if wrong := [index for index in ids if type(index) is not int]:
        raise DataError(f"a token has the id {brief(wrong[0])}, which is not a whole number", location=str(path))
    return specification


def _declared(folder: PurePath) -> dict[str, str]:
    """Role -> name, from the tokenizer_config.json or special_tokens_map.json beside a tokenizer.json."""
    settings = read_settings(folder)
    return {role: name for role, key in special.CONFIG_KEYS.items() if (name := settings.token(key)) is not None}


def _from_vocabulary(path: PurePath, config: TokenizerConfig, progress: Progress, segmenter: Segmenter | None) -> Tokenization:
    vocabulary = _read_vocabulary(path)
    tokens = special.locate(vocabulary, str(path))
    unknown = next(token for token, index in vocabulary.items() if index == tokens.unknown)
    tokenizer = pipelines.wordpiece(config, as_google=True)
    tokenizer.model = models.WordPiece(
        vocabulary,
        unk_token=unknown,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix=CONTINUATION,
    )
    pipelines.add_special_tokens(tokenizer, tokens)
    if not config.lowercase and not any(token != token.lower() for token in vocabulary if not token.startswith("[")):
        progress.note(
            f"{path} has no upper-case letter, and tokenizer.lowercase is false: capitalised words will be unknown. Set "
            "tokenizer.lowercase = true (and strip_accents = true for Google's uncased vocabularies); in a comparison, write "
            f"{path}:uncased"
        )
    return Tokenization(tokenizer, tokens, segmenter)


def _read_vocabulary(path: PurePath) -> dict[str, int]:
    """A token a line; the number of the line, from 0, is its id."""
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8 (byte {error.start:,}): a vocabulary is a text file with a token a line", location=str(path)
        ) from error
    tokens = [line.removesuffix("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    if not tokens:
        raise DataError("the vocabulary is empty", location=str(path))
    repeated = [token for token, count in Counter(tokens).items() if count > 1]
    if repeated:
        where = [number for number, token in enumerate(tokens, 1) if token == repeated[0]]
        raise DataError(
            f"the token {repeated[0]!r} stands on lines {', '.join(map(str, where[:4]))}; ids are line numbers, so each must "
            f"be there once ({len(repeated):,} are repeated)",
            location=str(path),
        )
    return {token: index for index, token in enumerate(tokens)}
