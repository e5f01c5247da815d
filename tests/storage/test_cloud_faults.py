"""Cloud Storage on a bad day: what passes is waited for, what does not is explained."""

from __future__ import annotations

import builtins
import errno
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.errors import MissingExtra, StorageError, StorageRefused
from tpulm.storage import cloud

# google-cloud-storage leaves the connection of a refused download to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

FOLDER = "gs://runs/folder"
CONTENT = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats come within milliseconds."""
    from google.cloud.storage import retry

    patient = retry.DEFAULT_RETRY

    class Soon:
        def with_delay(self, **_: float) -> Any:
            return patient.with_delay(initial=0.01, maximum=0.05, multiplier=1.5)

    monkeypatch.setattr(retry, "DEFAULT_RETRY", Soon())


def read_in_pieces(path: str) -> bytes:
    with storage.open_read(path) as stream, storage.explain("read", path):
        return stream.read()


def publish(tmp_path: Path) -> None:
    storage.write_atomic(tmp_path / "made" / "x", "new")
    storage.publish(tmp_path / "made", f"{FOLDER}/made")


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "write": lambda tmp_path: storage.write_atomic(f"{FOLDER}/y", CONTENT),
    "create": lambda tmp_path: storage.create_if_absent(f"{FOLDER}/y", CONTENT),
    "read": lambda tmp_path: storage.read_bytes(f"{FOLDER}/x"),
    "read in pieces": lambda tmp_path: read_in_pieces(f"{FOLDER}/x"),
    "read a range": lambda tmp_path: storage.Ranges(f"{FOLDER}/x").read(5, 5000),
    "download": lambda tmp_path: cloud.download(storage.as_path(f"{FOLDER}/x"), tmp_path / "copy"),
    "look": lambda tmp_path: storage.info(f"{FOLDER}/x"),
    "exists": lambda tmp_path: storage.exists(FOLDER),
    "list": lambda tmp_path: storage.list_folder(FOLDER),
    "walk": lambda tmp_path: storage.walk(FOLDER),
    "remove": lambda tmp_path: storage.remove(FOLDER),
    "move": lambda tmp_path: storage.move_folder(FOLDER, "gs://runs/other"),
    "publish": publish,
}
RESULTS: dict[str, object] = {"create": True, "exists": True, "list": [storage.as_path(f"{FOLDER}/x")]}
RESULTS |= {"read": CONTENT, "read in pieces": CONTENT, "read a range": CONTENT[5:5000]}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_passes_is_waited_for(gcs: Emulator, tmp_path: Path, operation: str):
    storage.write_atomic(f"{FOLDER}/x", CONTENT)
    for fault in ({"error_rate": 1}, {"error_rate": 1, "error_status": 429}, {"drop_rate": 1}, {"truncate_rate": 1}):
        gcs.faults.set(**fault, count=3)
        found = OPERATIONS[operation](tmp_path)
        gcs.faults.clear()
        assert operation not in RESULTS or found == RESULTS[operation]
        assert operation != "download" or (tmp_path / "copy").read_bytes() == CONTENT
        storage.remove("gs://runs/other")
        storage.remove(FOLDER)
        storage.write_atomic(f"{FOLDER}/x", CONTENT)
    assert gcs.faults.injected["error"] == 6 and gcs.faults.injected["drop"] == 3


@pytest.mark.parametrize("fault", ["error_after_rate", "drop_after_rate"])
def test_lost_answers(gcs: Emulator, fault: str):
    def lose(count: int = 1, match: str = "") -> None:
        gcs.faults.set(**{fault: 1, "count": count, "match": match})

    lose()
    assert storage.create_if_absent(f"{FOLDER}/x", "mine") is True
    assert storage.create_if_absent(f"{FOLDER}/x", "other") is False
    seen = storage.read_versioned(f"{FOLDER}/x")
    assert seen is not None and seen[0] == b"mine" and sum(gcs.faults.injected.values()) == 1
    lose()
    new = storage.replace_version(f"{FOLDER}/x", "new", seen[1])
    assert new is not None and storage.read_versioned(f"{FOLDER}/x") == (b"new", new)
    lose(2, "/x$")
    storage.move_folder(FOLDER, "gs://runs/other")
    assert list(storage.walk("gs://runs")) == ["other/x"]
    lose(1, "other/x")
    storage.remove("gs://runs/other/x")
    assert not storage.exists("gs://runs/other/x")


def test_one_of_many_wins_whatever_is_lost(gcs: Emulator):
    gcs.faults.set(error_rate=0.2, error_after_rate=0.2, drop_rate=0.1, drop_after_rate=0.2)
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda i: storage.create_if_absent(f"{FOLDER}/x", str(i)), range(16)))
    gcs.faults.clear()
    assert won.count(True) == 1
    assert storage.read_text(f"{FOLDER}/x") == str(won.index(True))


def test_a_deadline_names_operation_object_and_cause(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    storage.write_atomic(f"{FOLDER}/x", CONTENT)
    monkeypatch.setattr(cloud, "DEADLINE_SECONDS", 0.2)
    for operation, words, fault, cause in (
        ("write", "write gs://runs/folder/y", "error_rate", "try again"),
        ("read", "read gs://runs/folder/x", "drop_rate", "onnection"),
        ("read in pieces", "read gs://runs/folder/x", "error_rate", "try again"),
        ("list", "list gs://runs/folder", "drop_rate", "onnection"),
        ("look", "look at gs://runs/folder/x", "error_rate", "try again"),
        ("remove", "list gs://runs/folder", "error_rate", "try again"),
        ("download", "read gs://runs/folder/x", "error_rate", "try again"),
    ):
        gcs.faults.set(**{fault: 1})
        with pytest.raises(StorageError, match=rf"{words}: .*\(.*(?i:{cause}).*\)") as refused:
            OPERATIONS[operation](tmp_path)
        assert not isinstance(refused.value, StorageRefused)
        assert len(str(refused.value).splitlines()) == 1


def test_an_account_that_may_not_write(gcs: Emulator, tmp_path: Path):
    storage.write_atomic(f"{FOLDER}/x", CONTENT)
    gcs.faults.set(read_only=True)
    for operation in ("write", "create", "remove", "move", "publish"):
        with pytest.raises(StorageRefused, match=r"storage\.objects") as refused:
            OPERATIONS[operation](tmp_path)
        assert refused.value.exit_code == 4
    with pytest.raises(StorageRefused, match=FOLDER):
        storage.check_writable(FOLDER)
    assert storage.read_bytes(f"{FOLDER}/x") == CONTENT


def test_a_bucket_that_does_not_exist(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "FOLDER", "gs://rums/folder")
    for operation in OPERATIONS.keys() - {"publish"}:
        with pytest.raises(StorageError, match="buckets create gs://rums"):
            OPERATIONS[operation](tmp_path)


def test_a_full_disk_is_not_blamed_on_the_cloud(gcs: Emulator, tmp_path: Path):
    storage.write_atomic(f"{FOLDER}/x", CONTENT)
    full = patch("google.cloud.storage.Blob.download_to_filename", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with full, pytest.raises(StorageError, match="disk is full"):
        cloud.download(storage.as_path(f"{FOLDER}/x"), tmp_path / "copy")


def test_nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    storage.forget_clients()
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    with pytest.raises(StorageRefused, match="application-default login") as refused:
        storage.read_bytes("gs://nobucket/x")
    assert refused.value.exit_code == 4 and asked == [], "a search for a metadata server takes tens of seconds"


def test_the_extra_is_not_installed(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    whole = builtins.__import__

    def without(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.startswith(("google.cloud", "google.api_core", "google.auth")):
            raise ImportError(f"No module named '{name}'", name=name)
        return whole(name, globals, locals, fromlist, level)

    storage.forget_clients()
    monkeypatch.setattr(builtins, "__import__", without)
    for operation in (storage.read_bytes, storage.exists, storage.list_folder, storage.walk, storage.remove, storage.info,
                      storage.read_versioned, storage.check_writable, storage.open_read):  # fmt: skip
        with pytest.raises(MissingExtra, match=r"'\.\[gcs\]'"):
            operation("gs://runs/x")
