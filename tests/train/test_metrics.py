from __future__ import annotations

from pathlib import Path

import pytest

from tpulm.errors import StorageError
from tpulm.train.metrics import MetricsLog, read_metrics
from tpulm.train.throughput import Meter, Rate


def test_a_torn_last_line_is_left_out_and_another_is_an_error(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, first_step=0)
    log.write("train", 1, {"loss": 1.0})
    log.close()
    path = tmp_path / "metrics" / "0001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind": "tr')
    assert [record.step for record in read_metrics(tmp_path)] == [1]
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(StorageError, match=r"0001.jsonl, line 2: not valid JSON"):
        read_metrics(tmp_path)


def test_the_meter_leaves_pauses_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    meter = Meter(per_row=10, flops_per_row=100.0, peak=1000.0, text_fraction=0.5)
    now[0] = 2.0
    meter.count(8)
    meter.pause()
    now[0] = 50.0
    meter.resume()
    now[0] = 52.0
    rate = meter.close_window()
    assert rate.per_second == pytest.approx(10.0)  # 8 rows of 10 slots in 4 s, half of them padding
    assert rate.mfu == pytest.approx(0.1)
    assert meter.overall() == rate


def test_speed_counts_text_and_shows_what_it_fills() -> None:
    rate = Rate(per_second=1234.5, mfu=0.3, text_fraction=0.21)
    assert str(rate) == "1,234 tokens/s (21% of slots)"
    assert str(rate._replace(text_fraction=1.0)) == "1,234 tokens/s"


def test_union_of_attempts_takes_the_latest(tmp_path: Path) -> None:
    for first, losses in ((0, {1: 3.0, 2: 2.0, 3: 1.5}), (2, {3: 1.25, 4: 1.0})):
        log = MetricsLog(tmp_path, first_step=first)
        for step, loss in losses.items():
            log.write("train", step, {"loss": loss})
        log.close()
    assert [(r.step, r.values["loss"]) for r in read_metrics(tmp_path)] == [(1, 3.0), (2, 2.0), (3, 1.25), (4, 1.0)]


def test_each_attempt_has_a_file(tmp_path: Path) -> None:
    attempts = []
    for _ in range(3):
        log = MetricsLog(tmp_path, first_step=0)
        attempts.append(log.attempt)
        log.close()
    assert attempts == [1, 2, 3]
