"""The stage as a whole: settings, limits, restarts, and the same bytes whatever happens on the way."""

import gzip
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tpulm.config import CorpusConfig
from tpulm.corpus import load_manifest, load_removed, read_part, remove_spill, sample_texts, scatter, spill
from tpulm.errors import DataError, Stopped, StorageError
from tpulm.progress import Silent
from tpulm.runtime.hosts import Hosts
from tpulm.runtime.workers import run_here, run_tasks

SCATTER = sys.modules["tpulm.corpus.scatter"]

KILLED = """
import os, signal, sys
from tpulm import storage
from tpulm.config import CorpusConfig
from tpulm.corpus import scatter

calls, limit = 0, int(sys.argv[1])
def dying(function):
    def wrapped(*arguments, **named):
        global calls
        calls += 1
        if calls == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return wrapped
storage.publish, storage.write_json, os.fsync = map(dying, (storage.publish, storage.write_json, os.fsync))
scatter(CorpusConfig(sources=tuple(sys.argv[3:])), sys.argv[2], part_bytes=10_000)
"""


class Heard(Silent):
    def __init__(self) -> None:
        self.total, self.done, self.notes = 0.0, 0.0, list[str]()

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self.total = total or 0.0

    def advance(self, amount: float) -> None:
        self.done += amount

    def note(self, message: str) -> None:
        self.notes.append(message)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def sources(write: Callable) -> list[str]:
    """Three files in three formats, with duplicates across them."""
    lines = [f"sentence {number} of the corpus" for number in range(3000)]
    text = write("in/a.txt", "\n".join(lines[:1200]))
    packed = write("in/b.txt.gz", gzip.compress("\r\n".join(lines[1000:2200]).encode()))
    table = write("in/c.csv", "text\n" + "\n".join(lines[2000:]))
    return [str(text), str(packed), str(table)]


def test_counts_and_inputs_are_in_the_manifest(scattered: Callable, sources: list[str]):
    corpus = scattered(sources)
    manifest, counts = corpus.manifest, corpus.manifest.counts
    assert (counts.documents, len(corpus.documents())) == (1200 + 1200 + 1000, 3000)
    assert counts.bytes == counts.characters > 3400 * 24
    kinds = [("a.txt", "text", None), ("b.txt.gz", "text", "gzip"), ("c.csv", "csv", None)]
    sizes = [Path(source).stat().st_size for source in sources]
    found = [(item.within, item.format, item.compression, item.read_bytes, item.bytes) for item in manifest.inputs]
    assert found == [(*kind, size, size) for kind, size in zip(kinds, sizes, strict=True)]
    assert load_manifest(corpus.workdir) == manifest


def test_pieces_and_runs_do_not_change_the_documents(scattered: Callable, write: Callable, monkeypatch: pytest.MonkeyPatch):
    texts = ["\n".join(f"text {number * 7 + line}" for line in range(50)) for number in range(20)]
    (folder,) = {write(f"many/{number:02d}.txt", text).parent for number, text in enumerate(texts)}
    one = scattered(folder)
    monkeypatch.setattr(SCATTER, "_PIECE_BYTES", 1500)
    for name, value in (("_RUN_BYTES", 1000), ("_WRITE_BYTES", 20), ("_WRITE_DOCUMENTS", 3)):
        monkeypatch.setattr(spill, name, value)
    many = scattered(folder)
    assert len(one.manifest.pieces) == 1 and len(many.manifest.pieces) > 5
    assert (one.train(), one.holdout()) == (many.train(), many.holdout())
    assert one.manifest.fingerprint == many.manifest.fingerprint


def test_order_content_and_settings_make_another_fingerprint(scattered: Callable, sources: list[str], write: Callable):
    weighted = [{"path": sources[0], "weight": 2.0}, *sources[1:]]
    found = [scattered(given).manifest.fingerprint for given in (sources, sources[::-1], sources[:2], weighted)]
    for settings in ({"holdout_fraction": 0.02}, {"cleaning": {"min_characters": 2}}):
        found.append(scattered(sources, **settings).manifest.fingerprint)
    write("in/a.txt", "another text")
    assert len({*found, scattered(sources).manifest.fingerprint}) == 7


