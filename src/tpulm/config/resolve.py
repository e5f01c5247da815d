"""Resolve a recipe's name or a run file, with overrides, to a `RunConfig`; write and compare it as canonical JSON."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeGuard, cast

from pydantic import BaseModel

from tpulm import storage
from tpulm.config.finetune import FinetuneConfig
from tpulm.config.schema import RunConfig, TokenizerConfig, is_table
from tpulm.config.validation import validated
from tpulm.errors import ConfigError, suggest
from tpulm.readable import pasteable

# Settings of [model] that change neither the parameters nor what they compute: a run that starts from a model may change them.
FREE = frozenset({"dropout", "attention_dropout", "initializer_range"})
OPTIMIZER_FILE = "optimizer.safetensors"  # in a model's folder: the optimizer's moments
_SHA256 = re.compile("[0-9a-f]{64}")
_FRACTIONS_OF_STEPS = ("warmup_steps", "decay_steps")  # settings of [train.optimizer]
_OF_ONE_RUN = ("description", "language")  # of the run that sets them; one that extends it does not inherit them
# Codes of countries, taken for those of their languages; "kr" is Kanuri's.
_COUNTRIES = {
    "kr": "ko",
    "jp": "ja",
    "cn": "zh",
    "tw": "zh",
    "vn": "vi",
    "gb": "en",
    "us": "en",
    "dk": "da",
    "cz": "cs",
    "gr": "el",
}
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-|$)")  # RFC 5646, without its longer forms, of which none is registered
_RECIPES = resources.files("tpulm") / "recipes"


def list_recipes() -> list[str]:
    return sorted(item.name.removesuffix(".toml") for item in _RECIPES.iterdir() if item.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """The TOML of a recipe, head comment included."""
    if name not in list_recipes():
        raise ConfigError(f"no recipe is named '{name}'.{suggest(name, list_recipes())} Known: {', '.join(list_recipes())}.")
    return (_RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def load(
    reference: str | PurePath,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    start: Start | None = None,
    note: Callable[[str], object] = lambda message: None,
) -> RunConfig:
    """The configuration of a recipe (by name) or of a run file (.toml, or a canonical .json).

    `overrides` are "train.steps=1000" strings, whose right-hand side is parsed as TOML or else taken as a plain string, or a
    mapping of dotted names to values. `start` is a model to train further. What follows a shortened run is `note`d. Raises
    ConfigError naming the file and the key.
    """
    reference = str(reference)
    values, stated, planned = _values(reference, chain=())
    overriding = dict[str, Any]()
    for key, value in parse_overrides(overrides).items():
        for table in (values, stated, overriding):
            _assign(table, key, value)
    values = _shortened(values, planned | _planned(values, overriding, reference), note)
    origin = f"{reference}, with what is set beside it" if overriding else reference
    language = str(values.get("language") or "")
    if meant := _COUNTRIES.get(language.lower().partition("-")[0]):
        note(f"language = '{language}' is a country's code, or another language's. Did you mean '{meant}'?")
    elif language not in ("", "multilingual") and not _LANGUAGE.match(language):
        note(f"language = '{language}' is no code of ISO 639, such as 'ko', by which the Hub finds models")
    if start is None:
        return _writable(validated(RunConfig, values, origin), reference)
    values = _apply_start(values, stated, start, reference)
    try:
        return _writable(validated(RunConfig, values, origin), reference)
    except ConfigError as error:
        raise ConfigError(f"{error}\n[model] is that of {start.folder} and stays: change the other settings") from error


def _writable(config: RunConfig, reference: str) -> RunConfig:
    """Raise ConfigError for a file name that is not UTF-8, which run.json could not name again."""
    for line in canonical_json(config).splitlines():
        if (shown := pasteable(line)) != line:
            raise ConfigError(
                f"{reference}: {shown.strip(' ,')} is not UTF-8, as run.json must be; rename it, or write ? for \\x…"
            )
    return config


def load_finetune(overrides: Mapping[str, Any] | Sequence[str] = ()) -> FinetuneConfig:
    """The settings of fine-tuning: defaults, overridden by "epochs=5" strings or a mapping. Raises ConfigError."""
    values: dict[str, Any] = {}
    for key, value in parse_overrides(overrides).items():
        _assign(values, key, value)
    return validated(FinetuneConfig, values, "the settings of fine-tuning")


def finetune_settings(config: FinetuneConfig | None, settings: Mapping[str, Any]) -> FinetuneConfig:
    """`config`, or the defaults overridden by `settings`. Raises ConfigError if both are given."""
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
    """All fields with sorted keys, so that equal configurations give equal bytes."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


