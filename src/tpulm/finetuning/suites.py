"""Benchmarks of several tasks, as described in suites.toml: files, columns, settings, and published scores."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import PurePath
from typing import Any, NamedTuple

from pydantic import Field

from tpulm import storage
from tpulm.config.finetune import METRICS
from tpulm.config.schema import Settings
from tpulm.config.validation import validated
from tpulm.corpus.readers.jsonl import UnusableRecord, show
from tpulm.corpus.readers.lines import suffixes
from tpulm.errors import ConfigError, DataError, some_of, suggest
from tpulm.finetuning.tasks import Task
from tpulm.labelled import Columns, Examples, hold_out, read_examples
from tpulm.labelled.labels import label_name
from tpulm.labelled.records import BENCH_WORDING

_REPORTED_FRACTION = 0.2  # of the examples, if there is only one file

Patterns = tuple[str, ...]


class Parts(Settings):
    """Patterns of file names, of which the first that matches any file counts."""

    train: Patterns
    dev: Patterns


class BenchTask(Settings):
    """suites.toml documents the fields."""

    title: str
    metrics: tuple[str, ...]
    unsupported: str = ""  # why tpulm cannot do it
    task: str = "classification"
    part: Parts = Parts(train=(), dev=())
    also: dict[str, Patterns] = Field(default_factory=dict)
    text: str = ""  # none: as the task reads its files
    pair: str | None = None
    label: str = "label"
    header: bool = True
    labels: tuple[str, ...] = ()
    positive: str = ""
    negative: str = ""
    marked: bool = False
    settings: dict[str, Any] = Field(default_factory=dict)
    learning_rates: tuple[float, ...] = ()  # none: the suite's
    skip_malformed: bool = False

    @property
    def why_not(self) -> str:
        """Why it cannot be done, or "" if it can."""
        return self.unsupported or ("" if self.task in METRICS else f"tpulm has no task '{self.task}'")


class Baseline(Settings):
    model: str
    source: str
    scores: dict[str, tuple[float, ...]]  # percent, by task, in the order of its metrics; the last ones may be missing


class Suite(Settings):
    title: str
    published: str  # what the baselines' scores are of
    chosen: str  # how they were chosen
    source: str
    learning_rates: dict[str, tuple[float, ...]] = Field(min_length=1)  # by architecture; "default" for others
    tasks: dict[str, BenchTask]
    baselines: tuple[Baseline, ...]

    def chosen_tasks(self, names: Sequence[str]) -> dict[str, BenchTask]:
        """All tasks, or the named ones. Raises ConfigError for an unknown name."""
        for name in names:
            if name not in self.tasks:
                raise ConfigError(
                    f"{self.title} has no task '{name}'.{suggest(name, self.tasks)} It has {', '.join(self.tasks)}"
                )
        return {name: task for name, task in self.tasks.items() if not names or name in names}

    def rates(self, task: BenchTask, architecture: str) -> tuple[float, ...]:
        return task.learning_rates or self.learning_rates.get(architecture, self.learning_rates["default"])


def suites() -> dict[str, Suite]:
    text = (resources.files("tpulm.finetuning") / "suites.toml").read_text(encoding="utf-8")
    return {name: validated(Suite, values, f"the suite {name}") for name, values in storage.parse_toml(text).items()}


def find_suite(name: str) -> Suite:
    known = suites()
    if name not in known:
        there = f"There are {', '.join(known)}, and for 'tpulm bench' pairs"
        raise ConfigError(f"no suite is named '{name}'.{suggest(name, [*known, 'pairs'])} {there}")
    return known[name]


# -- files --------------------------------------------------------------------------------------------------------------------


class TaskFiles(NamedTuple):
    """The files of a task, by part; and a message on what is missing."""

    files: dict[str, PurePath]
    missing: str = ""
    note: str = ""  # if the parts differ from the benchmark's


def find_files(task: BenchTask, folder: PurePath, names: Iterable[str]) -> TaskFiles:
    """The task's files, of one folder if one has all parts, and of the newest version; `names` are those of all files below
    the folder."""
    patterns_by_part = {"train": task.part.train, "dev": task.part.dev, **task.also}
    names, by_folder = list(names), defaultdict[PurePath, list[str]](list)
    for name in names:
        by_folder[PurePath(name).parent].append(name)
    found = [_matches(patterns_by_part, some) for some in by_folder.values()]
    whole = [matches for matches in found if len(matches) == len(patterns_by_part)]
    matches = max(whole, key=lambda matches: list(matches.values()), default=_matches(patterns_by_part, names))
    files = {part: folder / match.name for part, match in matches.items()}
    missing = [patterns[0] for part, patterns in patterns_by_part.items() if part not in files]
    if "dev" not in files or (missing and "train" in files):
        return TaskFiles({}, f"no {' and no '.join(missing)} (.gz may follow) below {folder}")
    if missing:  # a part of dev is trained on
        percent = f"{_REPORTED_FRACTION:.0%}"
        note = f"no {missing[0]}: {percent} of {files['dev'].name} is reported on, the rest trained on; not to be compared"
        return TaskFiles(files, note=note)
    return TaskFiles(files)


class _Match(NamedTuple):
    """A later one is better."""

    precedence: int  # of the pattern
    version: list[str | int]  # the name, with its numbers as such
    name: str


def _matches(patterns_by_part: Mapping[str, Patterns], names: Iterable[str]) -> dict[str, _Match]:
    """The best file of each part that has any."""
    unused, best = set(names), dict[str, _Match]()
    for part, patterns in patterns_by_part.items():
        numbered = [(-number, pattern) for number, pattern in enumerate(patterns)]
        fitting = [_Match(rank, _version(name), name) for rank, pattern in numbered for name in unused if _fits(name, pattern)]
        if fitting:
            best[part] = max(fitting)
            unused.remove(best[part].name)
    return best


def _version(name: str) -> list[str | int]:
    return [int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", name)]


def _fits(name: str, pattern: str) -> bool:
    plain = PurePath(name).with_suffix("").as_posix() if suffixes(name)[1] else name
    return fnmatch.fnmatchcase(f"/{plain}", f"*/{pattern}")


# -- examples -----------------------------------------------------------------------------------------------------------------


def read_parts(entry: BenchTask, task: Task, files: Mapping[str, PurePath], encoding: str = "utf-8") -> dict[str, Examples]:
    """The examples to train on ("train"), to report on ("dev"), and those of `also`. Raises DataError for labels that the
    benchmark does not have."""
    columns = Columns(entry.text or "text", entry.label, entry.pair, header=entry.header, encoding=encoding)
    on_error = "skip" if entry.skip_malformed else "stop"
    read = partial(read_examples, fault=task.fault, adapt=mark_entities) if entry.marked else task.read
    parts = {part: read(path, columns, on_error=on_error, wording=BENCH_WORDING) for part, path in files.items()}
    for part, examples in parts.items() if entry.labels else ():
        unknown = sorted({label_name(label) for label in examples.labels or ()} - set(entry.labels))
        if unknown:
            raise DataError(
                f"labels that {entry.title} does not have: {some_of(unknown)}. It has {', '.join(entry.labels)}; is this the "
                "benchmark's own file?",
                location=str(files[part]),
            )
    if "train" not in parts:
        whole = parts["dev"]
        split = hold_out(task.held_out_by(whole), None, fraction=_REPORTED_FRACTION)
        parts |= {"train": whole.take(split.train), "dev": whole.take(split.held_out)}
    return parts


def mark_entities(row: dict[str, Any]) -> dict[str, Any]:
    """A row of KLUE-RE with <subj>…</subj> and <obj>…</obj> in its sentence; "end_idx" is that of the last character.

    Raises UnusableRecord for a row without two non-overlapping entities. Source: KLUE-benchmark/KLUE-baseline,
    klue_baseline/data/klue_re.py @443c38b, where the marks are new tokens; here they are text, which every tokenizer can
    encode.
    """
    try:
        text, marks = row["sentence"], list[tuple[int, int, str]]()
        for kind, name in (("subject_entity", "subj"), ("object_entity", "obj")):
            marks.append((row[kind]["start_idx"], row[kind]["end_idx"] + 1, name))
        (begin, end, first), (again, last, second) = sorted(marks)
        if not 0 <= begin < end <= again < last <= len(text):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableRecord(
            "no_field",
            "it has no sentence with two entities beside each other (subject_entity and object_entity, with start_idx and "
            f"end_idx): {show(row)}; is this KLUE-RE's own file?",
        ) from error
    pieces = (text[:begin], f"<{first}>{text[begin:end]}</{first}>", text[end:again])
    return {**row, "sentence": "".join([*pieces, f"<{second}>{text[again:last]}</{second}>", text[last:]])}
