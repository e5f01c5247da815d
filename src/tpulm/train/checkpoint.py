"""Checkpoints: asynchronous, atomic, verified on restore, and never restored into a different run.

Orbax writes each step to a temporary folder and renames it when everything is on disk (in Cloud Storage it writes a commit
marker last), so a step without its commit does not exist. Next to the state is a JSON object with the step, the data cursor,
the skipped windows, the configuration and the fingerprints of tokenizer and dataset. STEP/objects.json, written after all else
and before the commit, lists the objects with their sizes and checksums, and the checksums of the arrays; it names nothing
outside the checkpoint, so that a copy in another bucket or on disk is as good as the original. A checkpoint that has a missing
or damaged object, cannot be read, or reads back as different numbers is moved to `damaged/` and the previous one is used; with
several hosts the first one decides, before any of them reads.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import contextlib
import json
import time
from collections.abc import Collection, Generator, Sequence
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers
from orbax.checkpoint._src.checkpointers import async_checkpointer
from orbax.checkpoint._src.futures import future, signaling_client

from tpulm import storage
from tpulm.config import Change, CheckpointConfig, changes, differences, from_json, listed
from tpulm.errors import CheckpointError, StorageError
from tpulm.progress import SILENT, Progress
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.train.distributed import agreed
from tpulm.workfolder import reason_end_cannot_move

# Orbax limits its waiting by the wall clock, and takes one that is put right, or a laptop that wakes, for a save that hangs.
for _module in (async_checkpointer, future, signaling_client):
    vars(_module)["time"] = SimpleNamespace(**vars(time) | {"time": time.monotonic})

FORMAT_VERSION = 2  # of the state and metadata
_ADDED = ("compute_dtype", "config")  # to the metadata: older checkpoints lack it


def check_format(folder: PurePath) -> None:
    """Raise CheckpointError for a checkpoint that another version of tpulm wrote."""
    version = storage.read_json(folder / storage.SEAL).get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {folder} was written by another version of tpulm (format {version}, this one reads {FORMAT_VERSION}). "
            "Continue with the version that wrote it, or begin a new work folder; --init DIR takes the weights of an exported "
            "model along"
        )


def array_checksums(folder: PurePath) -> dict[str, int]:
    """The checksums of the arrays that `seal` recorded, by path."""
    return storage.read_json(folder / storage.SEAL)["arrays"]


_UNCOMMITTED = ".orbax-checkpoint-tmp"  # suffix of a local folder until its commit


class Restored(NamedTuple):
    state: Any
    metadata: dict[str, Any]


def is_due(config: CheckpointConfig, *, step: int) -> bool:
    """Whether `every_steps` or `keep_every_steps` makes a checkpoint due after `step`."""
    return any(every is not None and step % every == 0 for every in (config.every_steps, config.keep_every_steps))


def is_due_by_time(config: CheckpointConfig, *, seconds_since_last: float) -> bool:
    """Whether `every_minutes` makes one due now; hosts' clocks differ, so one host must decide."""
    return config.every_minutes is not None and seconds_since_last >= 60.0 * config.every_minutes


class NoCheckpoints:
    """Stands in for `Checkpoints` where nothing is saved."""

    last_step: int | None = None

    def is_due(self, step: int, *, ask_the_clock: bool) -> bool:
        return False

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        pass

    def wait(self) -> None:
        pass

    def restore_latest(self, abstract_state: Any, identity: dict[str, Any]) -> Restored | None:
        return None


