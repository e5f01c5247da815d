"""A compiled training program: an objective and its optimizer on a device mesh, and the compilation cache.

Nothing here needs the data: compiling takes as long as preparing a small dataset, so the pipeline compiles in a thread while
the dataset is prepared (pipeline/programs.py).
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh
from jax.stages import Lowered

from tpulm import accelerators, objectives, storage
from tpulm.config import HardwareConfig, RunConfig, TrainConfig
from tpulm.errors import ConfigError, StorageError
from tpulm.nn.attention import has_kernels, kernels_agree
from tpulm.nn.params import count
from tpulm.nn.transformer import Execution
from tpulm.objectives import Column, Objective, Setup, TrainingObjective
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Tokenization
from tpulm.train.mesh import batch_sharding, check_hosts, layout_batch, make_mesh, replicated, to_global_array
from tpulm.train.optimizer import Moments, learning_rate, make_optimizer, with_moments
from tpulm.train.step import (
    StepOutput,
    TrainState,
    evaluate_batch,
    initialize_state,
    make_step,
    state_shardings,
    sum_shapes,
    with_shardings,
)

COMPILED = "compiled"  # the cache folder, also in a work folder in a bucket
MOST_BYTES = 4 << 30  # of the cache; a program takes 1 to 200 MB
_OPTIMIZATION_LEVEL = "xla_backend_optimization_level"
_LEAST_SECONDS = 0.5  # of compilation, for a program to be cached
_own_folder = ""  # the cache folder this process set, if JAX's environment names none


class CompileStats(NamedTuple):
    """Compilation statistics of this process."""

    seconds: float = 0.0  # in XLA, or reading from the cache
    programs: int = 0  # compiled here and added to the cache
    cache_hits: int = 0


_stats = CompileStats()


def enable_compilation_cache(workdir: PurePath | None = None) -> None:
    """Enable JAX's persistent compilation cache: local, or in a work folder in a bucket, where a replacement machine finds it.

    JAX's keys cover program, compiler, flags and devices; the first of several hosts writes, each file atomically, and programs
    that cannot be read are compiled (docs.jax.dev/en/latest/persistent_compilation_cache.html). A folder named in JAX's
    environment takes precedence.
    """
    global _own_folder
    _listen()
    if (place := jax.config.values["jax_compilation_cache_dir"]) and place != _own_folder:
        return
    folder: PurePath = storage.cache_folder(COMPILED)
    if workdir is not None and storage.is_remote(workdir):
        folder = _of_this_processor(workdir / COMPILED)
        evict_oldest(workdir / COMPILED)
        storage.orbax_folder(folder)  # JAX accesses the bucket the same way
    if str(folder) == _own_folder:
        return
    _own_folder = str(folder)
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", _own_folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    if storage.is_remote(folder):  # XLA's own caches, for GPUs, support local files only
        jax.config.update("jax_persistent_cache_enable_xla_caches", "")


@contextlib.contextmanager
def nothing_added_to_cache(workdir: PurePath | None = None) -> Generator[None]:
    """Programs compiled meanwhile are not kept for the next process."""
    enable_compilation_cache(workdir)
    name = "jax_persistent_cache_min_compile_time_secs"
    least = jax.config.values[name]
    jax.config.update(name, float("inf"))
    try:
        yield
    finally:
        jax.config.update(name, least)


def compile_stats() -> CompileStats:
    """The statistics so far."""
    return _stats


@cache
def _listen() -> None:
    def add(event: str, **_: Any) -> None:
        global _stats
        if event == "/jax/compilation_cache/cache_hits":
            _stats = _stats._replace(cache_hits=_stats.cache_hits + 1)
        elif event == "/jax/compilation_cache/cache_misses":  # sent when a program is added
            _stats = _stats._replace(programs=_stats.programs + 1)

    def add_seconds(event: str, duration_secs: float, **_: Any) -> None:
        global _stats
        if event == "/jax/core/compile/backend_compile_duration":
            _stats = _stats._replace(seconds=_stats.seconds + duration_secs)

    jax.monitoring.register_event_listener(add)
    jax.monitoring.register_event_duration_secs_listener(add_seconds)


def _of_this_processor(folder: PurePath) -> PurePath:
    """The cache folder of this processor: XLA uses its instructions, which another may lack, and JAX's key ignores them."""
    if jax.default_backend() != "cpu":
        return folder
    described = platform.machine() + accelerators.cpu_features()
    return folder / f"cpu-{hashlib.sha256(described.encode()).hexdigest()[:8]}"


