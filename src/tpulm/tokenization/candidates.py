"""The tokenizers of a comparison as the user names them: NAME=PATH:SETTINGS, of which only the path must be there.

A vocab.txt says nothing of the text it is for, so its settings are told here: "bert/vocab.txt:uncased".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.corpus.paths import find_paths
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.progress import SILENT, Progress
from tpulm.tokenization.causal import TOKENIZER, load_causal
from tpulm.tokenization.gpt2_files import VOCABULARY
from tpulm.tokenization.loading import load
from tpulm.tokenization.tokenization import Tokenization

SETTINGS: dict[str, dict[str, bool]] = {
    "lowercase": {"lowercase": True},
    "strip_accents": {"strip_accents": True},
    "uncased": {"lowercase": True, "strip_accents": True},
    "whole_cjk": {"split_cjk": False},
}
_FORM = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<path>.+?)(?::(?P<settings>[^:/]*))?", re.DOTALL)
_USUAL = {"vocab", "tokenizer", "export", "sentencepiece", "spiece", "spm"}  # names that tell nothing


class Candidate(NamedTuple):
    """A tokenizer to be compared, and its short name, unique among all."""

    label: str
    source: str  # as the user named it
    tokenization: Tokenization


class _Named(NamedTuple):
    name: str  # "" if the user gave none
    path: PurePath
    settings: tuple[str, ...]
    given: str


def load_candidates(given: Sequence[str], *, progress: Progress = SILENT) -> list[Candidate]:
    """Raises ConfigError for names and settings that cannot be, and where two are the same; else as `load` does."""
    if len(given) < 2:
        raise ConfigError(
            "a comparison needs two tokenizers or more: name another one. 'tpulm tokenizer report' looks at one alone."
        )
    named = [_parse(text) for text in given]
    labels = _labels(named)
    candidates = [Candidate(label, item.given, _load(item, label, progress)) for label, item in zip(labels, named, strict=True)]
    by_fingerprint: dict[str, Candidate] = {}
    for candidate in candidates:
        other = by_fingerprint.setdefault(candidate.tokenization.fingerprint, candidate)
        if other is not candidate:
            raise ConfigError(
                f"{other.source} and {candidate.source} are the same tokenizer (fingerprint "
                f"{candidate.tokenization.fingerprint[:12]}): there is nothing to compare. Leave one of them out."
            )
    return candidates


def _parse(text: str) -> _Named:
    if text and _is_there(text):  # a path may have = and : in it
        return _Named("", storage.as_path(text), (), text)
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"'{text}' names no tokenizer: write PATH, NAME=PATH or PATH:SETTING, as in bert/vocab.txt:uncased")
    settings = () if match["settings"] is None else tuple(filter(None, re.split(r"[,\s]+", match["settings"])))
    for setting in settings:
        if setting not in SETTINGS:
            raise ConfigError(
                f"'{text}': there is no setting '{setting}' for a vocab.txt.{suggest(setting, SETTINGS)} "
                f"There are {', '.join(SETTINGS)}."
            )
    return _Named((match["name"] or "").strip(), storage.as_path(match["path"]), settings, text)


def _is_there(text: str) -> bool:
    return not storage.is_remote(text) and Path(text).expanduser().exists()


def _load(item: _Named, label: str, progress: Progress) -> Tokenization:
    path = item.path
    if storage.is_folder(path / "tokenizer"):  # a work folder
        path = path / "tokenizer"
    folder = storage.is_folder(path)
    if not folder and not storage.exists(path):
        find_paths(str(path))  # says what there is instead
    is_vocabulary = path.suffix not in (".json", ".model") if not folder else not storage.exists(path / TOKENIZER)
    if item.settings and not is_vocabulary:
        raise ConfigError(
            f"'{item.given}': only a vocab.txt takes settings; {path} says itself how text is split. Leave out "
            f"':{','.join(item.settings)}'."
        )
    config = TokenizerConfig.model_validate({name: value for key in item.settings for name, value in SETTINGS[key].items()})
    if folder and is_vocabulary and storage.exists(path / VOCABULARY):
        return load_causal(path)
    try:
        made = load(path, config)
    except DataError:
        if not folder or is_vocabulary:
            raise
        return load_causal(path)  # a causal model's, without [CLS] and [MASK]
    if is_vocabulary and not config.lowercase and _has_no_capitals(made):
        progress.note(
            f"{label} has no upper-case letter, so capitalised words are unknown to it; if it is an uncased one, write "
            f"{item.path}:uncased"
        )
    return made


def _has_no_capitals(made: Tokenization) -> bool:
    return all(token == token.lower() for token in made.vocabulary() if not token.startswith("["))


def _labels(named: Sequence[_Named]) -> list[str]:
    """The user's name, else the shortest part of the path that no other has, else that with its settings, else all of it."""
    given = [item.name for item in named if item.name]
    for name in given:
        if given.count(name) > 1:
            raise ConfigError(f"two tokenizers are named '{name}': give each its own name")
    names = [_short_names(item.path) for item in named]
    labels: list[str] = []
    for number, item in enumerate(named):
        others = {name for index, other in enumerate(names) if index != number for name in other} | set(given)
        label = item.name or next((name for name in names[number] if name not in others), "")
        labels.append(label or ":".join(filter(None, (names[number][0], ",".join(item.settings)))))
    for number, label in enumerate(labels):
        if label in labels[:number]:
            other = named[labels.index(label)]
            if (other.path, other.settings) == (named[number].path, named[number].settings):
                raise ConfigError(f"{named[number].given} is given twice: there is nothing to compare. Leave one of them out.")
            labels[number] = named[number].given
    return _unique(labels)


def _unique(labels: Iterable[str]) -> list[str]:
    found: list[str] = []
    for label in labels:
        number = 2
        unique = label
        while unique in found:
            unique, number = f"{label} ({number})", number + 1
        found.append(unique)
    return found


def _short_names(path: PurePath) -> list[str]:
    """What may tell a path from others, the shortest first: each name along it, then its end, longer and longer."""
    last = path.stem if path.suffix in (".txt", ".json", ".model") else path.name
    names = [last, *(parent.name for parent in path.parents if parent.name)]
    telling = [name for name in names if name.lower() not in _USUAL] or names
    return telling + ["/".join(reversed(telling[:count])) for count in range(2, len(telling) + 1)]
