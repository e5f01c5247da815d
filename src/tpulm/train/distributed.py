"""JAX on several hosts: one program over all their devices, and decisions that all hosts take at the same step.

When a host is lost, JAX ends the processes of the others by abort(), called on a C++ thread; a SIGABRT handler first leaves a
record (`Hosts.record`) and an exit code. JAX's heartbeats keep their default timeout: a host that compiles may be silent for a
minute, and the loss of a killed one is noticed by our own channel.

JAX's preemption service coordinates stops: SIGTERM on any host reaches all of them, and they stop at one step. Its C++ handler
is silently replaced by any that Python installs later (`signal.signal`), so it is put aside as soon as it exists and installed
only while steps are taken; before and after, `tpulm.runtime.interrupt` handles SIGTERM.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
import contextlib
import ctypes
import itertools
import os
import signal
from collections.abc import Generator

import jax
import numpy as np
from jax.experimental import multihost_utils

from tpulm.errors import PeerLost
from tpulm.runtime import interrupt
from tpulm.runtime.hosts import Hosts, end_now

_SHUTDOWN_SECONDS = 30
_ABORT_HANDLER_SECONDS = 25

_python_api = ctypes.pythonapi
_python_api.PyOS_getsig.restype = ctypes.c_void_p
_python_api.PyOS_getsig.argtypes = [ctypes.c_int]
_python_api.PyOS_setsig.restype = ctypes.c_void_p
_python_api.PyOS_setsig.argtypes = [ctypes.c_int, ctypes.c_void_p]

_jax_handler: int | None = None
_abort_handler: object = None
_libc = ctypes.CDLL(None)
_questions = itertools.count(1)


def initialize(hosts: Hosts) -> None:
    """Connect JAX to the other hosts, before anything else asks for devices. Does nothing on a single host or when repeated."""
    global _jax_handler
    if not hosts.are_several or _jax_handler is not None:
        return
    ours = _python_api.PyOS_getsig(signal.SIGTERM)
    proxies = [name for name in os.environ if name.lower().endswith("_proxy") and name.lower() != "no_proxy"]
    jax.config.update("jax_check_proxy_envs", bool(proxies))
    jax.distributed.initialize(
        hosts.coordinator,
        hosts.count,
        hosts.index,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        coordinator_bind_address=hosts.coordinator if hosts.is_first else None,
    )
    _jax_handler = _python_api.PyOS_setsig(signal.SIGTERM, ours)
    _explain_abort(hosts)


def _explain_abort(hosts: Hosts) -> None:
    """Make abort() report the lost host. It is called on a C++ thread, which holds no Python state."""
    global _abort_handler

    def on_abort(number: int) -> None:
        _libc.alarm(_ABORT_HANDLER_SECONDS)  # ends the process whatever happens below
        lost = hosts.lost(wait_seconds=2.0)
        if lost is None:
            lost = PeerLost(
                "JAX lost the connection to another host, which is gone, stopped or silent. Start all hosts again with the "
                "same command: they continue from the last checkpoint"
            )
        end_now(lost, hosts.record)

    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)  # a global, since C holds no reference
    _python_api.PyOS_setsig(signal.SIGABRT, ctypes.cast(_abort_handler, ctypes.c_void_p))


@contextlib.contextmanager
def stopping_together(hosts: Hosts) -> Generator[None]:
    """Inside the block JAX handles SIGTERM and tells all hosts; `stop_requested` then says at which step to stop."""
    if not hosts.are_several:
        yield
        return
    ours = _python_api.PyOS_setsig(signal.SIGTERM, _jax_handler)
    try:
        yield
    finally:
        _python_api.PyOS_setsig(signal.SIGTERM, ours)


def stop_requested(hosts: Hosts) -> bool:
    """Whether to save after this step and stop; the same step on all hosts. Must be called at every step.

    JAX stops at a number above all that it was asked about so far. Steps start over with the next seed, so calls are counted.
    """
    if not hosts.are_several:
        return interrupt.requested()
    if interrupt.requested() and not interrupt.passed_on.is_set():  # e.g. by Ctrl-C
        interrupt.passed_on.set()
        os.kill(os.getpid(), signal.SIGTERM)
    return multihost_utils.reached_preemption_sync_point(next(_questions))


def check_alone() -> None:
    """Raise `Stopped` if a stop was requested, on a single host; several must agree (`stop_requested`)."""
    if jax.process_count() == 1:
        interrupt.check()


def agreed(hosts: Hosts, value: bool) -> bool:
    """The first host's `value`, on all hosts; all must call this."""
    if not hosts.are_several:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))
