from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from tpulm import storage


@pytest.fixture(params=["disk", "cloud"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PurePath:
    """A folder that does not exist yet: on this machine, then in Cloud Storage."""
    if request.param == "disk":
        return tmp_path / "place"
    request.getfixturevalue("gcs")
    return storage.as_path("gs://runs/place")


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the machine's own for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder
