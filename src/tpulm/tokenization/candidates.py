"""The tokenizers of a comparison as the user names them: NAME=PATH:SETTINGS, of which only the path must be there.

A vocab.txt says nothing of the text it is for, so its settings are told here: "bert/vocab.txt:uncased".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path, PurePath
from typing import NamedTuple

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.corpus.paths import find_paths
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.progress import SILENT, Progress
from tpulm.readable import visible
from tpulm.tokenization.causal import TOKENIZER, VOCABULARY, load_causal
from tpulm.tokenization.files import load
from tpulm.tokenization.tokenization import Tokenization

SETTINGS: dict[str, dict[str, bool]] = {
    "lowercase": {"lowercase": True},
    "strip_accents": {"strip_accents": True},
    "uncased": {"lowercase": True, "strip_accents": True},
    "whole_cjk": {"split_cjk": False},
}
_FORM = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<path>.+?)(?::(?P<settings>[^:/]*))?", re.DOTALL)
_SAY_NOTHING = {
    "run",
    "vocab",
    "tokenizer",
    "export",
    "sentencepiece",
    "spiece",
    "spm",
    "discriminator",
    "generator",
    "",
}  # names of files and folders


class Candidate(NamedTuple):
    label: str  # unique among those of a comparison
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
    names = [one.name or _short_name(one.path) for one in named]
    labels = [name if one.name or names.count(name) == 1 else one.given for one, name in zip(named, names, strict=True)]
    found = [Candidate(visible(label), one.given, _load(one, progress)) for one, label in zip(named, labels, strict=True)]
    for one, other in combinations(found, 2):
        if one.tokenization.fingerprint == other.tokenization.fingerprint:
            raise ConfigError(
                f"{one.source} and {other.source} are the same tokenizer (fingerprint {one.tokenization.fingerprint[:12]}): "
                "there is nothing to compare. Leave one of them out."
            )
        if one.label == other.label:
            raise ConfigError(f"two tokenizers are named '{one.label}': give each its own name, as in NAME=PATH")
    return found


def _parse(text: str) -> _Named:
    if text and not storage.is_remote(text) and Path(text).expanduser().exists():  # a path may have = and : in it
        return _Named("", storage.as_path(text), (), text)
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"'{text}' names no tokenizer: write PATH, NAME=PATH or PATH:SETTING, as in bert/vocab.txt:uncased")
    settings = tuple(filter(None, re.split(r"[,\s]+", match["settings"] or "")))
    for setting in settings:
        if setting not in SETTINGS:
            raise ConfigError(
                f"'{text}': there is no setting '{setting}' for a vocab.txt.{suggest(setting, SETTINGS)} "
                f"There are {', '.join(SETTINGS)}."
            )
    return _Named((match["name"] or "").strip(), storage.as_path(match["path"]), settings, text)


def _load(one: _Named, progress: Progress) -> Tokenization:
    path = one.path / "tokenizer" if storage.is_folder(one.path / "tokenizer") else one.path  # of a work folder
    folder = storage.is_folder(path)
    if not folder and not storage.exists(path):
        find_paths(str(path))  # says what there is instead
    says_itself = storage.exists(path / TOKENIZER) if folder else path.suffix in (".json", ".model")
    if one.settings and says_itself:
        raise ConfigError(
            f"'{one.given}': only a vocab.txt takes settings; {path} says itself how text is split. Leave out "
            f"':{','.join(one.settings)}'."
        )
    if folder and not says_itself and storage.exists(path / VOCABULARY):
        return load_causal(path)
    config = TokenizerConfig.model_validate({name: value for key in one.settings for name, value in SETTINGS[key].items()})
    try:
        return load(path, config, progress=progress)
    except DataError:
        if not folder or not says_itself:
            raise
        return load_causal(path)  # a causal model's, without [CLS] and [MASK]


def _short_name(path: PurePath) -> str:
    """Of the run whose work folder this is, or lies in; else the nearest name in the path that says something."""
    for part in (path, *path.parents):
        run = storage.read_json(part / "run.json").get("name") if storage.exists(part / "run.json") else None
        for name in (run, part.stem if part.suffix in (".txt", ".json", ".model") else part.name):
            if isinstance(name, str) and name.lower() not in _SAY_NOTHING:
                return name
    return path.name
