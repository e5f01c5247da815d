"""The steps of training one by one, for a loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tpulm.train.compiled import Compiled
from tpulm.train.loop import Stream
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


def steps_of(program: Compiled, stream: Stream, state: TrainState, first: int, last: int, *, cursor: int = 0) -> Iterator[Step]:
    """Updates `first` to `last` from this state on; `cursor` is the number of rows before them."""
    for step, (place, batch) in zip(range(first, last), stream.iterate(cursor), strict=False):
        update = program.step_at(batch["tokens"].shape[1])
        state, _ = update(state, program.to_devices(batch), program.cursor(place))
        yield Step(step + 1, state, WindowMetrics(partial(program.window_metrics, state)))
