"""User-written loops around the compiled step, for pretraining and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, overload

from tpulm import pipeline
from tpulm.config import RunConfig
from tpulm.errors import ConfigError
from tpulm.finetuning import Classifier
from tpulm.progress import SILENT, Progress
from tpulm.train.loop import TrainStep


@overload
def training_steps(what: RunConfig, data: str | PurePath, *, progress: Progress = SILENT) -> Iterator[TrainStep]: ...
@overload
def training_steps(what: Classifier, data: Any) -> Iterator[TrainStep]: ...
def training_steps(what: RunConfig | Classifier, data: Any, *, progress: Progress = SILENT) -> Iterator[TrainStep]:
    """(step, state, metrics) after each compiled step: batches sharded over all devices, metrics summed over them.

    `training_steps(config, workdir)` pretrains, after preparing the data. `training_steps(classifier, train)` fine-tunes, with
    the very steps of `Classifier.fit`. Nothing is saved or scored, and training begins at step 0. The state is valid until the
    next step, and so are metrics that were not read.
    """
    if isinstance(what, Classifier):
        return what.steps(data)
    if isinstance(what, RunConfig):
        return pipeline.training_steps(what, data, progress=progress)
    raise ConfigError(f"training_steps takes a run's configuration or a Classifier, not {type(what).__name__}")
