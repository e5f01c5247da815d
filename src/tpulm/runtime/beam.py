"""Tasks on Apache Beam: the functions that a local pool of processes computes, on a cluster (Dataflow, Flink, Spark).

Tasks are sent pickled and results come back through one file in the work folder, since a cluster's workers share nothing else
with this process. Errors that a user can fix (TpulmError) come back as results, too: a cluster would otherwise try bad input
four times. All other failures are the cluster's to retry: tasks are restartable.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tpulm import storage
from tpulm.errors import ConfigError, MissingExtra, TpulmError, installing, suggest
from tpulm.runtime import interrupt

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

Result = TypeVar("Result")

_ON_THIS_MACHINE: Final = {
    None,
    "DirectRunner",
    "SwitchingDirectRunner",
    "BundleBasedDirectRunner",
    "FnApiRunner",
    "PrismRunner",
}
_POLL_MILLISECONDS: Final = 2000
_LOG_LEVEL: Final = "--default_sdk_harness_log_level"


class _Outcome(NamedTuple):
    value: Any
    error: TpulmError | None = None


class BeamRunner:
    """Runs tasks in pipelines with these options, which are Beam's own (`--runner=DataflowRunner --region=…`).

    Raises ConfigError for options unknown to Beam, and for a cluster that cannot reach the work folder.
    """

    def __init__(self, options: Sequence[str], workdir: PurePath):
        self._options = _parse(options)
        self._folder = storage.as_path(workdir)
        name = _runner_name(self._options)
        if name == "DataflowRunner" and not storage.is_remote(self._folder):
            raise ConfigError(f"{name}'s machines do not see {self._folder}: name a work folder in the cloud, --workdir gs://…")

    def __call__(self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Result]:
        """Yield function(*task) for each task, in any order, once all are computed.

        A task's first TpulmError is raised here unchanged; other failures are Beam's own exceptions.
        """
        work = [pickle.dumps((function, task)) for task in tasks]
        if not work:
            return
        results = self._folder / "beam" / f"{uuid.uuid4().hex}.pickle"
        storage.make_folder(results.parent)
        try:
            self._compute(work, str(results))
            outcomes = [pickle.loads(outcome) for outcome in pickle.loads(storage.read_bytes(results))]
        finally:
            storage.remove(results.parent)
        failures = [outcome.error for outcome in outcomes if outcome.error is not None]
        if failures:
            raise failures[0]
        for outcome in outcomes:
            yield outcome.value

    def _compute(self, work: list[bytes], results: str) -> None:
        import apache_beam as beam
        from apache_beam.runners.runner import PipelineState

        pipeline = beam.Pipeline(options=self._options)
        _ = (
            pipeline
            | "Tasks" >> beam.Create(work, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Compute" >> beam.Map(_compute)
            | "Gather" >> beam.combiners.ToList()
            | "Results" >> beam.Map(_write, results)
        )
        running = pipeline.run()
        if _runner_name(self._options) in _ON_THIS_MACHINE:
            running.wait_until_finish()
            return
        while not PipelineState.is_terminal(running.state):
            try:
                interrupt.check("finished parts are kept")
            except TpulmError:
                with contextlib.suppress(NotImplementedError):
                    running.cancel()
                raise
            running.wait_until_finish(duration=_POLL_MILLISECONDS)
        if running.state != PipelineState.DONE:
            raise TpulmError(f"the Beam pipeline ended as {running.state}; its own log says why. Finished parts are kept.")


def _compute(pickled: bytes) -> bytes:
    function, task = pickle.loads(pickled)
    try:
        interrupt.check("finished parts are kept")
        return pickle.dumps(_Outcome(function(*task)))
    except TpulmError as error:
        return pickle.dumps(_Outcome(None, error))


def _write(outcomes: list[bytes], path: str) -> None:
    storage.write_atomic(storage.as_path(path), pickle.dumps(outcomes))


def _parse(options: Sequence[str]) -> PipelineOptions:
    logging.disable(logging.WARNING)  # on import it warns of packages that are not needed
    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise MissingExtra(f"preparing on a cluster needs a package more: {installing('beam')}") from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    has_log_level = any(option.startswith(_LOG_LEVEL) for option in options)
    parsed = PipelineOptions([*options] if has_log_level else [*options, f"{_LOG_LEVEL}=ERROR"])
    known = list(parsed.get_all_options())
    for option in options:
        name = option.removeprefix("--").partition("=")[0].replace("-", "_")
        if option.startswith("--") and not any(word in known for word in (name, name.removeprefix("no_"))):
            raise ConfigError(
                f"Beam has no option --{name}.{suggest(name, known)} Its options follow after '--', for instance "
                "-- --runner=DataflowRunner --project=P --region=R --temp_location=gs://B/tmp"
            )
    return parsed


def _runner_name(options: PipelineOptions) -> str | None:
    return options.get_all_options().get("runner")
