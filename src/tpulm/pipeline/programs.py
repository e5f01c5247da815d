"""The compiled programs of a run, one for each phase; the first is compiled in a thread while its data is prepared."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import PurePath
from typing import TYPE_CHECKING

from tpulm import tokenization
from tpulm.config import HardwareConfig, Phase, RunConfig
from tpulm.progress import Progress
from tpulm.runtime import interrupt, watchdog
from tpulm.tokenization import Vocabulary

if TYPE_CHECKING:  # JAX takes seconds to import and no stage before training needs it
    from tpulm.train.program import PretrainingProgram


class Programs:
    """Programs by phase, each compiled on first use, or ahead."""

    def __init__(self, workdir: PurePath, progress: Progress, *, read_only: bool = False):
        """`read_only`: only for evaluation, on one device, while another process trains."""
        self._workdir, self._progress, self._read_only = workdir, progress, read_only
        self._programs: dict[int, Future[PretrainingProgram]] = {}
        self._vocabulary: Vocabulary | None = None

    def begin(self, phase: Phase) -> None:
        """Compile for the vocabulary that the settings will lead to, while tokenizer and dataset are made."""
        self._compile(phase, self._expected(phase))

    def check_settings(self, phases: Sequence[Phase]) -> None:
        """Raise errors that no data mends, such as a mesh of other devices than there are, or a batch that does not divide."""
        for phase in phases:
            _program(phase.config, self._expected(phase), self._workdir, read_only=self._read_only)

    def _expected(self, phase: Phase) -> Vocabulary:
        """The same for all phases."""
        self._vocabulary = self._vocabulary or tokenization.expected(phase.config.tokenizer)
        return self._vocabulary

    def check(self) -> None:
        """Raise errors so far: better now than after hours of preparation."""
        for future in self._programs.values():
            if future.done():
                future.result()

    def get(self, phase: Phase, vocabulary: Vocabulary) -> PretrainingProgram:
        """The program for this run's vocabulary, compiled ahead if that was expected."""
        if phase.number in self._programs:
            program = self._wait(phase)
            if (program.vocab_size, program.special) == vocabulary:
                return program
        self._compile(phase, vocabulary)
        return self._wait(phase)

    def _wait(self, phase: Phase) -> PretrainingProgram:
        future = self._programs[phase.number]
        if not future.done():
            watchdog.report("compile")
            self._progress.start("Compiling")
        while not future.done():
            concurrent.futures.wait([future], timeout=0.2)
            interrupt.check("the dataset is kept")
        return future.result()

    def _compile(self, phase: Phase, vocabulary: Vocabulary) -> None:
        """Compile in a daemon thread, which does not delay the end of the process; an error comes with the result."""
        future: Future[PretrainingProgram] = Future()

        def work() -> None:
            try:
                program = _program(phase.config, vocabulary, self._workdir, read_only=self._read_only)
                if not self._read_only:
                    program.compile()
                future.set_result(program)
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="compile", daemon=True).start()
        self._programs[phase.number] = future


def _program(config: RunConfig, vocabulary: Vocabulary, workdir: PurePath, *, read_only: bool) -> PretrainingProgram:
    import jax

    from tpulm.train.program import PretrainingProgram, enable_compilation_cache, recorded_compute_dtype

    enable_compilation_cache(None if read_only else workdir)
    if config.train.compute_dtype == "auto":
        recorded = recorded_compute_dtype(workdir)
        config = config.model_copy(update={"train": config.train.model_copy(update={"compute_dtype": recorded})})
    devices = jax.local_devices()[:1] if read_only else None
    if read_only:
        config = config.model_copy(update={"hardware": HardwareConfig()})
    return PretrainingProgram(config, vocab_size=vocabulary.vocab_size, special=vocabulary.special, devices=devices)
