import bz2
import gzip
import hashlib
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tpulm.corpus.documents import Faults
from tpulm.corpus.readers.lines import ByteStream, Compression
from tpulm.errors import DataError, StorageError

COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: zstandard.compress(data),
}
SUFFIX = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst"}
TEXT = b"".join(b"line %d of some text that repeats\n" % number for number in range(20_000))


@pytest.fixture(params=list(COMPRESS))
def compression(request: pytest.FixtureRequest) -> Compression:
    return request.param


def test_each_compression_is_undone_and_the_raw_file_hashed(compression: Compression, write: Callable):
    data = COMPRESS[compression](TEXT)
    stream = ByteStream(write("a", data), compression, Faults("stop", "a"))
    assert b"".join(stream.pieces()) == TEXT
    assert (stream.read_bytes, stream.sha256()) == (len(data), hashlib.sha256(data).hexdigest())
    assert not stream.torn


def test_several_streams_in_one_file_are_read_on(compression: Compression, write: Callable):
    data = COMPRESS[compression](b"one\n") + COMPRESS[compression](b"") + COMPRESS[compression](TEXT)
    assert b"".join(ByteStream(write("a", data), compression, Faults("stop")).pieces()) == b"one\n" + TEXT


def test_zeros_after_the_end_are_padding(write: Callable):
    assert b"".join(ByteStream(write("a", gzip.compress(b"one") + bytes(100)), "gzip", Faults("stop")).pieces()) == b"one"


def test_a_file_that_ends_early_is_an_error_with_the_place(compression: Compression, write: Callable):
    data = COMPRESS[compression](TEXT)[:-20]
    path = write("a", data)
    with pytest.raises(DataError, match=rf"a, after byte \d+ of the text: the {compression} data ends too early"):
        list(ByteStream(path, compression, Faults("stop", "a")).pieces())


def test_the_readable_beginning_is_used_when_skipping(compression: Compression, write: Callable):
    text = random.Random(0).randbytes(2_000_000)  # bzip2 gives nothing before a block of 900 kB is complete
    data = COMPRESS[compression](text)[:-20]
    faults = Faults("skip", "a")
    stream = ByteStream(write("a", data), compression, faults)
    found = b"".join(stream.pieces())
    assert found and text.startswith(found)
    assert stream.torn and faults.skipped == {"broken_file": 1}
    assert (stream.read_bytes, stream.sha256()) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("content", [b"this is plain text", b""])
def test_what_is_not_compressed_is_an_error(compression: Compression, write: Callable, content: bytes):
    with pytest.raises(DataError, match="0 bytes of text could be read"):
        list(ByteStream(write("a", content), compression, Faults("stop", "a")).pieces())


def test_garbage_after_the_end_is_an_error(compression: Compression, write: Callable):
    path = write("a", COMPRESS[compression](b"some text\n") + b"garbage")
    with pytest.raises(DataError, match=r"(is broken|ends too early)"):
        list(ByteStream(path, compression, Faults("stop")).pieces())
    assert b"".join(ByteStream(path, compression, Faults("skip")).pieces()) == b"some text\n"


def test_a_broken_byte_in_the_middle_keeps_what_came_before(read: Callable):
    data = bytearray(gzip.compress(TEXT))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(DataError, match="broken"):
        read("a.txt.gz", bytes(data))
    found = read("a.txt.gz", bytes(data), on_error="skip")
    assert found.skipped["broken_file"] == 1


def test_the_line_that_was_cut_off_is_not_a_document(read: Callable):
    data = gzip.compress(b"one\ntwo\nthree, which is lo", 0)[:-9]
    assert read("a.txt.gz", data, on_error="skip").documents == ["one", "two"]
    assert read("b.txt.gz", data, on_error="skip", documents="file").documents == []


def test_a_file_that_went_away(tmp_path: Path):
    with pytest.raises(StorageError, match="no such file"):
        list(ByteStream(tmp_path / "none", None, Faults("skip")).pieces())
