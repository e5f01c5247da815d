from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from tpulm import storage


@pytest.fixture(params=["disk", "cloud"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PurePath]:
    """A folder that does not exist yet: on this machine, then in Cloud Storage. No temporary file may be left here."""
    if request.param == "cloud":
        request.getfixturevalue("gcs")
        yield storage.as_path("gs://runs/place")
    else:
        yield tmp_path / "place"
    assert not list(tmp_path.rglob(f"*{storage.TEMPORARY_SUFFIX}"))


@pytest.fixture
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the machine's own for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder
