"""Tokenizer files: saving a folder that transformers' AutoTokenizer reads, and loading such folders or third-party formats."""

from __future__ import annotations

import hashlib
import json
import os
import string
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer, normalizers

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError, DataError, StorageError, brief
from tpulm.progress import SILENT, Progress
from tpulm.runtime.stage import Record, read_record
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import pipelines, special
from tpulm.tokenization.hf_files import (
    TOKENIZER_CONFIG,
    HfSettings,
    add_hf_tokens,
    check_growth,
    check_usable,
    guarded,
    read_settings,
)
from tpulm.tokenization.pipelines import SPACE, wordpiece_model
from tpulm.tokenization.segmenter import Segmenter, declared_segmenter
from tpulm.tokenization.tokenization import Tokenization

TOKENIZER, VOCABULARY, MANIFEST = "tokenizer.json", "vocab.txt", "manifest.json"
MODEL_CONFIG = "config.json"  # beside a tokenizer; its model's type says the tokenizer's class where nothing else does
_TRIED: Final = [*string.ascii_letters, *"éß한漢あжعक😀", *string.digits, *string.punctuation]
_MANY = 0.01  # of the words: strays in published vocabularies are fewer
_SAY_THEMSELVES = (".json", ".model")  # how text is normalized
_OF_VOCABULARY = (
    "Set tokenizer.lowercase = true or false (and strip_accents = true for Google's uncased vocabularies), or in a model's "
    f"folder do_lower_case and strip_accents in {TOKENIZER_CONFIG}; tpulm import has options"
)
_OF_OPTIONS = "--lowercase or --cased, and --strip-accents or --keep-accents, say otherwise"
_OF_ITSELF = (
    f"Change the normalizer in {TOKENIZER} (transformers' save_pretrained writes one for a .model), or of a BERT's tokenizer "
    f"do_lower_case and strip_accents in {TOKENIZER_CONFIG}"
)
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BERT_TYPES = ("bert", "distilbert", "electra", "megatron-bert")  # of models whose tokenizer is one of these if none is named
_UNLIMITED = int(1e30)  # what transformers writes for "no limit"


class Manifest(Record):
    """Of a folder that `save` wrote."""

    format_version: int = 1
    fingerprint: str
    algorithm: str
    vocab_size: int
    special: SpecialTokens
    inputs: dict[str, Any]
    files: dict[str, dict[str, Any]] | None = None  # older ones list none


def save(
    tokenization: Tokenization,
    folder: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | None = None,
    model_max_length: int | None = None,
) -> None:
    """Write the folder, replacing an older tokenizer in it.

    `inputs` (anything JSON can hold) goes into the manifest. `model_max_length` is the model's number of positions, for
    transformers' truncation. Raises StorageError.
    """
    target = storage.make_folder(folder)
    storage.remove(target / MANIFEST)
    names = {key: tokenization.token(getattr(tokenization.special, role)) for role, key in special.CONFIG_KEYS.items()}
    storage.write_json(target / "special_tokens_map.json", names)
    storage.write_json(target / TOKENIZER_CONFIG, _tokenizer_config(tokenization, names, model_max_length))
    if tokenization.algorithm == "WordPiece":
        storage.write_atomic(target / VOCABULARY, "".join(f"{token}\n" for token in tokenization.vocabulary()))
    else:
        storage.remove(target / VOCABULARY)
    manifest = Manifest(
        fingerprint=tokenization.fingerprint,
        algorithm=tokenization.algorithm,
        vocab_size=tokenization.vocab_size,
        special=tokenization.special,
        inputs=dict(inputs or {}),
        files={name: digest for name, digest in storage.listing(target).items() if name != TOKENIZER},
    )
    storage.write_atomic(target / TOKENIZER, tokenization.canonical_json)  # listing would read it, and the fingerprint has it
    manifest.write(target / MANIFEST)


def load_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """What is recorded of a folder that `save` wrote; None of any other."""
    return read_record(Manifest, storage.as_path(folder) / MANIFEST)


def _tokenizer_config(tokenization: Tokenization, names: Mapping[str, str], model_max_length: int | None) -> dict[str, Any]:
    added = json.loads(tokenization.canonical_json)["added_tokens"]
    attributes = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        **names,
        **_bert_settings(tokenization),
        "added_tokens_decoder": {str(token["id"]): {name: token[name] for name in attributes} for token in added},
        "clean_up_tokenization_spaces": False,  # the decoder in tokenizer.json does what is needed
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length or _UNLIMITED,
        "padding_side": "right",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "left" if tokenization.keeps_end else "right",
        **(tokenization.segmenter.settings() if tokenization.segmenter else {}),
    }


def _bert_settings(tokenization: Tokenization) -> dict[str, bool]:
    """A WordPiece tokenizer's normalization as settings of transformers' BertTokenizer; {} if the normalizer is not BERT's.

    For readers of vocab.txt alone, whose defaults (lower-case, no accents, hence Hangul as letters) fit few vocabularies.
    """
    normalizer = json.loads(tokenization.canonical_json)["normalizer"]
    bert = next((step for step in pipelines.steps(normalizer, "normalizers") if step["type"] == "BertNormalizer"), None)
    if tokenization.algorithm != "WordPiece" or bert is None:
        return {}
    lowercase, strip_accents = bert["lowercase"], bert["strip_accents"]
    return {
        "do_lower_case": lowercase,
        "strip_accents": lowercase if strip_accents is None else strip_accents,
        "tokenize_chinese_chars": bert["handle_chinese_chars"],
    }


# -- loading --


def load(path: str | os.PathLike[str], config: TokenizerConfig | None = None, *, progress: Progress = SILENT) -> Tokenization:
    """Load a folder (one written by `save`, or any with a tokenizer.json or vocab.txt), a tokenizer.json, SentencePiece's
    .model, or a vocab.txt.

    A vocab.txt does not say how text is normalized: `lowercase`, `strip_accents` and `split_cjk` of `config` do. Raises
    StorageError for unreadable files, DataError for unusable vocabularies, ConfigError if these or `config.morphemes` do not
    apply.
    """
    source = storage.as_path(path)
    tokenization = _load(source, config or TokenizerConfig())
    for note in () if progress is SILENT else normalization_warnings(tokenization, source):
        progress.note(note)
    return tokenization


def load_vocabulary(
    path: PurePath,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    *,
    split_cjk: bool = True,
    note: Callable[[str], object],
) -> Tokenization:
    """The tokenizer of a vocab.txt, which lower-cases text as asked, or else if there are no upper-case letters in it.

    What was decided is `note`d, with the options that say otherwise. Of a file that says itself how, nothing is decided.
    """
    if path.suffix in _SAY_THEMSELVES:
        config = TokenizerConfig(lowercase=bool(lowercase), strip_accents=bool(strip_accents), split_cjk=split_cjk)
        loaded = load(path, config)
        for one in normalization_warnings(loaded, path):
            note(one)
        return loaded
    if lowercase is None:
        tokens = load(path).vocabulary()
        lowercase = not any(token != token.lower() for token in tokens if not token.startswith("["))
        tokens_with = "no token has" if lowercase else "some tokens have"
        note(
            f"text is {'made lower-case' if lowercase else 'kept as it is'}, as {tokens_with} upper-case letters; "
            f"{'--cased' if lowercase else '--lowercase'} says otherwise"
        )
    # Google's code strips accents of lower-case text, unless ELECTRA's --no-strip-accents was given.
    choices = [strip_accents] if strip_accents is not None else [True, False] if lowercase else [False]
    configs = [TokenizerConfig(lowercase=lowercase, strip_accents=strips, split_cjk=split_cjk) for strips in choices]
    tokenizers = [load(path, config) for config in configs]
    warnings = [normalization_warnings(one, path, _OF_OPTIONS) for one in tokenizers]
    keeps_accents = len(tokenizers) > 1 and bool(warnings[0]) and not warnings[1]
    kept_note = "accents are kept, as many words of the vocabulary have them; --strip-accents says otherwise"
    for one in [kept_note] if keeps_accents else warnings[0]:
        note(one)
    return tokenizers[keeps_accents]


def _load(source: PurePath, config: TokenizerConfig) -> Tokenization:
    if storage.is_folder(source):
        return _from_folder(source, config)
    segmenter = None if config.morphemes == "none" else Segmenter(config.morphemes, config.lowercase)
    if source.suffix not in _SAY_THEMSELVES:
        return _from_vocabulary(source, config, segmenter)
    if source.suffix == ".json":
        read = read_tokenizer
    else:
        from tpulm.tokenization.sentencepiece_model import read  # imports protobuf, which takes 0.05 s
    loaded = _with_specials(read(source), source)
    if segmenter is not None and loaded.segmenter is None:
        raise ConfigError(
            f"tokenizer.morphemes is '{config.morphemes}', but {source} splits texts in another way by its own settings; "
            "leave morphemes out, or name a vocab.txt that was made of morphemes"
        )
    not_done = {
        "lowercase = true": config.lowercase and not loaded.lowers_case,
        "strip_accents = true": config.strip_accents and loaded.normalized("é") != loaded.normalized("e"),
        "split_cjk = false": not config.split_cjk and " " in loaded.normalized("日日"),
    }
    if ignored := [setting for setting, is_ignored in not_done.items() if is_ignored]:
        raise ConfigError(
            f"tokenizer.{ignored[0]} is for a vocab.txt, and {source} does otherwise by its own rules; leave it out (set the "
            "default if a recipe has it), or change the normalizer in the file"
        )
    return loaded


def normalization_warnings(loaded: Tokenization, origin: PurePath, advice: str = "") -> list[str]:
    """Notes on a vocabulary that does not fit how text is normalized: its words are read as others, or capitals are unknown."""
    origin = _tokenizer_file(origin) or origin
    report = "" if advice else f". In a report, write {origin}:uncased"
    advice = advice or _OF_VOCABULARY
    if origin.suffix in _SAY_THEMSELVES:
        advice, report = _OF_ITSELF, ""
    # A segmenter may cut a word that stands alone.
    tokens = [] if loaded.segmenter else [index for token, index in loaded.vocabulary().items() if token[:1] not in "[<#"]
    texts = [loaded.decode([index]).strip() for index in tokens]
    words = [text for text in texts if any(map(str.isalpha, text)) and "\ufffd" not in text]
    capitals = list(map(str.capitalize, words))
    ids_of_texts = loaded.encode([*words, *capitals]).split()
    lost: dict[str, str] = {}
    for word, ids in zip(words, ids_of_texts, strict=False):
        if len(ids) != 1 or loaded.token(ids[0]).strip(SPACE) != word:
            lost[word] = loaded.decode(ids, special_tokens=True).strip()
    shown = [f"{word!r} as {read!r}" for word, read in lost.items() if word != read]
    notes = dropped_characters(loaded, origin)
    if len(shown) > _MANY * len(words):
        notes.append(
            f"{origin} does not fit how text is normalized: {len(shown):,} of the vocabulary's {len(words):,} words are read "
            f"as others ({', '.join(shown[:3])}). {advice}"
        )
    cases = zip(words, capitals, ids_of_texts[len(words) :], strict=False)
    unknown = [loaded.special.unknown in ids for word, capital, ids in cases if word not in lost and word != capital]
    if sum(unknown) > len(unknown) / 2 and sum(word != word.lower() for word in words) <= _MANY * len(words):
        notes.append(
            f"{origin} has hardly an upper-case letter, and text is not made lower-case: capitalised words will be unknown. "
            f"{advice}{report}"
        )
    return notes


def dropped_characters(loaded: Tokenization, origin: PurePath) -> list[str]:
    """A note on a vocabulary that drops characters, of which it has no token and none for unknown ones, with examples."""
    examples = [one for one, places in zip(_TRIED, loaded.dropped(_TRIED), strict=True) if places]
    if not examples:
        return []
    model, byte_level = json.loads(loaded.canonical_json)["model"], '"ByteLevel"' in loaded.canonical_json
    lacking = [one for one in pipelines.BYTE_CHARACTERS if one not in model["vocab"]] if byte_level else []
    lacks = f"lacks {len(lacking)} of the 256 bytes, and " if lacking else ""
    return [
        f"{_tokenizer_file(origin) or origin}: the vocabulary {lacks}has no unknown token: characters of a text that it lacks, "
        f"such as {' '.join(examples[:6])}, are dropped silently. 'tpulm tokenizer report' counts them in a text"
    ]


class Vocabulary(NamedTuple):
    """What must be known of a tokenizer before a model is compiled."""

    vocab_size: int
    special: SpecialTokens


def expected(config: TokenizerConfig) -> Vocabulary:
    """The vocabulary of the tokenizer that `config` names or asks to train."""
    if config.path is None:
        return Vocabulary(config.vocab_size, special.TRAINED)
    loaded = load(config.path, config)
    return Vocabulary(loaded.vocab_size, loaded.special)


def vocab_size_of(path: PurePath) -> int:
    """The largest id, plus one, of a tokenizer.json, even of one that `load` cannot use."""
    specification = _specification_of(storage.read_bytes(path), path)
    vocabulary = specification["model"]["vocab"]
    ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    return 1 + max((*ids, *(token["id"] for token in specification["added_tokens"])))


def _tokenizer_file(folder: PurePath) -> PurePath | None:
    return next((folder / name for name in (TOKENIZER, VOCABULARY) if storage.exists(folder / name)), None)


def convert_hint(folder: PurePath) -> str:
    """What to do about an encoder's tokenizer in another form, RoBERTa's two files or SentencePiece's; "" if there is none."""
    names = [file.name for file in storage.list_folder(folder)]
    other = next((name for name in names if name == "vocab.json" or name.endswith(".model")), None)
    remedy = f"load it with transformers' AutoTokenizer and save_pretrained() it, which writes {TOKENIZER}"
    return "" if other is None else f"; {other} is not read here: {remedy}"


def _from_folder(folder: PurePath, config: TokenizerConfig) -> Tokenization:
    source = _tokenizer_file(folder)
    if source is None:
        raise StorageError(f"{folder} holds no tokenizer: neither {TOKENIZER} nor {VOCABULARY} is there{convert_hint(folder)}")
    if source.name == VOCABULARY:
        segmenter = declared_segmenter(read_settings(folder, [TOKENIZER_CONFIG]), str(folder / TOKENIZER_CONFIG))
        if segmenter is not None:
            config = TokenizerConfig(lowercase=segmenter.lowercase, morphemes=segmenter.analyser)
        return _from_vocabulary(source, config, segmenter)
    content, manifest = storage.read_bytes(source), load_manifest(folder)
    tokenization = _with_specials(_tokenizer_of(content, source), source)
    if manifest is not None:
        _check_unchanged(tokenization, content, manifest, source)
    return tokenization


def _check_unchanged(tokenization: Tokenization, content: bytes, manifest: Manifest, source: PurePath) -> None:
    """Raise StorageError if a file in a folder written by `save` has changed since."""
    recorded = manifest.fingerprint
    if hashlib.sha256(content).hexdigest() == recorded:
        tokenization.fingerprint = recorded  # saves computing it
    if tokenization.fingerprint != recorded:
        raise StorageError(
            f"{source} was changed after it was written: its fingerprint is {tokenization.fingerprint[:16]}…, the manifest has "
            f"{recorded[:16]}…. Restore it, or delete the folder and run again."
        )
    for name, wrong in storage.differences(source.parent, manifest.files or {}):  # exports contain copies of all of them
        raise StorageError(f"{source.with_name(name)} {wrong}. Restore it; the run's export has a copy.")


def read_tokenizer(path: PurePath) -> Tokenizer:
    """A tokenizer.json as it is, except for padding and truncation, which the dataset does. Raises DataError."""
    return _tokenizer_of(storage.read_bytes(path), path)


def _tokenizer_of(content: bytes, path: PurePath) -> Tokenizer:
    specification = _specification_of(content, path)
    vocabulary = specification["model"]["vocab"]
    with guarded(str(path)):
        check_growth(specification, str(path))
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
    settings, location = read_settings(path.parent, [TOKENIZER_CONFIG]), str(path.parent / TOKENIZER_CONFIG)
    _normalize_as_declared(tokenizer, path, settings)
    specials, segmenter = _specials(tokenizer, path), declared_segmenter(settings, location)
    return Tokenization(tokenizer, specials, segmenter, keeps_end=_keeps_end(settings, location))


def _keeps_end(settings: HfSettings, location: str) -> bool:
    if settings.truncation_side not in (None, "left", "right"):
        raise DataError(f"truncation_side is {brief(settings.truncation_side)}, not 'left' or 'right'", location=location)
    return settings.truncation_side == "left"


def _normalize_as_declared(tokenizer: Tokenizer, path: PurePath, settings: HfSettings) -> None:
    """Normalize by the settings beside the tokenizer.json of a BERT's class, which transformers follows, not by the file's."""
    own = tokenizer.normalizer
    if not isinstance(own, normalizers.BertNormalizer):
        return
    config = path.with_name(MODEL_CONFIG)
    model = storage.read_given_object(config) if storage.exists(config) else {}
    name, model_type = settings.tokenizer_class or model.get("tokenizer_class"), model.get("model_type")
    is_bert = str(name).removesuffix("Fast") in _BERT_CLASSES if name else model_type in _BERT_TYPES
    if is_bert and model_type != "modernbert":  # of which transformers reads the file, whatever class is named
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=own.clean_text,
            handle_chinese_chars=settings.tokenize_chinese_chars,
            strip_accents=settings.strip_accents,
            lowercase=settings.do_lower_case,
        )


def _specials(tokenizer: Tokenizer, path: PurePath) -> SpecialTokens:
    """Locate the special tokens, as declared in files beside `path` or by their usual names, and put them around texts."""
    settings = read_settings(path.parent)
    # A folder of ours has all tokens in one file; beside SentencePiece's, ids may be shifted (XLM-RoBERTa).
    if path.suffix != ".model" and not storage.exists(path.with_name(MANIFEST)):
        add_hf_tokens(tokenizer, path, settings)
    declared = {role: name for role, key in special.CONFIG_KEYS.items() if (name := settings.token(key)) is not None}
    tokens = special.locate(tokenizer.get_vocab(with_added_tokens=True), str(path), declared)
    names = {tokenizer.id_to_token(index) for index in tokens}
    taken = [character for character in pipelines.BYTE_CHARACTERS if character in names]
    if taken and pipelines.is_byte_level(json.loads(tokenizer.to_str())["model"]):
        raise DataError(
            f"{taken[0]!r} is declared as a special token, but is how this byte-level vocabulary writes a byte, so that text "
            "with it could not be encoded. Declare another in special_tokens_map.json or tokenizer_config.json",
            location=str(path),
        )
    known = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    if not set(tokens) <= known:
        pipelines.add_special_tokens(tokenizer, tokens)
    with guarded(str(path), "its post-processor cannot frame a text"):
        one, pair = (tokenizer.encode("", second, add_special_tokens=True).ids for second in (None, ""))
    cls, sep = tokens.cls, tokens.sep
    framed = one in ([cls, sep], [sep, sep]) and pair in ([*one, sep], [*one, sep, sep])  # [sep, sep]: `for_classes`
    if one != [sep] and not framed:
        pipelines.frame(tokenizer, tokens)
    return tokens


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


def _from_vocabulary(path: PurePath, config: TokenizerConfig, segmenter: Segmenter | None) -> Tokenization:
    tokenizer = pipelines.wordpiece(config, as_google=True)
    tokenizer.model = wordpiece_model(_read_vocabulary(path))
    tokens = _specials(tokenizer, path)
    tokenizer.model.unk_token = tokenizer.id_to_token(tokens.unknown)
    settings, location = read_settings(path.parent, [TOKENIZER_CONFIG]), str(path.parent / TOKENIZER_CONFIG)
    return Tokenization(tokenizer, tokens, segmenter, keeps_end=_keeps_end(settings, location))


def _read_vocabulary(path: PurePath) -> dict[str, int]:
    """Token -> id: one token per line, whose number, from 0, is the id."""
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 (byte {error.start:,}): a vocabulary has a token a line", location=str(path)) from error
    tokens = [line.rstrip() or line for line in (line.removesuffix("\r") for line in lines)]
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
