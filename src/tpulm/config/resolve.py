"""From a recipe's name or a run file, and overrides, to a `RunConfig`; and back to canonical JSON."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from pydantic import BaseModel

from tpulm import storage
from tpulm.config.finetune import FinetuneConfig
from tpulm.config.schema import RunConfig
from tpulm.config.starting import Start, apply
from tpulm.config.validation import validated
from tpulm.errors import ConfigError, suggest

_SHA256 = re.compile("[0-9a-f]{64}")
_OF_ONE_RUN = ("description", "language")  # true of the run that states them, not of one that extends it
_RECIPES = resources.files("tpulm") / "recipes"


def list_recipes() -> list[str]:
    return sorted(item.name.removesuffix(".toml") for item in _RECIPES.iterdir() if item.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """The TOML of a recipe, head comment included."""
    if name not in list_recipes():
        raise ConfigError(f"no recipe is named '{name}'.{suggest(name, list_recipes())} Known: {', '.join(list_recipes())}.")
    return (_RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def load(
    reference: str | PurePath, overrides: Mapping[str, Any] | Sequence[str] = (), *, start: Start | None = None
) -> RunConfig:
    """The configuration of a recipe (by name) or of a run file (.toml, or a canonical .json).

    `overrides` are "train.steps=1000" strings, whose right-hand side is read as TOML (or, failing that, as a plain string),
    or a mapping of dotted names to values. `start` is a model to go on from. Raises ConfigError, naming the file and the key.
    """
    reference = str(reference)
    values, stated = _values(reference, seen=()), _stated(reference)
    for key, value in _parse_overrides(overrides).items():
        _assign(values, key, value)
        _assign(stated, key, value)
    if start is None:
        return validated(RunConfig, values, reference)
    values = apply(values, stated, start, reference)
    try:
        return validated(RunConfig, values, reference)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n[model] is that of {start.folder} and stays as it is: change the other settings"
        ) from error


def load_finetune(overrides: Mapping[str, Any] | Sequence[str] = ()) -> FinetuneConfig:
    """The settings of fine-tuning: the defaults, and "epochs=5" strings or a mapping over them. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key, value in _parse_overrides(overrides).items():
        _assign(values, key, value)
    return validated(FinetuneConfig, values, "the settings of fine-tuning")


def finetune_settings(config: FinetuneConfig | None, settings: Mapping[str, Any]) -> FinetuneConfig:
    """`config`, or the defaults and `settings` by name over them. Raises ConfigError where both are given."""
    if config is None:
        return load_finetune(settings)
    if settings:
        raise ConfigError(f"{', '.join(settings)}: give settings by name or as config, not both")
    return config


def from_json(text: str | bytes, origin: str = "run.json") -> RunConfig:
    try:
        values = storage.parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is not valid JSON: {error}") from error
    return validated(RunConfig, values, origin)


def canonical_json(config: BaseModel) -> str:
    """Every field, sorted keys: equal configurations give equal bytes."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# How a run is carried out and what it is called, not what it makes: these may differ between the attempts at one run.
_FREE = (
    "name",
    "description",
    "language",
    "hardware",
    "tokenizer.allow_unknown",
    "train.checkpoint",
    "train.log_every_steps",
    "train.evaluate_every_steps",
    "train.evaluation_rows",
    "train.on_nan",
    "train.spike_factor",
)
_MOST_LISTED = 10
_LONG = 60  # characters of a value


class Change(NamedTuple):
    """A setting, dotted, with its value before and now; None: there is none. As text "train.steps: 1000 -> 2000"."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        texts = [_show(self.before), _show(self.now)]
        common = next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
        if max(map(len, texts)) > _LONG and common > _LONG // 2:  # two long paths, say: their ends tell them apart
            texts = [f"…{text[common - 10 :]}" for text in texts]
        before, now = (text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for text in texts)
        return f"{self.name}: {before} -> {now}"

    @property
    def is_free(self) -> bool:
        """Whether the setting has no part in what a run makes."""
        return any(self.name == free or self.name.startswith(f"{free}.") for free in _FREE)


def differences(ours: RunConfig, theirs: RunConfig) -> list[Change]:
    """What differs; nothing for two attempts at the same run."""
    found = changes(ours.model_dump(mode="json"), theirs.model_dump(mode="json"))
    return [change for change in found if not change.is_free]