class Checkpoints:
    """The checkpoints of one work folder; a context manager, so that the last one is on disk when the block ends."""

    def __init__(
        self,
        folder: str | PurePath,
        config: CheckpointConfig,
        *,
        kept_steps: Collection[int] = (),
        hosts: Hosts = ALONE,
        progress: Progress = SILENT,
    ):
        """At `kept_steps` a checkpoint is due, and is kept forever."""
        self._folder = storage.orbax_folder(storage.make_folder(folder))
        self._config, self._kept_steps = config, frozenset(kept_steps)
        self._hosts = hosts
        self._progress = progress
        self._saving, self._checksums = 0, dict[str, jax.Array]()
        if hosts.is_first:
            self._set_damaged_aside()
        hosts.barrier("checkpoints")
        self._manager = self._open()
        self.saved_at = time.monotonic()
        self.last_step: int | None = self._manager.latest_step()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.wait()
        except StorageError:
            if error is None:  # an error already propagating says more than this one
                raise
        finally:
            with contextlib.suppress(Exception):
                self._manager.close()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def is_due(self, step: int, *, ask_the_clock: bool) -> bool:
        """Whether to save after this step; the same on all hosts. Asking the first host's clock costs a broadcast."""
        if is_due(self._config, step=step) or step in self._kept_steps:
            return True
        if not ask_the_clock or self._config.every_minutes is None:
            return False
        return agreed(self._hosts, is_due_by_time(self._config, seconds_since_last=time.monotonic() - self.saved_at))

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Start saving; returns when the state may change again. Raises StorageError for this save or the previous one."""
        storage.check_guards(self._folder)
        self.wait()  # for the previous save: two cannot be sealed at once
        self._saving, self._checksums = step, begin_checksums(state)
        with _disk_errors(self._folder):
            self._manager.save(
                step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), metadata=ocp.args.JsonSave(metadata))
            )
        self.saved_at, self.last_step = time.monotonic(), step

    def wait(self) -> None:
        """Wait until the last save is on disk."""
        with _disk_errors(self._folder):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        if self._saving and self._hosts.is_first:  # what was written after the seal, and the folder's name
            storage.make_durable(self._folder / str(self._saving))
        self._saving = 0

    def restore_latest(self, abstract_state: Any, identity: dict[str, Any]) -> Restored | None:
        """The newest intact checkpoint, sharded as `abstract_state` (ShapeDtypeStructs with shardings), or None.

        Raises CheckpointError if the checkpoint's metadata differs from `identity` under any of its keys, or if there are
        checkpoints but none is intact.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                restored = self._restore(step, abstract_state)
            except Exception as error:  # whatever Orbax and TensorStore raise for missing, short or garbled files
                reason = _first_line(error)
                if storage.is_remote(self._folder) and not isinstance(error, CheckpointError):
                    raise StorageError(f"cannot read checkpoint {step} from {self._folder}: {reason}") from error  # it is whole
                seen_by_all = isinstance(error, CheckpointError)  # all hosts read the same numbers and find the same fault
                if self._hosts.is_first or not seen_by_all:
                    self._set_aside(step, reason.split(". See full TensorStore")[0])
                if self._hosts.are_several and not seen_by_all:
                    raise CheckpointError(  # the other hosts may have read it, and wait for this one
                        f"checkpoint {step} could not be read on host {self._hosts.index} ({reason}); it was set aside, and "
                        "the same command on all hosts continues from the one before"
                    ) from error
                self._reopen()
                continue
            _check_identity(restored.metadata, identity, step)
            self.last_step = step
            return restored
        if steps:
            raise self._none_left(len(steps))
        return None

    def _restore(self, step: int, abstract_state: Any) -> Restored:
        try:
            of_state = ocp.args.StandardRestore(abstract_state)
            state = self._manager.restore(step, args=ocp.args.Composite(state=of_state))["state"]
        except ValueError:  # the trees differ, maybe in fields that an older version lacked and that are None here
            state = _restore_arrays(self._folder / str(step), abstract_state)
        metadata = self._manager.restore(step, args=ocp.args.Composite(metadata=ocp.args.JsonRestore()))["metadata"]
        expected, actual = array_checksums(self._folder / str(step)), checksums(state)
        wrong = [name for name in expected if expected[name] != actual.get(name)]
        if wrong or len(expected) != len(actual):
            raise CheckpointError(f"other numbers than were saved in {', '.join(wrong) or 'the set of arrays'}")
        return Restored(state, metadata)

    def _set_damaged_aside(self) -> None:
        """Set aside damaged checkpoints, down to the newest step whose objects are all there and as written.

        Raises CheckpointError if there is none, or if it has another format.
        """
        steps = storage.committed_steps(self._folder)
        for step in reversed(steps):
            reason = storage.find_damage(self._folder / str(step))
            if reason is None:
                check_format(self._folder / str(step))
                return
            self._set_aside(step, reason)
        if steps:
            raise self._none_left(len(steps))

    def _none_left(self, count: int) -> CheckpointError:
        return CheckpointError(
            f"none of the {count} checkpoints in {self._folder} could be read; they are kept in {self._damaged_folder()}. To "
            "begin training anew, run the same command again"
        )

    def _set_aside(self, step: int, reason: str) -> None:
        target = self._damaged_folder() / f"{step}-{time.time_ns()}"
        storage.move_folder(self._folder / str(step), target, first=storage.COMMIT)
        self._progress.note(f"checkpoint {step} is damaged ({reason}); set aside in {target}, trying the one before")

    def _reopen(self) -> None:
        self._hosts.barrier("a checkpoint set aside")
        self._manager.close()
        self._manager = self._open()
        self.last_step = self._manager.latest_step()

    def _damaged_folder(self) -> PurePath:
        return self._folder.parent / "damaged"

    def _seal(self) -> None:
        """Called by Orbax on the first host, when a step is written completely but not committed."""
        for path in storage.list_folder(self._folder):
            if path.name == str(self._saving) or path.name.startswith(f"{self._saving}{_UNCOMMITTED}"):
                storage.seal(path, format_version=FORMAT_VERSION, arrays=_fetched(self._checksums))

    def _open(self) -> ocp.CheckpointManager:
        kept = checkpoint_managers.CustomSteps(tuple(self._kept_steps))
        keep: list[Any] = [checkpoint_managers.LatestN(self._config.keep), kept]
        if self._config.keep_every_steps is not None:
            keep.append(checkpoint_managers.EveryNSteps(self._config.keep_every_steps))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(keep),
            cleanup_tmp_directories=True,
            save_root_metadata=False,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
        )
        return ocp.CheckpointManager(self._folder, options=options, item_names=("state", "metadata"))


