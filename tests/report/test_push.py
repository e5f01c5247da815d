"""`tpulm push`, to a stand-in for the Hugging Face Hub: what it sends, killed and again, and what it refuses."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_hub import ModelHub

from command_line import invoke
from tpulm import storage, workfolder
from tpulm.errors import ConfigError
from tpulm.report import publishing
from tpulm.report.publishing import publications


@pytest.fixture(scope="module")
def workdir(toy_run: tuple[Any, Path, Any]) -> Path:
    return toy_run[1]


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    with ModelHub() as made:
        yield made


def environment(hub: ModelHub, home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1", **more}


def push(hub: ModelHub, home: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpulm", "push", *arguments]
    return subprocess.run(command, env=environment(hub, home, **more), capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_killed_in_the_middle_and_sent_again(workdir: Path, hub: ModelHub, tmp_path: Path) -> None:
    hub.stalled = threading.Event()
    command = [sys.executable, "-m", "tpulm", "push", str(workdir), "user/toy", "--anyway"]
    with subprocess.Popen(command, env=environment(hub, tmp_path / "home")) as broken:
        assert hub.stalled.wait(300)
        broken.kill()
    assert hub.files == {"user/toy": {}}
    hub.stalled = None
    done = push(hub, tmp_path / "home", str(workdir), "user/toy", "--anyway", "--json")
    assert done.returncode == 0, done.stderr
    assert hub.private == {"user/toy": True} and len(hub.uploads) == 1
    export = {path.name: path.read_bytes() for path in (workdir / "export").iterdir()}
    assert hub.files["user/toy"] == {**export, "report.html": hub.files["user/toy"]["report.html"]}
    said = json.loads(done.stdout)
    assert said["addresses"] == [f"{hub.url}/user/toy"]
    assert said["files"]["user/toy"] == {name: len(content) for name, content in hub.files["user/toy"].items()}
    again = push(hub, tmp_path / "home", str(workdir), "user/toy", "--anyway")
    assert again.returncode == 0 and len(hub.uploads) == 1  # the Hub has the weights


@pytest.mark.slow
def test_a_revision_is_a_branch_of_its_own_files(workdir: Path, hub: ModelHub, tmp_path: Path) -> None:
    """Twice; what else lies in W/revisions is no branch: a killed export's rest, a folder of the user's."""
    model = tmp_path / "run"
    shutil.copytree(workdir, model)
    for name in ("chck_1M", ".chck_2M.7.ab.tpulm-tmp", "main"):
        shutil.copytree(workdir / "export", model / "revisions" / name, ignore=shutil.ignore_patterns("README.md"))
    (model / "revisions" / "chck_1M" / "config.json").write_text('{"of": "a million words"}')
    for _ in range(2):
        sent = push(hub, tmp_path / "home", str(model), "user/toy", "--anyway", "--revisions")
        assert sent.returncode == 0, sent.stderr
        assert hub.files.keys() == {"user/toy", "user/toy@chck_1M"}
        branch = {path.name: path.read_bytes() for path in (model / "revisions" / "chck_1M").iterdir()}
        assert hub.files["user/toy@chck_1M"] == branch
        assert hub.files["user/toy"].keys() == {*branch, "README.md", "report.html"}
    storage.remove(model / "revisions" / "chck_1M")
    with pytest.raises(ConfigError, match="--revisions"):
        publications(model, "user/toy", anyway=True, revisions=True)


def test_no_sentence_of_the_corpus_is_sent_unasked(workdir: Path) -> None:
    """The run's own report shows samples of held-out texts; a published one has none of them."""
    samples = [one["text"] for one in (workfolder.read_result(workdir, "samples") or {})["masked"]]
    own = html.unescape((workdir / "report" / "index.html").read_text())
    assert samples and all(text in own for text in samples)
    for asked in (False, True):
        (found,) = publications(workdir, "user/toy", anyway=True, with_samples=asked)
        sent = {file.name: file.content for file in found.files}
        report, card = sent["report.html"], sent["README.md"]
        assert isinstance(report, bytes) and isinstance(card, Path)
        assert [text in html.unescape(report.decode()) for text in samples] == [asked] * len(samples)
        assert not any(text in card.read_text() for text in samples)


def test_what_is_no_part_of_a_model_is_left_out_unless_named(tmp_path: Path) -> None:
    """Modules of an embedding model and ONNX are parts of it."""
    model, known = tmp_path / "model", ["1_Pooling/config.json", "README.md", "config.json", "model.safetensors"]
    known += ["2_Normalize/config.json", "modules.json", "onnx/model.onnx", "tokenizer.json"]
    others = ["id_rsa", "secrets.env", "train.tsv", "onnx/.token", "onnx/train.tsv", "passwords_config", "checkpoints/state"]
    for name in (*known, *others, ".tpulm/lock"):
        storage.write_atomic(model / name, name)
    (model / "vocab.txt").symlink_to("/etc/passwd")
    (found,) = publications(model, "user/ko")
    assert sorted(file.name for file in found.files) == sorted(known)
    assert {"id_rsa", "secrets.env", "train.tsv", "onnx/train.tsv", "vocab.txt"} <= set(found.left_out)
    (found,) = publications(model, "user/ko", include=["train.tsv", "vocab.txt"])
    assert sorted(file.name for file in found.files) == sorted([*known, "train.tsv", "vocab.txt"])
    with pytest.raises(ConfigError, match="absent"):
        publications(model, "user/ko", include=["absent"])
    storage.remove(model / "2_Normalize")
    (model / "2_Normalize").symlink_to(model / "1_Pooling")
    (found,) = publications(model, "user/ko")
    assert "2_Normalize/config.json" not in {file.name for file in found.files}
    (model / "model.safetensors").rename(tmp_path / "elsewhere")
    (model / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="link"):
        publications(model, "user/ko")


def test_halves_of_an_electra_are_two_repositories(workdir: Path, tmp_path: Path) -> None:
    for half in ("discriminator", "generator"):
        shutil.copytree(workdir / "export", tmp_path / "model" / half)
    found = publications(tmp_path / "model", "user/ko")
    assert [one.repository for one in found] == ["user/ko-discriminator", "user/ko-generator"]
    assert all({"model.safetensors", "config.json", "README.md"} <= {file.name for file in one.files} for one in found)


def test_what_is_refused(workdir: Path, hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = shutil.copytree(workdir, tmp_path / "bad")
    values = workfolder.read_result(bad, "evaluation") or {}
    workfolder.write_result(bad, "evaluation", {**values, "health": "outside after 6 steps: token loss 9"})
    with pytest.raises(ConfigError, match="after 6 steps"):
        publications(bad, "user/toy")
    for name in ("toy", "a/b/c", "user/..", "user/a b"):
        with pytest.raises(ConfigError, match=f"'{name}'"):
            publications(workdir, name, anyway=True)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        publications(tmp_path, "user/toy")
    monkeypatch.setattr(publishing, "get_token", lambda: None)
    assert "HF_TOKEN" in invoke("push", workdir, "user/toy", "--anyway", code=2).stderr
    dry = invoke("push", workdir, "user/toy", "--anyway", "--dry-run", code=0)  # which sends nothing, and needs no token
    assert "model.safetensors" in dry.stdout + dry.stderr
    dry = invoke("push", bad, "user/toy", "--dry-run", code=2)  # which also says what would stop it
    assert "model.safetensors" in dry.stdout + dry.stderr and "after 6 steps" in dry.stderr
    hub.status = 403
    refused = push(hub, tmp_path / "home", str(workdir), "user/toy", "--anyway")
    assert refused.returncode == 4 and "may not write there" in refused.stderr