def test_progress_adds_up_and_what_is_left_out_is_said(scattered: Callable, write: Callable, sources: list[str]):
    heard = Heard()
    scattered([*sources, str(write("d.txt", "\n\nx\n"))], cleaning={"min_characters": 2}, progress=heard)
    assert heard.done == heard.total > 0
    assert heard.notes == ["3,400 documents kept; left out: 2 empty, 1 too short"]


def test_documents_that_are_no_plain_text_are_noted(scattered: Callable, write: Callable):
    """One in a hundred is noted; one in more may be a text about markup."""
    for line, named in (
        ("first line<br>second line", "HTML tags"), ('<p class="c">a paragraph</P>', "HTML tags"),
        ("Smith &amp; Sons&nbsp;Ltd.", "HTML entities"), ("［＃８字下げ］一　吾輩《わがはい》は猫である", "Aozora"),
        ("a < b and b > c, x<y>z, R&D; AT&T", ""),
    ):  # fmt: skip
        for plain, expected in ((99, named), (100, "")):
            heard, lines = Heard(), [line, *(f"plain line {number}" for number in range(plain))]
            assert scattered(write("a.txt", "\n".join(lines)), progress=heard).manifest.counts.documents == plain + 1
            assert [note.partition(" contain ")[2].startswith(expected) for note in heard.notes] == ([True] if expected else [])


@pytest.mark.parametrize(("documents", "said"), [("line", 1), ("paragraph", 1), ("file", 0)])
def test_aozoras_header_that_stays_in_lines_is_said(scattered: Callable, write: Callable, documents: str, said: int):
    rule, heard = "-" * 55, Heard()
    write("in/a.txt", f"吾輩は猫である\n\n{rule}\n【記号について】\n\n《》：ルビ\n{rule}\n\n名前はまだ無い。\n")
    folder = write("in/b.txt", "竹青\n\n魚容という名の貧書生がいた。\n").parent
    scattered([{"path": str(folder), "documents": documents}], cleaning={"remove": ["aozora"]}, progress=heard)
    assert sum("headers and footers of Aozora's files" in note for note in heard.notes) == said, heard.notes


def test_near_copies_are_held_out_together(scattered: Callable, write: Callable):
    texts = [f"{first} {number}{last}" for number in range(400) for first in ("Text", "text,", "TEXT -") for last in ("", "!")]
    corpus = scattered(write("a.txt", "\n".join(texts)), holdout_fraction=0.2)
    train, holdout = ({"".join(filter(str.isalnum, text.lower())) for text in s} for s in (corpus.train(), corpus.holdout()))
    assert train.isdisjoint(holdout) and len(train | holdout) == 400 and 40 < len(holdout) < 130
    assert len(corpus.documents()) == len(texts)


def test_a_sample_counts_every_near_copy(scattered: Callable, write: Callable):
    texts = [f"word{'!' * marks} {number}" for number in range(100) for marks in range(20)]
    corpus = scattered(write("a.txt", "\n".join(texts)))
    for most in (1000, 5000):
        assert most / 2 < sum(map(len, corpus.sample(most))) <= most


@pytest.mark.parametrize("limit", [1, 100, 1200, 1201, 5000])
def test_max_documents_takes_the_first_and_reads_no_further(scattered: Callable, sources: list[str], limit: int):
    corpus = scattered(sources, max_documents=limit, deduplicate=False)
    assert corpus.manifest.counts.documents == min(limit, 3400)
    assert len(corpus.manifest.inputs) == (1 if limit <= 1200 else 2 if limit <= 2400 else 3)
    assert corpus.manifest.limit_reached == (limit < 3400)
    in_order = [f"sentence {number} of the corpus" for number in (*range(1200), *range(1000, 2200), *range(2000, 3000))]
    assert corpus.documents() == sorted(in_order[:limit])


