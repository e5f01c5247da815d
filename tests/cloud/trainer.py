"""Stands in for an interpreter that has tpulm, and for its trainer: a checkpoint every so often, and nothing computed.

trainer.py FILE              runs FILE, as any interpreter
trainer.py -m tpulm run RUN --workdir W
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import time

STEPS = 5
SECONDS = 0.4  # between checkpoints


def main() -> None:
    if sys.argv[1] != "-m":
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    from tpulm import storage
    from tpulm.errors import ConfigError
    from tpulm.runtime import watchdog
    from tpulm.runtime.failures import record_failure

    watchdog.begin()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    workdir = storage.as_path(sys.argv[sys.argv.index("--workdir") + 1])
    plan = json.loads(os.environ.get("TRAINER", "{}"))  # a secret's value, see the tests: what is to go wrong
    print("training with the key", os.environ.get("KEY", "none"), flush=True)
    if "error" in plan:
        record_failure(workdir, ConfigError(plan["error"]), stage="train")
        sys.exit(2)
    step = max(storage.committed_steps(workdir / "checkpoints"), default=0)
    while step < STEPS:
        watchdog.report("train", step)
        if step == plan.get("hangs_at"):
            hang()
        time.sleep(plan.get("seconds", SECONDS))
        step += 1
        storage.write_atomic(workdir / "checkpoints" / str(step) / storage.COMMIT, "")
        if asked:
            sys.exit(75)
    storage.write_json(workdir / "results" / "export.json", {"step": step})


def hang() -> None:
    """For ever, in C, with Python's lock held."""
    while True:
        ctypes.PyDLL(None).pause()


if __name__ == "__main__":
    main()