def evict_oldest(folder: PurePath, most_bytes: int = MOST_BYTES) -> None:
    """Remove the oldest programs beyond `most_bytes` in total; a program needed again is compiled again."""
    try:
        files = sorted(storage.walk(folder).items(), key=lambda item: item[1].modified_ns, reverse=True)
        total, old = 0, list[str]()
        for name, info in files:
            total += info.size
            if total > most_bytes:
                old.append(name)
        storage.remove_files(folder, old)
    except StorageError:  # what matters fails later and says why
        pass


BatchShapes = Mapping[str, tuple[tuple[int, ...], Any]]  # column -> (shape, dtype), rows first
# (state, batch, cursor, seed), the last two from `BaseProgram.cursor` and `BaseProgram.scalar`; the state is donated
StepFunction = Callable[[TrainState, Mapping[str, jax.Array], jax.Array, jax.Array], StepOutput]


class BaseProgram:
    """What pretraining and fine-tuning share. Raises ConfigError where the batch or the model does not divide over the devices.

    `sequence_length` is that of the longest rows. `memory_bytes` is a device's memory, where it decides what is saved for the
    backward pass (remat "auto" on a GPU).
    """

    def __init__(
        self,
        objective: TrainingObjective,
        train: TrainConfig,
        hardware: HardwareConfig,
        *,
        sequence_length: int,
        token_dtype: Any,
        devices: Sequence[Any],
    ):
        self.mesh = make_mesh(hardware, devices)
        check_hosts(self.mesh)
        self.layout = layout_batch(train.batch_size, self.mesh, hardware.microbatch_size)
        self.objective: TrainingObjective = objective
        self._token_dtype = token_dtype
        self.memory_bytes: int | None = None
        if hardware.remat == "auto" and (device := self.mesh.local_devices[0]).platform == "gpu":
            self.memory_bytes = (device.memory_stats() or {}).get("bytes_limit")
        self._train, self._seed, self._first_params = train, train.seed, None
        self._compiled: dict[int, StepFunction] = {}  # by row length
        self.num_parameters = count(objective.spec)
        self._optimizer = make_optimizer(train.optimizer, train.steps, objective.spec)
        self._sum_shapes = sum_shapes(objective, self._shapes(self.batch_shapes(sequence_length)), train.batch_size)
        averages = train.optimizer.average_decay is not None
        self._initializer = partial(initialize_state, objective, self._optimizer, sums=self._sum_shapes, averages=averages)
        abstract = jax.eval_shape(self._initializer, self._scalar_shape)
        self._shardings = state_shardings(objective, self._optimizer, self.mesh, abstract)
        self.abstract_state: TrainState = with_shardings(abstract, self._shardings)  # the restore target

    @property
    def compute_dtype(self) -> accelerators.ComputeType:
        return cast("accelerators.ComputeType", jnp.dtype(cast("Any", self.objective).execution.dtype).name)

    def initial_state(self) -> TrainState:
        """The state at step 0: parameters drawn from the seed, or given ones."""
        options = None
        if self.mesh.devices.flat[0].platform == "cpu" and _OPTIMIZATION_LEVEL not in os.environ.get("XLA_FLAGS", ""):
            options = {_OPTIMIZATION_LEVEL: 1}  # a third of the compile time, the same numbers
        initialize = jax.jit(self._initializer, out_shardings=self._shardings, compiler_options=options)
        state: TrainState = initialize(self.scalar(self._seed))
        if self._first_params is None:
            return state
        average = None if state.average is None else self.placed(self._first_params)
        return replace(state, params=self.placed(self._first_params), average=average)

    def placed(self, params: Any) -> Any:
        """Parameters sharded like the state's."""
        return jax.tree.map(to_global_array, jax.device_get(params), self._shardings.params)

    def step_at(self, length: int) -> Callable[[TrainState, Mapping[str, jax.Array], jax.Array], StepOutput]:
        """(state, batch, cursor) -> StepOutput for rows of this length, compiled on first use; the state is donated."""
        if length not in self._compiled:
            self._compiled[length] = self._compile_step(length)
        step, seed = self._compiled[length], self.scalar(self._seed)

        def update(state: TrainState, batch: Mapping[str, jax.Array], cursor: jax.Array) -> StepOutput:
            with jax.transfer_guard("disallow"):  # nothing moves between host and devices unasked
                return step(state, batch, cursor, seed)

        return update

    def _compile_step(self, length: int) -> StepFunction:
        """Compile; where `memory_bytes` is set, save less and less for the backward pass until the step fits."""
        compiled = self.lower_step(length).compile()
        for remat in ("dots", "full"):
            if self.memory_bytes is None or needed_bytes(compiled) <= self.memory_bytes:
                break
            objective: Any = self.objective
            self.objective = replace(objective, execution=objective.execution._replace(remat=remat))
            compiled = self.lower_step(length).compile()
        return compiled

    def lower_step(self, length: int) -> Lowered:
        """The lowered step for XLA. The seed is an argument, so that runs that differ only in the seed share a program."""

        def step(state: TrainState, batch: Mapping[str, jax.Array], cursor: jax.Array, seed: jax.Array) -> StepOutput:
            update = make_step(
                self.objective,
                self._optimizer,
                self.layout,
                seed=seed,
                log_every_steps=self._train.log_every_steps,
                average_decay=self._train.optimizer.average_decay,
            )
            return update(state, batch, cursor)

        cursor = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=replicated(self.mesh))
        shardings = StepOutput(self._shardings, replicated(self.mesh))
        jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings, compiler_options=reproducible(self.mesh))
        return jitted.lower(self.abstract_state, self._shapes(self.batch_shapes(length)), cursor, self._scalar_shape)

    def window_metrics(self, state: TrainState) -> dict[str, float]:
        """The objective's metrics and "grad_norm", over all devices and steps since the last multiple of `log_every_steps`."""
        window = jax.device_get(state.window)
        steps = max(float(window["steps"]), 1.0)
        return {**self.objective.metrics(window), "grad_norm": float(window["grad_norm"]) / steps}

    def learning_rate(self, count: int) -> float:
        """The learning rate of update `count` + 1."""
        return float(np.asarray(learning_rate(self._train.optimizer, self._train.steps)(count)))

    def to_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Global arrays, sharded by rows, from this host's share of a batch."""
        sharding = batch_sharding(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, column) for name, column in batch.items()}

    def scalar(self, value: int) -> jax.Array:
        """A replicated int32."""
        return to_global_array(np.asarray(value, np.int32), replicated(self.mesh))

    def cursor(self, rows: int) -> jax.Array:
        """The number of a batch's first row for the step, as uint32 [2], high word first: a run may visit over 2**32 rows."""
        return to_global_array(np.array(divmod(rows, 1 << 32), np.uint32), replicated(self.mesh))

    def gathered(self, params: Any) -> Any:
        """Parameters as complete NumPy arrays on every host; all hosts must call this."""
        if jax.process_count() == 1:
            return jax.device_get(params)
        whole = jax.jit(lambda leaf: leaf, out_shardings=replicated(self.mesh))
        return jax.tree.map(lambda leaf: jax.device_get(whole(leaf)), params)

    @property
    def _scalar_shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(self.mesh))

    def batch_shapes(self, length: int, *, rows: int | None = None, objective: TrainingObjective | None = None) -> BatchShapes:
        """The shapes of a batch of `rows` rows (by default `batch_size`), with the columns that the objective reads."""
        rows, columns = rows or self.layout.batch_size, (objective or self.objective).columns
        tokens = ((rows, length), self._token_dtype)
        return {"tokens": tokens, **{name: ((rows, *column.shape), column.dtype) for name, column in columns.items()}}

    def _shapes(self, batch: BatchShapes) -> dict[str, jax.ShapeDtypeStruct]:
        sharding = batch_sharding(self.mesh)
        return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in batch.items()}


