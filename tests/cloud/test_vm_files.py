"""What is sent to a VM: small, old enough in its language, and the same bytes for the same sources."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from unittest.mock import patch

import pytest

from tpulm.cloud import bundle
from tpulm.cloud.vm.digest import digest

FOLDER = bundle.source_folder() / "cloud" / "vm"


def test_the_startup_script_fits_and_is_bash():
    for script in (bundle.boot_script(), bundle.boot_script("shutdown.sh")):
        assert len(script.encode()) < 4096
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize("name", bundle.PROGRAMS)
def test_what_runs_there_needs_python_3_8_and_its_library_alone(name: str):
    tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    beside = {Path(program).stem for program in bundle.PROGRAMS}
    assert {module.split(".")[0] for module in imported} <= sys.stdlib_module_names | beside


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The bundle of these sources, packed twice, with a script that runs uv instead of the 50 MB of it."""
    folders = [tmp_path_factory.mktemp(name) for name in ("uv", "first", "second")]
    uv = folders[0] / "small-uv"
    uv.write_text(f'#!/bin/sh\nexec {bundle.fetch_uv(folders[0])} "$@"\n')
    uv.chmod(0o755)
    with patch.object(bundle, "fetch_uv", lambda folder: uv):
        return [bundle.build(folder) for folder in folders[1:]]


def test_a_bundle_is_named_by_what_is_in_it(packed: list[Path]):
    assert {path.name for path in packed} == {f"{hashlib.sha256(packed[0].read_bytes()).hexdigest()}.tar.gz"}
    with tarfile.open(packed[0]) as archive:
        names = archive.getnames()
    assert {*bundle.PROGRAMS, "bundle.json", "pins.txt", "uv"} < set(names)
    assert {f"source/tpulm/{name}" for name in ("__init__.py", "cloud/vm/boot.sh", "recipes/bert-base.toml")} < set(names)
    assert not any("__pycache__" in name for name in names)


def test_an_environment_has_the_tpulm_of_its_bundle(packed: list[Path], tmp_path: Path):
    """Without what that needs: as where all of it comes with the bundle."""
    with tarfile.open(packed[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "pins.txt").write_text("")
    code = "import install, sys; sys.executable = ''; print(install.environment(lambda: None))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    python = done.stdout.splitlines()[-1]
    found = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=False)
    assert python == str(tmp_path / "env" / "bin" / "python")
    assert found.stdout.strip() == metadata.version("tpulm"), found.stderr


VERSION = "from importlib import metadata; print(metadata.version('tpulm'))"


@pytest.mark.parametrize(("failures", "asked"), [(2, 3), (9, 3)], ids=["passes", "stays"])
def test_a_failed_download_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, asked: int):
    """The words of uv issue 1912. One host's would cost the whole slice."""
    monkeypatch.syspath_prepend(str(FOLDER))
    install, pauses = importlib.import_module("install"), list[float]()
    monkeypatch.setattr(install.time, "sleep", pauses.append)
    monkeypatch.setattr(install.time, "time", lambda: 1e9 + sum(pauses))
    (tmp_path / "asked").mkdir()
    (tmp_path / "uv").write_text(
        f'#!/bin/sh\ncd {tmp_path}/asked && touch $(($(ls | wc -l) + 1)) && [ "$UV_HTTP_TIMEOUT" -ge 300 ] || exit 9\n'
        f'[ $(ls | wc -l) -gt {failures} ] || {{ echo "request or response body error: operation timed out"; exit 2; }}\n'
    )
    (tmp_path / "uv").chmod(0o755)
    with pytest.raises(RuntimeError, match="operation timed out") if failures > 2 else contextlib.nullcontext():
        install.run_with_retries([str(tmp_path / "uv")], lambda: None)
    assert len(list((tmp_path / "asked").iterdir())) == asked and sum(pauses) >= 70


def test_everything_needed_is_pinned():
    pins = dict(line.split("==") for line in bundle.pins())
    assert {"jax[tpu]", "jaxlib", "orbax-checkpoint", "google-cloud-storage", "tokenizers"} < pins.keys()
    assert not {"tpulm", "pytest", "torch", "jax", "fugashi"} & pins.keys()
    assert {line.split("==")[0] for line in bundle.pins(["ja"])} - pins.keys() == {"fugashi", "unidic-lite"}


def test_the_digest_tells_sources_apart(tmp_path: Path):
    (tmp_path / "a.py").write_text("1")
    first = digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert digest(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert digest(tmp_path) != first