def changes(before: Any, now: Any, name: str = "") -> list[Change]:
    """Every value of nested JSON objects, and of lists of them, that differs."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(f"{name}.{key}" if name else key, before.get(key), now.get(key)) for key in sorted(before | now)]
    elif _are_tables(before) and _are_tables(now):
        pairs = [(f"{name}[{index}]", *pair) for index, pair in enumerate(itertools.zip_longest(before, now))]
    else:
        return [Change(name, before, now)]
    return [change for key, old, new in pairs for change in changes(old, new, key)]


def listed(lines: Sequence[object]) -> str:
    """The lines of a message about changes, indented; of many the first."""
    more = [f"and {len(lines) - _MOST_LISTED} more"] if len(lines) > _MOST_LISTED else []
    return "\n".join(f"  {line}" for line in [*lines[:_MOST_LISTED], *more])


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _show(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:12]}…"
    return json.dumps(value, ensure_ascii=False)


def _values(reference: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """The nested mapping of a recipe or file with what it extends merged below it. `seen`: who extended it, outermost first."""
    if reference in list_recipes():
        text, folder = recipe_text(reference), None
    else:
        path = storage.as_path(reference)
        if storage.info(path) is None:
            known = list_recipes()
            by = f" ({seen[-1]} extends it)" if seen else ""
            raise ConfigError(
                f"'{reference}' is neither a file nor a recipe{by}.{suggest(reference, known)} Recipes: {', '.join(known)}."
            )
        path = path.resolve() if isinstance(path, Path) else path
        reference = str(path)
        text, folder = storage.read_bytes(path), path.parent
    if reference in seen:
        raise ConfigError(f"'extends' goes in a circle: {' -> '.join((*seen, reference))}; remove one of them")
    values = _parse(text, reference, folder)
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str) or "\0" in base:
        raise ConfigError(f"{reference}: extends must be the name of a recipe or a file, not {base!r}")
    if base not in list_recipes() and folder is not None:
        base = str(folder / base)
    inherited = _values(base, (*seen, reference))
    for name in _OF_ONE_RUN:
        inherited.pop(name, None)
    return _merge(inherited, values)


def _stated(reference: str) -> dict[str, Any]:
    """What a run file says itself, without what it extends; of a recipe nothing."""
    if reference in list_recipes():
        return {}
    path = storage.as_path(reference)
    path = path.resolve() if isinstance(path, Path) else path
    values = _parse(storage.read_bytes(path), str(path), path.parent)
    values.pop("extends", None)
    return values


def _parse(text: str | bytes, origin: str, folder: PurePath | None) -> dict[str, Any]:
    """What a run file holds, its paths made absolute."""
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")  # some editors begin a file with a mark
        values = storage.parse_json(decoded) if origin.endswith(".json") else storage.parse_toml(decoded)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: a run is an object of settings, not {type(values).__name__}")
    try:
        _absolute_paths(values, folder)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return values


def _absolute_paths(values: dict[str, Any], folder: PurePath | None) -> None:
    """Make relative paths in a file relative to that file."""

    def absolute(path: Any) -> Any:
        if not isinstance(path, str) or path in ("", "none") or "://" in path or path.startswith("tfds:"):
            return path
        if path.startswith("hub:"):  # a name on the Hub, or a folder that is written as one
            name = path.removeprefix("hub:")
            return f"hub:{absolute(name)}" if name.startswith((".", "/", "~")) else path
        return str((folder or Path.cwd()) / storage.as_path(path))

    corpus = values.get("corpus")
    if isinstance(corpus, dict) and "sources" in corpus:
        sources = corpus["sources"]
        sources = [sources] if isinstance(sources, str) else sources
        if isinstance(sources, list):
            corpus["sources"] = [
                {**item, **{name: absolute(item[name]) for name in ("path", "data_dir") if name in item}}
                if isinstance(item, dict)
                else absolute(item)
                for item in sources
            ]  # fmt: skip
    tokenizer = values.get("tokenizer")
    if isinstance(tokenizer, dict) and "path" in tokenizer:
        tokenizer["path"] = absolute(tokenizer["path"])
    train = values.get("train")
    if isinstance(train, dict) and "start_from" in train:
        train["start_from"] = absolute(train["start_from"])


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _parse_overrides(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for item in overrides:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"--set {item}: write it as --set name.of.field=value, for instance --set train.steps=1000")
        if key in parsed:
            raise ConfigError(f"{key} is set twice, to {parsed[key]} and to {text.strip()}; set it once")
        try:
            parsed[key] = storage.parse_toml(f"value = {text.strip()}")["value"]
        except ValueError:
            parsed[key] = text.strip()
    return parsed


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    wrapped: Any = {last: value}
    for name in reversed(parents):
        wrapped = {name: wrapped}
    _absolute_paths(wrapped, None)
    place = values
    for name in parents:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"--set {key}: '{name}' is a value, not a group of settings")
        wrapped = wrapped[name]
    place[last] = wrapped[last]
