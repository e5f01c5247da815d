from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toy_runs import Notes
from tpulm.train.metrics import MetricsLog, read_attempts, read_metrics, repair
from tpulm.train.throughput import Meter, Rate


def test_what_is_damaged_is_left_out_and_mended_with_one_note(tmp_path: Path) -> None:
    """A torn last line is what a kill leaves, and no damage."""
    progress = Notes()
    notes = progress.notes
    log = MetricsLog(tmp_path, first_step=0)
    log.started(lambda: {"device": "1 x cpu"})
    for step in (1, 2, 3):
        log.write("train", step, {"loss": 1.0})
    log.close()
    path, start = (tmp_path / "metrics" / f"0001.{suffix}" for suffix in ("jsonl", "start.json"))
    path.write_bytes(whole := path.read_bytes() + b'{"kind": "tr')
    assert [record.step for record in read_metrics(tmp_path)] == [1, 2, 3]
    repair(tmp_path, progress)
    assert not notes and path.read_bytes() == whole
    for damaged in (whole.replace(b'"step": 2', b'"step": .'), whole.replace(b"kind", b"k\xff", 1), whole[40:]):
        path.write_bytes(damaged)
        with pytest.warns(match="0001.jsonl"):
            left = read_metrics(tmp_path)
        assert len(left) == 2
        repair(tmp_path, progress)
        repair(tmp_path, progress)
        assert read_metrics(tmp_path) == left and len(notes) == 1 and "0001.jsonl" in notes.pop()
    assert damaged in [kept.read_bytes() for kept in (tmp_path / "damaged").iterdir()]
    start.write_bytes(start.read_bytes().replace(b"1 x", b"2 x"))
    repair(tmp_path, progress)
    assert len(notes) == 1 and [attempt.start for attempt in read_attempts(tmp_path)] == [{}]


def test_torch_is_not_loaded_but_can_be(tmp_path: Path) -> None:
    """tensorboardX would, in two seconds of every start."""
    (tmp_path / "torch.py").write_text("")
    code = "import sys, tpulm.train.metrics; assert 'torch' not in sys.modules; import torch; import tpulm.train.metrics"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)


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
    meter.count(1_000)
    now[0] = 53.0
    assert meter.close_window().mfu is None  # faster than the peak, which was measured too low


def test_speed_counts_text_and_shows_what_it_fills() -> None:
    rate = Rate(per_second=1234.5, mfu=0.3, text_fraction=0.21)
    assert str(rate) == "1,234 tokens/s (21% of slots)"
    assert str(rate._replace(text_fraction=1.0)) == "1,234 tokens/s"
