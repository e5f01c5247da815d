"""JAX over several hosts: one program over the devices of all, and decisions that all take at the same step.

When a host is gone JAX ends the others from inside, by abort(), from a thread of its own; a handler of that signal uses the
moment to leave a record (`Hosts.record`) and an exit code.

A stop is agreed on by JAX's preemption service: SIGTERM on any host reaches all of them, and they stop at one step. Its handler
is C++'s and is silently replaced by any that Python installs later (`signal.signal`), so it is put aside as soon as it exists
and lent back for as long as steps are taken; before and after, SIGTERM is `tpulm.runtime.interrupt`'s.
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

HEARTBEAT_SECONDS = 20  # the default of 100 would leave the others hanging for 95
_SHUTDOWN_SECONDS = 30
_LAST_WORDS_SECONDS = 25

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
    """Connect JAX to the other hosts; before anything else asks for devices. Does nothing for a host alone, or done before."""
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
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        coordinator_bind_address=hosts.coordinator if hosts.is_first else None,
    )
    _jax_handler = _python_api.PyOS_setsig(signal.SIGTERM, ours)
    _explain_abort(hosts)


def _explain_abort(hosts: Hosts) -> None:
    """Let abort() leave word of the host that is gone. The thread that calls it is C++'s and holds nothing of Python's."""
    global _abort_handler

    def on_abort(number: int) -> None:
        _libc.alarm(_LAST_WORDS_SECONDS)  # ends the process whatever happens below
        lost = hosts.lost(wait_seconds=2.0)
        if lost is None:
            lost = PeerLost(
                "JAX lost the connection to another host, which is gone, stopped or silent. Start all hosts again with the "
                "same command: they continue from the last checkpoint"
            )
        end_now(lost, hosts.record)

    _abort_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)  # kept: C holds no reference
    _python_api.PyOS_setsig(signal.SIGABRT, ctypes.cast(_abort_handler, ctypes.c_void_p))


@contextlib.contextmanager
def stopping_together(hosts: Hosts) -> Generator[None]:
    """Inside the block SIGTERM is JAX's to tell to all hosts, and `stop_requested` says at which step it comes."""
    if not hosts.are_several:
        yield
        return
    ours = _python_api.PyOS_setsig(signal.SIGTERM, _jax_handler)
    try:
        yield
    finally:
        _python_api.PyOS_setsig(signal.SIGTERM, ours)


def stop_requested(hosts: Hosts) -> bool:
    """Whether to save after this step and stop; the same step on all hosts. To be asked at every step.

    JAX waits for one number, above all that were asked about so far: steps begin again with the next seed, so questions count.
    """
    if not hosts.are_several:
        return interrupt.requested()
    if interrupt.requested() and not interrupt.is_passed_on():  # Ctrl-C, say
        interrupt.pass_on()
        os.kill(os.getpid(), signal.SIGTERM)
    return multihost_utils.reached_preemption_sync_point(next(_questions))


def agreed(hosts: Hosts, value: bool) -> bool:
    """The first host's answer, on all; they must all ask."""
    if not hosts.are_several:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))
