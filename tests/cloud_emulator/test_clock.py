"""The emulator's clock: order, skipping, and what goes wrong on the way."""

from __future__ import annotations

import threading
import time

import pytest

from cloud_emulator.clock import Clock


def test_what_is_skipped_happens_in_its_order_and_at_its_time():
    clock = Clock()
    started = clock.now()
    happened: list[tuple[str, float]] = []
    clock.after(0, lambda: happened.append(("at once", 0)))
    clock.after(30, lambda: happened.append(("second", clock.now() - started)))
    clock.after(10, lambda: clock.after(10, lambda: happened.append(("first", clock.now() - started))))
    clock.after(100, lambda: happened.append(("never", 0)))
    clock.advance(60)
    assert [word for word, _ in happened] == ["at once", "first", "second"]
    assert [at for _, at in happened] == pytest.approx([0, 20, 30], abs=1)
    assert clock.now() - started == pytest.approx(60, abs=1)
    clock.close()


def test_time_goes_on_by_itself(capsys: pytest.CaptureFixture[str]):
    clock = Clock()
    done = threading.Event()
    clock.after(0.02, lambda: 1 / 0)
    clock.after(0.05, done.set)
    started = time.monotonic()
    assert done.wait(10) and time.monotonic() - started >= 0.04
    assert "ZeroDivisionError" in capsys.readouterr().err
    clock.close()
