"""The label map of a data set: the names of its classes, their order, and the labels of examples as numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np

from tpulm.corpus.documents import Fault
from tpulm.errors import ConfigError, DataError, shorten, suggest
from tpulm.labelled.examples import Examples, label_fault, label_text

_MOST_NUMBERS: Final = 1_000  # more are probably measurements
FEW_EXAMPLES: Final = 20  # with so few, each may have a class of its own


def label_name(value: Any) -> str:
    """The name that identifies a label: 1 and "1" are one label, True is "true", and 1.0 stays "1.0"; see `label_text`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return label_text(value) if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class LabelSet:
    """The classes, in the order of their ids. C, their number, is `len`."""

    values: tuple[Any, ...]  # as the user gave them or as they first occur in the data: str (as its name), int, float or bool
    names: tuple[str, ...]
    ids_known: bool = False  # the user gave the order, and not numbers, so data may have ids 0 … C-1 instead of names

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_names(cls, names: Iterable[Any]) -> LabelSet:
        """The classes as named by the user, in that order.

        Raises ConfigError for fewer than two, for blank or equal names, and for anything but a list: a set has no order.
        """
        if isinstance(names, (str, bytes, Mapping, Set)) or not isinstance(names, Iterable):
            raise ConfigError(
                f"the labels are a {type(names).__name__}; give a list or tuple of names, in the order of the outputs: "
                "labels=('neg', 'pos')"
            )
        given = [name.item() if isinstance(name, np.generic) else name for name in names]
        known = tuple(map(label_name, given))
        if len(known) < 2:
            raise ConfigError(f"{len(known)} labels are given; a classifier has at least two")
        if not all(known):
            raise ConfigError(f"a label without a name is given: {', '.join(map(repr, known))}")
        twice = next((name for name, count in Counter(known).items() if count > 1), None)
        if twice is not None:
            raise ConfigError(f"the label '{twice}' is given {known.count(twice)} times; name each class once")
        values = tuple(map(_cleaned, given))
        return cls(values, known, ids_known=any(as_number(name) is None for name in known))

    @classmethod
    def of(cls, examples: Examples, *, several: bool = False) -> LabelSet:
        """The classes that occur: sorted by value if all names are numbers, else by code point; `several`: of multi-label sets.

        Raises DataError for a single class, for so many that they are hardly classes, and for two names of one number.
        """
        by_name: dict[str, Any] = {}
        for value in labels_of(examples):
            by_name.setdefault(label_name(value), _cleaned(value))
        numbers = {name: Decimal(name) for name in by_name if as_number(name) is not None}  # exact above 2^53, too
        all_numbers = len(numbers) == len(by_name)
        _check_number(by_name, examples, numbers=all_numbers and not several)
        names = sorted(by_name, key=numbers.__getitem__) if all_numbers else sorted(by_name)
        known: dict[Decimal, str] = {}
        for name, number in numbers.items():
            other = known.setdefault(number, name)
            if other != name:
                raise DataError(
                    f"the labels '{other}' and '{name}' are one number written in two ways; write them alike.",
                    location=_file_of(examples),
                )
        return cls(tuple(by_name[name] for name in names), tuple(names))

    def encode(self, examples: Examples) -> np.ndarray:
        """The class of each example, int32 [examples]. Raises DataError for an unknown label, and like `are_ids`."""
        names = [label_name(value) for value in labels_of(examples)]
        known = map(str, range(len(self))) if self.are_ids(examples) else self.names
        ids = {name: index for index, name in enumerate(known)}
        unknown = [index for index, name in enumerate(names) if name not in ids]
        if unknown:
            raise DataError(self._unknown([names[index] for index in unknown]), location=examples.places[unknown[0]])
        return np.fromiter((ids[name] for name in names), np.int32, len(names))

    def are_ids(self, examples: Examples) -> bool:
        """Whether all labels are ids, and no class has such a name. Raises DataError where ids are also numbers in the names of
        other classes: 1 of "1 star", "2 stars"."""
        used = {label_name(value) for value in labels_of(examples)}
        if not self.ids_known or not used.isdisjoint(self.names) or not used <= set(map(str, range(len(self)))):
            return False
        numbered = {str(int(match[0])): name for name in self.names if (match := re.search(r"\d+", name))}
        for index, name in enumerate(self.names):
            if (other := numbered.get(str(index), name)) != name:
                raise DataError(
                    f"the labels are numbers, and {index} may be '{other}' or, as an id from 0, '{name}'; label examples by "
                    "the names of their classes.",
                    location=_file_of(examples),
                )
        return True

    def _unknown(self, names: list[str]) -> str:
        known = shorten(", ".join(f"'{name}'" for name in self.names), 200, quoted=False)
        more = ""
        if len(names) > 1:
            others = len(set(names)) - 1
            more = f" So have {len(names) - 1} more examples{f', with {others} other unknown labels' if others else ''}."
        ids = f" Numbers 0 to {len(self) - 1} may stand for them, where all labels are numbers." if self.ids_known else ""
        amounts = are_amounts((*self.names, *names))
        advice = " Numbers to predict, not classes, need --regression." if amounts else suggest(names[0], self.names)
        return f"its label '{names[0]}' is none of the classes: {known}.{advice}{ids}{more}"


NO_CLASSES: Final = LabelSet((), ())  # of a task without classes


def number_fault(label: Any, task: str = "a regression") -> Fault:
    """Why a value is not a finite number; `task` names what needs one."""
    if (fault := label_fault(label)) is not None or as_number(label_name(label)) is not None:
        return fault
    advice = " Without --regression it is a class." if task == "a regression" else ""
    return "no_label", f"its label '{label_name(label)}' is not a finite number, as {task} needs.{advice}"


def numbers(examples: Examples) -> np.ndarray:
    """The labels as float32 [examples], for examples whose labels were read as numbers."""
    return np.array([as_number(label_name(value)) for value in labels_of(examples)], np.float32)


def labels_of(examples: Examples) -> list[Any]:
    """The labels. Raises DataError for examples that were read without them."""
    if examples.labels is None:
        raise DataError("these examples were read without labels; read them with labelled=True.")
    return examples.labels


def are_amounts(names: Iterable[str]) -> bool:
    """Whether all are numbers, and some are no whole ones."""
    values = [as_number(name) for name in names]
    return None not in values and any(value and value % 1 for value in values)


def as_number(name: str) -> float | None:
    """The number that a name spells, if it is finite in float32 and written as in data files; else None."""
    try:
        value = float(name)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= _LARGEST and "_" not in name else None


_LARGEST: Final = float(np.finfo(np.float32).max)


def _cleaned(value: Any) -> Any:
    return label_name(value) if isinstance(value, str) else value


def _file_of(examples: Examples) -> str:
    return examples.places[0].rpartition(", ")[0]  # "reviews.tsv.gz, line 7"


def _check_number(by_name: dict[str, Any], examples: Examples, *, numbers: bool) -> None:
    count = len(examples)
    if len(by_name) == 1:
        raise DataError(
            f"all {count} examples have the label '{next(iter(by_name))}'; to tell classes apart takes at least two.",
            location=_file_of(examples),
        )
    if (numbers and len(by_name) > _MOST_NUMBERS) or (count > FEW_EXAMPLES and len(by_name) > count / 2):
        some = ", ".join(shorten(name, 30) for name in list(by_name)[:3])
        fix = "The column of the classes is named with --label-column"
        fix += "; measurements are learned with --regression." if numbers else "."
        raise DataError(
            f"{count} examples have {len(by_name)} different labels ({some}, …), too many to be classes. {fix}",
            location=_file_of(examples),
        )