def test_max_bytes_never_takes_more(scattered: Callable, sources: list[str]):
    corpus = scattered(sources, max_bytes=1000)
    assert 970 < corpus.manifest.counts.bytes <= 1000
    assert scattered(sources, max_bytes=corpus.manifest.counts.bytes).documents() == corpus.documents()
    assert scattered(sources, max_bytes=1000, max_documents=3).manifest.counts.documents == 3
    with pytest.raises(DataError, match=r"corpus\.max_bytes = 5"):
        scattered(sources, max_bytes=5)


def test_a_limit_leaves_the_rest_of_a_large_file_unread(scattered: Callable, write: Callable):
    path = write("a.txt", "some words in a line\n" * 500_000)
    (record,) = scattered(path, max_documents=10).manifest.inputs
    assert record.bytes == 10_500_000 and record.read_bytes < 1_500_000


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [("", {}, r"corpus\.sources"), ("\n \n\n", {}, "3 empty"), ("a\nb", {"min_characters": 5}, r"2 too short.*corpus\.clean")],
)
def test_an_empty_corpus_is_an_error(scattered: Callable, tmp_path: Path, content: str, settings: dict, message: str):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message) as failure:
        scattered(tmp_path / "a.txt", cleaning=settings, workdir=tmp_path / "w")
    assert failure.value.exit_code == 3 and load_manifest(tmp_path / "w") is None


def test_skipping_is_per_source_and_counted(scattered: Callable, write: Callable):
    bad = write("bad.jsonl", b'{"text": "good"}\n{"no": 1}\nnot json\n{"text": "al\xff"}\n')
    torn = write("torn.txt.gz", gzip.compress(b"whole\ncut of", 0)[:-9])
    sources = [{"path": str(path), "on_error": "skip"} for path in (bad, torn)]
    manifest = scattered(sources).manifest
    assert manifest.counts.documents == 2
    assert manifest.counts.skipped == {"broken_file": 1, "no_field": 1, "not_json": 1, "undecodable": 1}
    with pytest.raises(DataError, match=r"torn\.txt\.gz"):
        scattered([sources[0], str(torn)])


def times(folder: Path) -> dict[str, int]:
    """When each file below a folder was written."""
    return {name: (folder / name).stat().st_mtime_ns for name in tree(folder)}


def test_a_finished_corpus_is_not_read_again_and_its_manifest_outlives_the_documents(scattered: Callable, sources: list[str]):
    corpus = scattered(sources)
    before = times(corpus.workdir)
    assert scattered(sources, workdir=corpus.workdir).manifest == corpus.manifest and times(corpus.workdir) == before
    assert "corpus/pieces/000000.spill" in before
    remove_spill(corpus.workdir)
    assert scattered(sources, workdir=corpus.workdir).manifest == corpus.manifest
    assert sorted(tree(corpus.workdir)) == ["corpus/manifest.json", "corpus/removed.json"]
    with pytest.raises(StorageError, match=r"gone; .*manifest\.json"):
        read_part(corpus.workdir, corpus.manifest, 0)
    with pytest.raises(StorageError, match="gone"):
        list(sample_texts(corpus.workdir, corpus.manifest, 10**6))


@pytest.mark.slow
def test_killed_at_any_step_and_run_again_it_ends_the_same(scattered: Callable, sources: list[str], tmp_path: Path):
    expected = tree(scattered(sources, part_bytes=10_000).workdir)
    killed = 0
    for steps in (2, 4, 3, 5, 7, 100):  # of what is left: each attempt goes on from the pieces that are complete
        command = [sys.executable, "-c", KILLED, str(steps), str(tmp_path / "w"), *sources]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
        assert load_manifest(tmp_path / "w") is None
        killed += 1
    assert killed >= 3
    assert tree(tmp_path / "w") == expected


def test_only_unfinished_or_changed_pieces_are_read_again(scattered: Callable, sources: list[str], tmp_path: Path):
    work, bad = tmp_path / "w", tmp_path / "in" / "bad.jsonl"
    bad.write_text("oops")
    with pytest.raises(DataError):
        scattered([*sources, str(bad)], workdir=work)
    before = times(work)
    assert sum(name.endswith(".spill") for name in before) == 3
    bad.write_text('{"text": "fine"}')
    Path(sources[1]).touch()  # same content: its hash is compared
    Path(sources[0]).write_text("something new")
    corpus = scattered([*sources, str(bad)], workdir=work)
    after = times(work)
    again = {name for name, time in before.items() if after.get(name) != time}
    assert again == {"corpus/pieces/000000.spill", "corpus/pieces/000000.json"}
    assert corpus.documents() == scattered([*sources, str(bad)]).documents()