def _restore_arrays(folder: Any, abstract_state: Any) -> Any:
    """The arrays of `abstract_state`, ignoring whatever else is in the tree on disk."""
    args = ocp.checkpoint_utils.construct_restore_args(abstract_state)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        restore = ocp.args.PyTreeRestore(item=abstract_state, restore_args=args, partial_restore=True)
        return checkpointer.restore(folder / "state", args=restore)


class NewestWeights(NamedTuple):
    step: int
    weights: Any  # NumPy arrays


def newest_weights(folder: PurePath, abstract_state: Any, progress: Progress = SILENT) -> NewestWeights | None:
    """The weights (`TrainState.weights`) of the newest intact checkpoint, or None if there is no checkpoint.

    The run may be saving and removing checkpoints meanwhile. Nothing is written, locked or set aside; what is skipped is noted.
    Raises CheckpointError if there are checkpoints but none can be read.
    """
    failed: dict[int, Exception] = {}
    while left := [step for step in storage.committed_steps(folder) if step not in failed]:
        step = left[-1]
        try:
            return NewestWeights(step, weights_at(folder, step, abstract_state))
        except Exception as error:  # as in `Checkpoints.restore_latest`, or it was removed meanwhile
            failed[step] = error
            if step in storage.committed_steps(folder):
                progress.note(f"checkpoint {step} cannot be read ({_first_line(error)}); trying the one before")
    if failed:
        step, error = max(failed.items())
        raise CheckpointError(f"no checkpoint in {folder} could be read; of step {step}: {_first_line(error)}") from error
    return None


def mean_weights(folder: PurePath, steps: Sequence[int], abstract_state: Any) -> Any:
    """The mean of these checkpoints' weights, as NumPy arrays of float32. Raises CheckpointError if one cannot be read."""
    total: Any = None
    for step in steps:
        try:
            weights = weights_at(folder, step, abstract_state)
        except Exception as error:  # as in `Checkpoints.restore_latest`
            raise _no_mean(steps, step, f"cannot be read: {_first_line(error)}") from error
        wide = jax.tree.map(np.float64, weights)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda sums: np.asarray(sums / len(steps), np.float32), total)


