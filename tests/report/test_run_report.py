"""The pages about runs: what they state, that hostile text stays text, and what a browser makes of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from browser import browsing, needs_browser
from command_line import invoke
from local_server import LocalServer, send
from toy_runs import Notes, toy_config, write_corpus
from tpulm import pipeline, report
from tpulm.cloud.status import speed_of
from tpulm.config import RunConfig, flattened, load
from tpulm.errors import ConfigError, Stopped
from tpulm.readable import duration
from tpulm.report import comparison
from tpulm.report.history import History
from tpulm.report.run import Reporter, changed_settings
from tpulm.train.metrics import START

EVIL = "</title></section><script>document.title='taken'; fetch('http://evil.example/')</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted once."""
    folder = tmp_path_factory.mktemp("run")
    corpus = write_corpus(folder / "corpus.txt.gz")
    train = {**toy_config(corpus).train.model_dump(), "steps": 12, "evaluate_every_steps": 6}
    config = toy_config(corpus, description="<b>bold</b>", train=train)
    with pytest.raises(Stopped):
        pipeline.run(config, folder / "w", progress=Notes(3))
    pipeline.run(config, folder / "w")
    return folder / "w"


def test_the_page_states_what_the_run_has_and_needs_nothing_from_anywhere(workdir: Path) -> None:
    text = (workdir / "report" / "index.html").read_text(encoding="utf-8")
    page, scores = Tags(text), json.loads((workdir / "results" / "evaluation.json").read_text())
    samples = json.loads((workdir / "results" / "samples.json").read_text())
    assert "Done after 12 steps." in page.text and "attempt 2" in page.text  # marked in the charts
    for value in (f"{scores['loss']:.4f}", f"{scores['accuracy']:.2%}", "<b>bold</b>", samples["masked"][0]["truth"]):
        assert value in page.text, value
    assert samples["step"] == 12 and all(len(one["answers"]) == 3 and "[MASK]" in one["text"] for one in samples["masked"])
    titles = "Loss", "Accuracy on held-out tokens", "Learning rate", "Attempts", "Text", "Settings", "Machine"
    assert [title for title in titles if not re.search(rf"\b{title}\b", page.text)] == []
    card = (workdir / "export" / "README.md").read_text(encoding="utf-8")
    assert f"{scores['loss']:.4f}" in card and samples["masked"][0]["text"] not in card  # the same figures
    assert not re.search(r"https?://|url\(|@import|<script|javascript:", text)
    assert not [tag for tag, attributes in page.found if {"src", "href", "action", "onerror", "onload"} & attributes.keys()]


def test_hostile_text_stays_text(workdir: Path, tmp_path: Path) -> None:
    """On the page of a run that was killed, which is of its last evaluation, and of a finished one."""
    copy = shutil.copytree(workdir, tmp_path / "w")
    path, values = copy / "results" / "samples.json", json.loads((copy / "run.json").read_text())
    path.write_text(json.dumps({"step": 12, "masked": [{"text": EVIL, "truth": EVIL, "answers": [[EVIL, 0.5]]}]}))
    (copy / "run.json").write_text(json.dumps({**values, "name": EVIL}))
    report.write(copy)
    finished = Tags((copy / "report" / "index.html").read_text(encoding="utf-8"))
    assert finished.text.count(EVIL) >= 4
    shutil.rmtree(copy / "results")
    (copy / "failures").mkdir(exist_ok=True)
    failed = copy / "failures" / "99999999-000000-1.json"

    def page(at: float) -> Tags:
        failed.write_text(json.dumps({"kind": "training_diverged", "message": EVIL, "time": at}))
        report.write(copy)
        return Tags((copy / "report" / "index.html").read_text(encoding="utf-8"))

    values["train"]["steps"] = 112
    (copy / "run.json").write_text(json.dumps({**values, "name": EVIL}))
    speed = speed_of((one.step, one.values) for one in History.read(copy, {}).records if one.kind == "train")
    assert speed is not None
    assert re.search(rf"To go, at this speed\W+{re.escape(duration(100 * speed.seconds_per_step))}", page(0.0).text)
    assert "Stopped at step 12 of 112;" in page(0.0).text  # what failed before was mended, or the run had not gone on
    killed = page(time.time())
    assert "Stopped at step 12 of 112:" in killed.text and EVIL in killed.text
    assert not [tag for tag, _ in (*finished.found, *killed.found) if tag in ("script", "img")]