# How a run is carried out and what it is called, which does not change its result: these may differ when it resumes.
_FREE = (
    "name",
    "description",
    "language",
    "recipe",
    "hardware",
    "track",
    "tokenizer.allow_unknown",
    "train.checkpoint",
    "train.log_every_steps",
    "train.evaluate_every_steps",
    "train.evaluation_rows",
    "train.on_nan",
    "train.spike_factor",
)
_LONG = 60  # characters of a value


class Change(NamedTuple):
    """A setting by its dotted name, with its values before and now, None if missing. Its str: "train.steps: 1000 -> 2000"."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        texts = [_show(self.before), _show(self.now)]
        common = next((place for place, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
        if max(map(len, texts)) > _LONG and common > _LONG // 2:  # for instance two long paths, which differ at their ends
            texts = [f"…{text[common - 10 :]}" for text in texts]
        before, now = (text if len(text) <= _LONG else f"{text[: _LONG - 1]}…" for text in texts)
        return f"{self.name}: {before} -> {now}"

    @property
    def is_free(self) -> bool:
        """Whether the setting does not change the result of a run."""
        return any(self.name == free or self.name.startswith(f"{free}.") for free in _FREE)


def differences(config: RunConfig, other: RunConfig) -> list[Change]:
    """The settings that differ and change the result; none for the same run, resumed."""
    changed = changes(config.model_dump(mode="json"), other.model_dump(mode="json"))
    return [change for change in changed if not change.is_free]


def changes(before: Any, now: Any, name: str = "") -> list[Change]:
    """All values that differ between nested JSON objects, or lists of them."""
    if before == now:
        return []
    if is_table(before) and is_table(now):
        names = {key: f"{name}.{key}" if name else key for key in sorted(before | now)}
        return [change for key, full in names.items() for change in changes(before.get(key), now.get(key), full)]
    if _are_tables(before) and _are_tables(now):
        pairs = enumerate(itertools.zip_longest(before, now))
        return [change for index, (old, new) in pairs for change in changes(old, new, f"{name}[{index}]")]
    return [Change(name, before, now)]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted names and values of nested tables."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        if is_table(value):
            yield from flatten(value, name)
        else:
            yield name, value


def flattened(config: BaseModel) -> dict[str, Any]:
    """All settings that are not None, by dotted name, except the corpus's sources."""
    values = flatten(config.model_dump(mode="json"))
    return {name: value for name, value in values if value is not None and name != "corpus.sources"}


def _are_tables(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(map(is_table, cast("list[Any]", value)))


def _show(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:12]}…"
    return json.dumps(value, ensure_ascii=False, default=str)


class _Planned(NamedTuple):
    """A length of the schedule, and the run it was set for."""

    length: int
    steps: int
    origin: str


class _Values(NamedTuple):
    all: dict[str, Any]  # merged over those of what the file extends
    stated: dict[str, Any]  # only those that the file sets itself; empty for a recipe
    planned: dict[str, _Planned]


def _values(reference: str, chain: tuple[str, ...]) -> _Values:
    """The values of a recipe or file. `chain` are the files that extend it, outermost first."""
    is_recipe = reference in list_recipes()
    if is_recipe:
        text, folder = recipe_text(reference), None
    else:
        path = storage.as_path(reference)
        if storage.info(path) is None:
            known = list_recipes()
            by = f" ({chain[-1]} extends it)" if chain else ""
            raise ConfigError(
                f"'{reference}' is neither a file nor a recipe{by}.{suggest(path.name.removesuffix('.toml'), known)} "
                f"Recipes: {', '.join(known)}."
            )
        path = path.resolve() if isinstance(path, Path) else path
        reference = str(path)
        text, folder = storage.read_bytes(path), path.parent
    if reference in chain:
        raise ConfigError(f"'extends' goes in a circle: {' -> '.join((*chain, reference))}; remove one of them")
    values = _parse(text, reference, folder)
    base = values.pop("extends", None)
    stated: dict[str, Any] = {} if is_recipe else copy.deepcopy(values)
    if is_recipe:
        values["recipe"] = reference
    if base is None:
        return _Values(values, stated, _planned(values, values, reference))
    if not isinstance(base, str) or "\0" in base:
        raise ConfigError(f"{reference}: extends must be the name of a recipe or a file, not {base!r}")
    if base not in list_recipes() and folder is not None:
        base = str(folder / base)
    inherited = _values(base, (*chain, reference))
    merged = _merge({name: value for name, value in inherited.all.items() if name not in _OF_ONE_RUN}, values)
    return _Values(merged, stated, inherited.planned | _planned(merged, merged if is_recipe else values, reference))