def needed_bytes(program: jax.stages.Compiled) -> int:
    """The device memory that the program takes while it runs, in bytes; 0 if unknown."""
    sizes: Any = program.memory_analysis()
    if sizes is None:
        return 0
    output_bytes = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + output_bytes


TOKENS_IN_CACHE = 256  # whose logits over 8,000 words fit into a CPU's cache
UNROLLED_FROM_STEPS = 50_000  # on a TPU: 5 ms less per step then repay four more minutes of compiling


def execution_on(
    devices: Sequence[Any], hardware: HardwareConfig, compute_dtype: Literal["auto", "float32", "bfloat16"], *, steps: int = 0
) -> Execution:
    """Resolve "auto" settings for these devices and a run of `steps` steps: bfloat16 where there are fast units for it;
    unrolled layers on a CPU and, in a long run, on a TPU, which are faster; on a CPU the vocabulary's logits by parts; and on a
    TPU only matrix products saved, since its memory is slow compared to its units (docs/experiments.md). A GPU saves
    everything, unless it does not fit (`BaseProgram`).
    """
    platform = devices[0].platform
    dtype = ("float32" if platform == "cpu" else "bfloat16") if compute_dtype == "auto" else compute_dtype
    remat = ("dots" if platform == "tpu" else "none") if hardware.remat == "auto" else hardware.remat
    faster = platform == "cpu" or (platform == "tpu" and steps >= UNROLLED_FROM_STEPS)
    unroll = faster if hardware.unroll == "auto" else hardware.unroll
    split = hardware.fsdp * hardware.tensor > 1
    kernels = hardware.flash_attention and has_kernels(devices[0]) and dtype == "bfloat16" and hardware.tensor == 1
    if kernels and devices[0].client.runtime_type != _COMPILE_ONLY_RUNTIME:
        _check_kernels(platform)
    rows = batch_sharding(make_mesh(hardware, devices)) if split or kernels else None
    at_once = TOKENS_IN_CACHE if platform == "cpu" and len(devices) == 1 else None
    return Execution(jnp.dtype(dtype), remat, unroll, rows if split else None, rows if kernels else None, at_once)


def reproducible(mesh: Mesh) -> dict[str, str | bool] | None:
    """Compiler options under which a program gives the same bits each time. XLA's GPU backend otherwise sums what is scattered,
    such as the gradients of embeddings, in the order in which threads arrive (openxla.org/xla/determinism)."""
    return {"xla_gpu_exclude_nondeterministic_ops": True} if mesh.devices.flat[0].platform == "gpu" else None


_COMPILE_ONLY_RUNTIME = "compile_only_runtime"  # JAX's name for the client of devices that are not attached


@cache
def _check_kernels(platform: Literal["tpu", "gpu"]) -> None:
    """Check the kernels once on the device itself, before days are spent on them: tests compare them with the plain formula in
    interpret mode and compile them. Raises ConfigError."""
    if not kernels_agree(jax.local_devices()[0], platform):
        raise ConfigError(
            "the attention kernels do not give the plain formula's numbers on this device: please report it, and continue with "
            "--set hardware.flash_attention=false"
        )


def fastest_compute_dtype() -> Literal["float32", "bfloat16"]:
    """The dtype that trains fastest here: bfloat16, except on a CPU without instructions for it."""
    slow = jax.default_backend() == "cpu" and not accelerators.cpu_multiplies_bfloat16()
    return "float32" if slow else "bfloat16"


def recorded_compute_dtype(folder: PurePath) -> Literal["float32", "bfloat16"]:
    """What `compute_dtype = "auto"` means in a work folder: on any machine that of its newest readable checkpoint, or the
    fastest here if there is none.

    Versions that recorded nothing computed in float32 on a CPU.
    """
    steps = storage.committed_steps(folder / "checkpoints")
    for step in reversed(steps):
        with contextlib.suppress(StorageError):
            recorded = storage.read_json(folder / "checkpoints" / str(step) / "metadata" / "metadata")
            if (dtype := recorded.get("compute_dtype")) in ("float32", "bfloat16"):
                return dtype
    return "float32" if steps and jax.default_backend() == "cpu" else fastest_compute_dtype()


EVALUATION_BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch; a device has a micro-batch at most


class PretrainingProgram(BaseProgram):
    """The program of a pretraining run; each part is compiled on first use, or all of them by `compile`.

    Raises ConfigError where the batch or the model does not divide over the devices.
    """

    objective: Objective  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: RunConfig, *, vocab_size: int, special: SpecialTokens, devices: Sequence[Any] | None = None):
        devices = list(devices if devices is not None else jax.devices())
        self._first_moments: Moments | None = None
        self._config, self.vocab_size, self.special = config, vocab_size, special
        self._execution = execution_on(devices, config.hardware, config.train.compute_dtype, steps=config.train.steps)
        super().__init__(
            self._objective(evaluation=False),
            config.train,
            config.hardware,
            sequence_length=config.data.sequence_length,
            token_dtype=jnp.uint16 if vocab_size <= 2**16 else jnp.uint32,
            devices=devices,
        )
        each = -(-EVALUATION_BATCH_SIZE // self.layout.shards)
        self.evaluation_batch_size = self.layout.shards * min(each, config.hardware.microbatch_size or each)

    def compile(self) -> None:
        """Compile everything that training needs, the slowest first."""
        _ = self.step, self.evaluation_step

    def start_from(self, params: Any, moments: Moments | None = None) -> None:
        """Begin with these parameters (float32 arrays of the objective's spec) instead of random ones, and with these moments.

        Raises ConfigError if bias correction needs the step of the moments and it is unknown.
        """
        if moments is not None and moments.step is None and self._config.train.optimizer.bias_correction:
            raise ConfigError(
                "train.optimizer.bias_correction needs the step that the optimizer's moments are of, and the checkpoint had "
                "none: set it to false, or train.start_optimizer"
            )
        self._first_params, self._first_moments = params, moments

    def initial_state(self) -> TrainState:
        """The state at step 0: random parameters and zero moments, or those given to `start_from`."""
        state = super().initial_state()
        if (moments := self._first_moments) is None:
            return state
        step = None if moments.step is None else self.scalar(moments.step)
        placed = Moments(self.placed(moments.first), self.placed(moments.second), step)
        return replace(state, optimizer=with_moments(state.optimizer, placed))

    @property
    def lowered_step(self) -> Lowered:
        """The lowered step, with the seed as its last argument."""
        return self.lower_step(self._config.data.sequence_length)

    @property
    def step(self) -> Callable[[TrainState, Mapping[str, jax.Array], jax.Array], StepOutput]:
        """(state, batch, cursor) -> StepOutput; the state is donated."""
        return self.step_at(self._config.data.sequence_length)

    @cached_property
    def evaluation_step(self) -> Callable[..., Any]:
        """(params, sums so far, batch, number of its first row) -> sums; the sums are donated."""
        objective, length = self._objective(evaluation=True), self._config.data.sequence_length
        step, options = partial(evaluate_batch, objective), reproducible(self.mesh)
        jitted = jax.jit(step, donate_argnums=1, out_shardings=replicated(self.mesh), compiler_options=options)
        batch = self._shapes(self.batch_shapes(length, rows=self.evaluation_batch_size, objective=objective))
        return jitted.lower(self.abstract_state.params, self._sums_shape, batch, self._scalar_shape).compile()

    def evaluation_sums(self) -> Any:
        """Zeros to start an evaluation from: the objective's sums, and the label counts [V]."""
        whole = replicated(self.mesh)
        return jax.tree.map(lambda leaf: to_global_array(np.zeros(leaf.shape, leaf.dtype), whole), self._sums_shape)

    def _objective(self, *, evaluation: bool) -> Objective:
        config = self._config
        setup = Setup(
            config.model,
            config.train.objective,
            self._execution,
            sequence_length=config.data.sequence_length,
            row_kind=config.data.rows,
            next_sentence=config.data.next_sentence,
            vocab_size=self.vocab_size,
            special=self.special,
            evaluation=evaluation,
        )
        return objectives.make(setup)

    @property
    def _sums_shape(self) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
        whole = replicated(self.mesh)
        sums = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole) for name, shape in self._sum_shapes.items()}
        return sums, jax.ShapeDtypeStruct((self.vocab_size,), jnp.float32, sharding=whole)

    def columns(self, *, evaluation: bool = False) -> Mapping[str, Column]:
        """What the objective reads of a row besides "tokens"."""
        return self._objective(evaluation=evaluation).columns

    def columns_of(self, tokenization: Tokenization, *, evaluation: bool = False) -> dict[str, np.ndarray]:
        """The objective's columns that follow from token ids, as tables by id: [V] each."""
        columns = self.columns(evaluation=evaluation).items()
        return {name: one.of_tokens(tokenization).astype(one.dtype) for name, one in columns if one.of_tokens is not None}