def test_a_report_that_fails_stops_nothing(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("tpulm.report.run.render", broken)
    reporter = Reporter(workdir, progress := Notes())
    reporter(last=True)
    reporter(last=True)
    assert len(progress.notes) == 1 and "ZeroDivisionError: no" in progress.notes[0]


def test_a_run_without_a_log_says_how_long_it_took(workdir: Path, tmp_path: Path) -> None:
    shutil.copytree(workdir, tmp_path / "w")
    for file in (tmp_path / "w" / "metrics").glob("*.jsonl"):
        file.write_bytes(b"")
    history = History.read(tmp_path / "w", {})
    last = history.seconds_of(history.attempts[-1])
    assert last is not None and 0 < last < 600
    (tmp_path / "w" / "checkpoints" / "12" / "_CHECKPOINT_METADATA").unlink()
    assert History.read(tmp_path / "w", {}).saved == 12


def test_settings_of_several_runs_are_each_ones_own() -> None:
    """Also where one has a table or a list that another lacks."""
    wide, narrow = ({"architecture": "electra", "generator": {"width": width}} for width in (0.5, 0.25))
    phases = [{"share": 0.9, "batch_size": 8}, {"share": 0.1}]
    settings = [{"model": wide}, {"model": narrow}, {"phases": phases}]
    runs: Any = [SimpleNamespace(config=RunConfig.model_validate(one)) for one in settings]
    found = {name: values for name, *values in comparison._settings(runs)}
    assert found["model.generator.width"] == ["0.5", "0.25", "null"]
    assert (found["phases[0].share"], found["phases[0].batch_size"]) == (["null", "null", "0.9"], ["null", "null", "8"])
    assert "model.generator" not in found and "phases" not in found


def test_runs_are_compared(workdir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.json"):
        report.write(tmp_path)  # no run
    other = shutil.copytree(workdir, tmp_path / "other")
    values = json.loads((other / "run.json").read_text())
    values["train"]["optimizer"]["learning_rate"] = 0.125
    (other / "run.json").write_text(json.dumps(values))
    invoke("report", workdir, other, "--output", tmp_path / "both.html", code=0)
    page = Tags((tmp_path / "both.html").read_text(encoding="utf-8"))
    assert "train.optimizer.learning_rate" in page.text and "0.125" in page.text
    for over in ("steps", "hours", "tokens", "FLOPs"):
        assert f"over-{over}" in [attributes.get("id") for _, attributes in page.found]
    assert "dollars" not in page.text  # it ran on no machine that bills


def test_settings_that_differ_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('extends = "bert-mini"\n[train]\nsteps = 77\n')
    config = load(tmp_path / "run.toml")
    assert config.recipe == "bert-mini"
    steps = load("bert-mini").train.steps
    assert changed_settings(config) == [("train.steps", str(steps), "77")]
    assert flattened(config)["train.steps"] == 77
    with_text = load(tmp_path / "run.toml", ['corpus.sources=["secret/*.txt"]'])
    assert changed_settings(with_text) == changed_settings(config)  # paths of texts go neither onto a page nor to a tracker
    assert "secret" not in str(flattened(with_text))


def test_the_log_of_an_attempt_says_what_a_step_is(workdir: Path) -> None:
    [first, second] = sorted(path for path in (workdir / "metrics").iterdir() if path.name.endswith(START))
    start = json.loads(second.read_text())
    assert json.loads(first.read_text())["first_step"] == 0 and start["first_step"] >= 3
    assert 0 < start["per_step"]["tokens"] <= 8 * 32 and start["per_step"]["flops"] > 0
    assert set(start["versions"]) == {"python", "tpulm", "jax", "jaxlib"} and start["device"].startswith("2 x ")


class Visits(LocalServer):
    """Has one page, and keeps what was asked for."""

    def __init__(self, page: bytes):
        self.page, self.seen = page, list[str]()
        super().__init__()

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        self.seen.append(f"{request.headers['Host']}{path}")
        send(request, 200, self.page, {"Content-Type": "text/html"})


@needs_browser
def test_a_browser_asks_for_the_page_alone_and_finds_no_fault(workdir: Path, tmp_path: Path) -> None:
    """Every name leads to this server."""
    copy = shutil.copytree(workdir, tmp_path / "w")
    values = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**values, "description": EVIL}))
    report.write(copy)
    with Visits((copy / "report" / "index.html").read_bytes()) as server:
        rules = f"MAP *:80 {server.url.removeprefix('http://')}, MAP * 127.0.0.1"
        command = browsing(f"{server.url}/index.html", tmp_path, rules, "--enable-logging=stderr", "--dump-dom")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert EVIL.replace("<", "&lt;").replace(">", "&gt;") in done.stdout, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert "<title>toy</title>" in done.stdout
    chromium = (".google.com", ".googleapis.com")
    of_the_page = [name for name in server.seen if not name.partition("/")[0].endswith(chromium)]
    assert {name.partition("/")[2] for name in of_the_page} <= {"index.html", "favicon.ico"}, server.seen