def _planned(values: Mapping[str, Any], set_here: Mapping[str, Any], origin: str) -> dict[str, _Planned]:
    """By name: the warm-up and decay of `set_here`, a part of `values`, and the steps of `values`, all that is set so far."""
    steps, optimizer = _group(values, "train").get("steps"), _group(_group(set_here, "train"), "optimizer")
    lengths = ((name, optimizer.get(name)) for name in _FRACTIONS_OF_STEPS)
    if not isinstance(steps, int):
        return {}
    return {name: _Planned(length, steps, origin.rpartition("/")[2]) for name, length in lengths if isinstance(length, int)}


def _shortened(values: dict[str, Any], planned: Mapping[str, _Planned], note: Callable[[str], object]) -> dict[str, Any]:
    """The values of a run of fewer steps than its warm-up and decay were planned for: these take the same share of them."""
    train = _group(values, "train")
    now, optimizer = train.get("steps"), dict(_group(train, "optimizer"))
    for name, (length, steps, origin) in planned.items():
        if optimizer.get(name) == length and length and isinstance(now, int) and 0 < now < steps:
            optimizer[name] = max(1, round(length * now / steps))
            if name != "decay_steps" or optimizer.get("schedule") == "wsd":  # else it has no effect
                note(
                    f"train.optimizer.{name} = {optimizer[name]:,}, as {origin} has {length:,} for {steps:,} steps, not {now:,}"
                )
    return {**values, "train": {**train, "optimizer": optimizer}} if optimizer else values


def _parse(text: str | bytes, origin: str, folder: PurePath | None) -> dict[str, Any]:
    """The values of a run file, with absolute paths."""
    try:
        values: Any = storage.parse_json(text) if origin.endswith(".json") else storage.parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error
    if not is_table(values):
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
        if path.startswith("hub:"):  # a name on the Hub, or a local folder
            name = path.removeprefix("hub:")
            return f"hub:{absolute(name)}" if name.startswith((".", "/", "~")) else path
        named = storage.as_path(path)
        return str(storage.absolute(named if folder is None or path.startswith("~") else folder / path))

    def of_table(table: Any, *names: str) -> Any:
        return {**table, **{name: absolute(table[name]) for name in names if name in table}} if is_table(table) else table

    for group, name in (("tokenizer", "path"), ("train", "start_from")):
        if group in values:
            values[group] = of_table(values[group], name)
    corpus = values.get("corpus")
    if is_table(corpus) and "sources" in corpus:
        sources = [corpus["sources"]] if isinstance(corpus["sources"], str) else corpus["sources"]
        if isinstance(sources, list):
            items = cast("list[Any]", sources)
            corpus["sources"] = [of_table(item, "path", "data_dir") if is_table(item) else absolute(item) for item in items]


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if is_table(old) and is_table(value) else value
    return merged


