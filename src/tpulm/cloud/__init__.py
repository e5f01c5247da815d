"""Runs on preemptible TPU VMs: launched, kept alive, and cleaned up.

`launch` writes the `job` and a `bundle` of the software to W/cloud, all through `control`. `supervise` then loops: it observes
the node through a `provider` (`tpu_api`), lets `decide` choose the next action, records it in the job and carries it out. The
agent in `vm` runs the trainer and reports to W/cloud. `status` shows the run, and `teardown` deletes what is left of it. `job`
and `decide` are pure. Before a launch, `settings` are read, `setup` prepares the project, `smoke` tests it, `prices` quotes;
`export` writes the same run for other schedulers.

Each module is imported on first use: `from tpulm import cloud` costs nothing, so `tpulm --help` starts fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulm.cloud import (  # noqa: F401
        control,
        export,
        google_rest,
        job,
        launch,
        prices,
        settings,
        setup,
        smoke,
        status,
        teardown,
        tpu_api,
    )


def __getattr__(name: str) -> Any:
    if find_spec(f"tpulm.cloud.{name}") is None:
        raise AttributeError(f"module 'tpulm.cloud' has no attribute {name!r}")
    return import_module(f"tpulm.cloud.{name}")
