"""How JAX is started on several hosts."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import pytest

from tpulm.runtime.hosts import Hosts
from tpulm.train import distributed


def test_a_host_may_be_silent_for_as_long_as_jax_allows(monkeypatch: pytest.MonkeyPatch):
    """While it compiles with all cores, for instance: ml-auto-solutions issue 1166, jax issue 23599."""
    default, given = (
        inspect.signature(jax.distributed.initialize).parameters["heartbeat_timeout_seconds"].default,
        dict[str, Any](),
    )
    monkeypatch.setattr(distributed, "_jax_handler", None)
    monkeypatch.setattr(distributed, "_explain_abort", lambda hosts: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *place, **named: given.update(named))
    distributed.initialize(Hosts(1, 2, "127.0.0.1:8476"))
    assert given and given.get("heartbeat_timeout_seconds", default) >= default > 60
