"""What a loop of one's own reads beside the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tpulm.train.step import TrainState


class WindowMetrics(Mapping[str, float]):
    """Means over all devices and the steps since the last multiple of `log_every_steps`, such as "loss" and "grad_norm".

    Computed when first looked at, so that steps which nobody asks about wait for nothing; look before the next step.
    """

    def __init__(self, read: Callable[[], dict[str, float]]):
        self._read = read
        self._values: dict[str, float] | None = None

    def _all(self) -> dict[str, float]:
        if self._values is None:
            self._values = self._read()
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


class Step(NamedTuple):
    """One update, `step` of them done; the state is valid until the next."""

    step: int
    state: TrainState
    metrics: WindowMetrics