def parse_overrides(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """The values of `--set NAME=VALUE`, by name."""
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
        try:  # in braces a comment, a comma or a second line cannot end the value unnoticed
            document = storage.parse_toml(f"of = {{ value = {text.strip()} }}")
        except ValueError:
            document = {}
        is_one = list(document) == ["of"] and list(document["of"]) == ["value"]
        parsed[key] = document["of"]["value"] if is_one else text.strip()
    return parsed


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    wrapped: Any = {last: value}
    for name in reversed(parents):
        wrapped = {name: wrapped}
    _absolute_paths(wrapped, None)
    table = values
    for name in parents:
        inner = table.setdefault(name, {})
        if not is_table(inner):
            raise ConfigError(f"--set {key}: '{name}' is a value, not a group of settings")
        table, wrapped = inner, wrapped[name]
    old, new = table.get(last), wrapped[last]
    table[last] = _merge(old, new) if is_table(old) and is_table(new) else new


class Start(NamedTuple):
    """A finished model to start from, as settings of a run file."""

    folder: str  # as train.start_from names it
    model: Mapping[str, Any]  # all of [model]
    tokenizer: Mapping[str, Any]  # [tokenizer]: the path, and all settings that matter beside it
    next_sentence: bool  # whether it has the head for data.next_sentence
    moments: bool  # whether the optimizer's are there too


def _apply_start(values: Mapping[str, Any], stated: Mapping[str, Any], start: Start, reference: str) -> dict[str, Any]:
    """The settings of a run, `values`, with [model], [tokenizer] and `train.start_from` replaced by those of `start`; the run
    may set another tokenizer file.

    `stated` are the settings that the run file or an override sets itself. They must not contradict the model; those that the
    run file inherits are replaced. Raises ConfigError naming every setting that does not fit.
    """
    model, train, data = (_group(stated, name) for name in ("model", "train", "data"))
    wrong = _contradictions("model", model, start.model)
    tokenizer = {**_group(stated, "tokenizer")}
    allowed = {"allow_unknown": tokenizer.pop("allow_unknown")} if "allow_unknown" in tokenizer else {}
    other_vocabulary = tokenizer.get("path") not in (None, start.tokenizer["path"])
    if not other_vocabulary:
        wrong += _contradictions("tokenizer", tokenizer, start.tokenizer)
    elif train.get("start_optimizer") is True:
        wrong.append("train.start_optimizer is true, but the moments are of another vocabulary: leave it out")
    wrong += _contradictions("train", {k: v for k, v in train.items() if k == "start_from"}, {"start_from": start.folder})
    architecture = _group(values, "model").get("architecture", start.model["architecture"])
    if architecture != start.model["architecture"] and "architecture" not in model:
        wrong.append(
            f"{reference} is for model.architecture = {_show(architecture)}, not for {_show(start.model['architecture'])}, "
            "which is there: take a recipe for it"
        )
    if train.get("start_optimizer") is True and not start.moments:
        wrong.append(f"train.start_optimizer is true, but there is no {OPTIMIZER_FILE}: leave it out")
    if wrong:
        lines = "\n".join(f"  {line}" for line in wrong)
        raise ConfigError(
            f"{reference} does not go with the model of {start.folder}:\n{lines}\nLeave these settings out, or start from "
            "another model. What a run file extends gives way by itself."
        )
    if _group(values, "data").get("next_sentence") is True and not start.next_sentence:
        says = "data.next_sentence is true" if "next_sentence" in data else f"{reference} has data.next_sentence = true"
        raise ConfigError(
            f"{says}, but the model of {start.folder} has no next-sentence head: set data.next_sentence=false (in the run "
            "file, or with --set)"
        )
    free = {name: value for name, value in model.items() if name in FREE}
    moments = start.moments and not other_vocabulary
    beginning = {"start_from": start.folder, "start_optimizer": train.get("start_optimizer", moments)}
    return {
        **values,
        "model": {**start.model, **free},
        "tokenizer": {**(tokenizer if other_vocabulary else start.tokenizer), **allowed},
        "train": {**_group(values, "train"), **beginning},
    }


def _group(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = values.get(name, {})
    return group if is_table(group) else {}  # validation reports anything else


def _contradictions(prefix: str, stated: Mapping[str, Any], start: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, value in stated.items():
        if prefix == "model" and name in FREE:
            continue
        full, imported = f"{prefix}.{name}", start.get(name)
        value = _unset(value)
        if is_table(value) and is_table(imported):
            lines += _contradictions(full, value, imported)
        elif name not in start:
            if prefix == "tokenizer" and value != _unset(getattr(TokenizerConfig(), name, None)):
                lines.append(f"{full} would not be read, as the tokenizer is taken from there")
            elif prefix != "tokenizer":
                lines.append(f"{full} is no setting.{suggest(name, start)}")
        elif name == "embedding_size":
            if (value or start["hidden_size"]) != (imported or start["hidden_size"]):
                lines.append(f"{full} is {_show(value)}, and {_show(imported)} there")
        elif value != imported:
            lines.append(f"{full} is {_show(value)}, and {_show(imported)} there")
    return lines


def _unset(value: Any) -> Any:
    return None if value == "none" else value