@pytest.mark.parametrize("settings", [{}, {"max_documents": 1500}])
def test_a_damaged_piece_and_leftovers_are_replaced(scattered: Callable, sources: list[str], settings: dict[str, Any]):
    corpus = scattered(sources, **settings)
    expected = tree(corpus.workdir)
    pieces = corpus.workdir / "corpus" / "pieces"
    (pieces / "000001.spill").write_bytes(b"torn")
    (pieces / ".000002.spill.1.tpulm-tmp").write_bytes(b"half")
    (pieces / "000007.spill").write_bytes(b"of another corpus")
    (corpus.workdir / "corpus" / "manifest.json").unlink()
    assert scattered(sources, workdir=corpus.workdir, **settings).manifest == corpus.manifest
    assert tree(corpus.workdir) == expected


def test_a_requested_stop_leaves_no_half_piece(scattered: Callable, sources: list[str], tmp_path: Path, stopped: None):
    with pytest.raises(Stopped):
        scattered(sources, workdir=tmp_path / "w")
    assert tree(tmp_path / "w") == {}


def test_a_full_disk_is_an_error_without_torn_output(scattered: Callable, sources: list[str], tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match=r"000000\.spill"):
            scattered(sources, workdir=tmp_path / "w")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree(tmp_path / "w") == {}
    assert scattered(sources, workdir=tmp_path / "w").manifest.counts.documents == 3400


def test_a_file_that_grows_while_it_is_read(scattered: Callable, sources: list[str], monkeypatch: pytest.MonkeyPatch):
    found = SCATTER.find_files
    smaller = lambda *given, **more: [one._replace(bytes=one.bytes - 1) for one in found(*given, **more)]  # noqa: E731
    monkeypatch.setattr(SCATTER, "find_files", smaller)
    with pytest.raises(DataError, match=r"had \d+ bytes, then \d+"):
        scattered(sources)


class Together:
    """Barriers of two hosts that are threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=60)

    def barrier(self, name: str) -> None:
        self._barrier.wait()

    def lost(self, wait_seconds: float) -> None:
        return None


def test_hosts_share_the_pieces_and_the_result_is_the_same(sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SCATTER, "_WORTH_A_POOL_BYTES", 0)
    config = CorpusConfig.model_validate({"sources": sources, "cleaning": {"remove": ["9 of"]}})
    alone = scatter(config, tmp_path / "alone", part_bytes=10_000, runner=run_here)
    channel, heard = Together(), [Heard(), Heard()]

    def host(index: int):
        several = Hosts(index, 2, channel=cast("Any", channel))
        runner = partial(run_tasks, workers=2)
        return scatter(config, tmp_path / "w", part_bytes=10_000, runner=runner, hosts=several, progress=heard[index])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(host, range(2))) == [alone, alone]
    assert tree(tmp_path / "w") == tree(tmp_path / "alone") and load_removed(tmp_path / "w")
    assert [progress.done for progress in heard] == [progress.total for progress in heard]
    assert sum(progress.total for progress in heard) == sum(file.bytes for file in alone.inputs)


@pytest.mark.parametrize("limit", [1, 1500, 1_000_000])
def test_with_a_limit_one_host_reads_for_all(sources: list[str], tmp_path: Path, limit: int):
    config = CorpusConfig.model_validate({"sources": sources, "max_documents": limit})
    alone = scatter(config, tmp_path / "alone", part_bytes=10_000)
    hosts = [Hosts(index, 2, channel=channel) for channel in [cast("Any", Together())] for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda host: scatter(config, tmp_path / "w", part_bytes=10_000, hosts=host), hosts)
        assert list(found) == [alone, alone]
