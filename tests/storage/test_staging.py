from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.errors import StorageError
from tpulm.progress import held_stderr
from tpulm.storage import staging
from tpulm.storage.arrays import LOG_LINE
from waiting import until


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


class TestBuiltAside:
    def test_a_folder_replaces_what_was_there(self, place: PurePath, temporary_files: Path):
        for name in ("stale", "fresh"):
            with storage.built_aside(place / "deep" / "x", last=name) as made:
                made.mkdir()
                (made / "a").write_text("a")
                (made / name).write_text("b")
        assert list(storage.walk(place / "deep" / "x")) == ["a", "fresh"]

    def test_an_error_leaves_everything_as_it_was(self, place: PurePath, temporary_files: Path):
        storage.write_atomic(place / "x", "old")
        with pytest.raises(RuntimeError), storage.built_aside(place / "x") as made:
            made.write_text("half")
            raise RuntimeError
        assert storage.read_text(place / "x") == "old" and list(storage.walk(place)) == ["x"]

    def test_what_a_killed_process_left_is_removed(self, place: PurePath, temporary_files: Path):
        beside = isinstance(place, Path)
        left = f".x.{dead_process()}.0123" if beside else f"tpulm-{dead_process()}-abc"
        storage.write_atomic((place if beside else temporary_files) / f"{left}{storage.TEMPORARY_SUFFIX}" / "half", "")
        with storage.built_aside(place / "x") as made:
            made.write_text("whole")
        assert storage.read_text(place / "x") == "whole"


class TestLocalCopy:
    def test_it_is_the_file_or_a_copy(self, place: PurePath, temporary_files: Path):
        storage.write_atomic(place / "한 x.txt", "content")
        with storage.local_copy(place / "한 x.txt") as copy:
            assert copy.read_text() == "content" and copy.name == "한 x.txt"
            assert (copy == place / "한 x.txt") == isinstance(place, Path)
        assert list(temporary_files.iterdir()) == []
        assert storage.exists(place / "한 x.txt")


class TestMirror:
    def test_what_is_appended_is_there_after_a_sync_and_at_the_end(self, place: PurePath, temporary_files: Path):
        storage.write_atomic(place / "others", "others'")
        with storage.Mirror(place) as mirrored, (mirrored.folder / "log").open("a") as stream:
            for line in ("one\n", "two\n"):
                stream.write(line)
                stream.flush()
                mirrored.sync()
                assert storage.read_text(place / "log").endswith(line)
            (mirrored.folder / "deep").mkdir()
            (mirrored.folder / "deep" / "x").write_text("x")
            stream.write("three\n")
            stream.flush()
        assert storage.read_text(place / "log") == "one\ntwo\nthree\n"
        assert sorted(storage.walk(place)) == ["deep/x", "log", "others"]
        assert storage.read_text(place / "others") == "others'"
        assert list(temporary_files.iterdir()) == []

    def test_now_and_then(self, gcs: Emulator, temporary_files: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(staging, "_INTERVAL_SECONDS", 0.02)
        with storage.Mirror(storage.as_path("gs://runs/w")) as mirrored:
            (mirrored.folder / "log").write_text("one")
            until(lambda: storage.exists("gs://runs/w/log"))
            assert storage.read_text("gs://runs/w/log") == "one"

    def test_an_outage_is_caught_up_with(self, gcs: Emulator, temporary_files: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.1)
        with storage.Mirror(storage.as_path("gs://runs/w")) as mirrored:
            (mirrored.folder / "log").write_text("one")
            gcs.faults.set(error_rate=1)
            with pytest.raises(StorageError, match="gs://runs/w/log"):
                mirrored.sync()
            gcs.faults.clear()
            mirrored.sync()
            before = gcs.requests
            mirrored.sync()
            assert gcs.requests == before, "nothing is sent twice"
        assert storage.read_text("gs://runs/w/log") == "one"

    def test_the_last_sync_fails_aloud_unless_an_error_says_more(
        self, gcs: Emulator, temporary_files: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("tpulm.storage.cloud.DEADLINE_SECONDS", 0.1)
        gcs.faults.set(error_rate=1)
        for raised, expected in ((None, StorageError), (RuntimeError(), RuntimeError)):
            with pytest.raises(expected), storage.Mirror(storage.as_path("gs://runs/w")) as mirrored:
                (mirrored.folder / "log").write_text("one")
                if raised is not None:
                    raise raised
        assert list(temporary_files.iterdir()) == []


LEAVES = """
import os, signal, sys
from tpulm import storage
with storage.scratch_folder() as folder:
    (folder / "x").touch()
    if os.fork() == 0:  # a process with another number that still has it, as one in another container would
        os.write(1, b".")
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""

NEEDS_A_POOL = "from tpulm.runtime import workers; list(workers.run_tasks(abs, [(1,)], workers=1))"


class TestScratch:
    def test_only_what_dead_processes_left_is_swept(self, temporary_files: Path):
        dead, alive = dead_process(), os.getppid()
        scratch = (f"tpulm-{alive}-a", f"tpulm-{os.getpid()}-b", f"other-{dead}-d", "tpulm-x-e")
        kept = [*(name + storage.TEMPORARY_SUFFIX for name in scratch), f"tpulm-{dead}-c", f"pymp-{dead}"]
        for name in (*kept, *(f"tpulm-{dead}-{letter}{storage.TEMPORARY_SUFFIX}" for letter in "fg")):
            storage.write_atomic(temporary_files / name / "x", "")
        elsewhere = temporary_files / f"tpulm-{dead}-h{storage.TEMPORARY_SUFFIX}"
        elsewhere.symlink_to(temporary_files / kept[-1])
        with storage.scratch_folder() as folder:
            assert folder.is_dir() and list(folder.iterdir()) == []
            found = sorted(path.name for path in temporary_files.iterdir() if path != folder)
            assert found == sorted([*kept, elsewhere.name])
        assert not folder.exists()
        assert (temporary_files / kept[-1] / "x").exists()

    def test_what_a_killed_process_left_goes_once_nobody_has_it(self, temporary_files: Path):
        environment = {**os.environ, "TMPDIR": str(temporary_files)}
        leaves, needs_a_pool = [sys.executable, "-c", LEAVES], [sys.executable, "-c", NEEDS_A_POOL]
        with subprocess.Popen(leaves, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdout.read(1)  # the fork is there
            process.wait()
            [left] = temporary_files.iterdir()
            storage.remove_leftovers()
            assert (left / "x").exists()
            process.stdin.close()
            process.stdout.read()
        subprocess.run(needs_a_pool, env=environment, check=True)
        assert not left.exists()


def test_log_lines_of_libraries_are_left_out_and_nothing_else(capfd: pytest.CaptureFixture[str]):
    with held_stderr(without=LOG_LINE):
        os.write(2, b"\x1b[2KTraining  1/2\rI1123 00:44:31.098986   27320 google_auth_provider.cc:136] Using a token\n")
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(2, b"E1123 00:46:20.101343   27924 google_auth_provider.cc:188] Could not find the file\nI am here\n")
    os.write(2, b"later\n")
    err = capfd.readouterr().err
    assert err.startswith("\x1b[2KTraining  1/2\rE1123") and err.endswith("find the file\nI am here\nlater\n")