def check_mean(folder: PurePath, steps: Sequence[int], newest: int) -> None:
    """Raise CheckpointError if one of these up to `newest` is gone: better now than at the end of training."""
    committed = storage.committed_steps(folder)
    for step in steps:
        if step < newest and step not in committed:
            raise _no_mean(steps, step, "is gone")


def _no_mean(steps: Sequence[int], step: int, reason: str) -> CheckpointError:
    return CheckpointError(
        f"train.checkpoint.average_last = {len(steps)} needs the checkpoints {', '.join(map(str, steps))}, and {step} {reason}"
        ". Without that setting the last one is taken alone"
    )


def weights_at(folder: PurePath, step: int, abstract_state: Any) -> Any:
    """The weights of one checkpoint, as NumPy arrays. Raises CheckpointError if it is not intact."""
    if (damage := storage.find_damage(folder / str(step))) is not None:  # Orbax, failing midway, leaves reads behind
        raise CheckpointError(damage)
    folder = storage.orbax_folder(folder) / str(step)
    field = "params" if abstract_state.average is None else "average"
    item = {field: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), abstract_state.weights)}
    kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        args = ocp.args.PyTreeRestore(item=item, restore_args=kinds, partial_restore=True)
        weights = checkpointer.restore(folder / "state", args=args)[field]
    expected = array_checksums(folder)
    if any(expected.get(f".{field}{name}") != found for name, found in checksums(weights).items()):
        raise CheckpointError("other numbers than were saved")
    return weights


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@jax.jit
def _weighted_sums(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    def weighted_sum(leaf: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()
        return jnp.sum(bits * (2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    return [weighted_sum(leaf) for leaf in leaves]


def begin_checksums(state: Any) -> dict[str, jax.Array]:
    """`checksums` as arrays still being computed: this does not wait, and the state may be donated to the next step."""
    paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(state), strict=True)
    return dict(zip(map(jax.tree_util.keystr, paths), _weighted_sums(list(leaves)), strict=True))


def checksums(state: Any) -> dict[str, int]:
    """A 32-bit checksum of each leaf, by path: the sum over its elements i of bits[i] * (2 i + 1), modulo 2**32.

    Any single changed element changes it, and as an integer sum it does not depend on the sharding. Leaves must be 32-bit.
    """
    return _fetched(begin_checksums(state))


def _fetched(sums: dict[str, jax.Array]) -> dict[str, int]:
    return {name: int(value) for name, value in jax.device_get(sums).items()}


def _check_identity(metadata: dict[str, Any], identity: dict[str, Any], step: int) -> None:
    """Raise CheckpointError naming what differs. Of the settings ("config") those of training count, as in a work folder; what
    the others make is identified by fingerprints."""
    found, reason = list[Change](), ""
    for name, expected in identity.items():
        if name in metadata and name == "config":
            before, now = (from_json(json.dumps(config), f"checkpoint {step}") for config in (metadata[name], expected))
            bound = [change for change in differences(before, now) if change.name.startswith(("train.", "phases"))]
            if bound and (why := reason_end_cannot_move(before, now, bound, step)) is not None:
                found, reason = found + bound, why
        elif name in metadata or name not in _ADDED:
            found += changes(metadata.get(name), expected, name)
    if found:
        raise CheckpointError(
            f"checkpoint {step} belongs to another run (there -> here):\n{listed(found)}\n{reason}Use another work folder."
        )


@contextlib.contextmanager
def _disk_errors(folder: PurePath) -> Generator[None]:
    """Turn what Orbax and TensorStore raise when a write fails into one StorageError that names the cause."""
    try:
        yield
    except OSError as error:
        raise storage.storage_error("save a checkpoint to", folder, error) from error
    except StorageError:
        raise
    except Exception as error:
        cause = storage.cause_in(str(error)) or _first_line(error)
        raise StorageError(f"cannot save a checkpoint to {folder}: {cause}") from error
