"""A file as pieces of uncompressed bytes, hashed as it is read.

Memory is bounded whatever a file expands to: by the size of a piece, and by the window that its compression may ask for.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import zstandard

from tpulm import storage
from tpulm.corpus.faults import Faults

Compression = Literal["gzip", "bzip2", "xz", "zstd"]

_RAW_BYTES: Final = 64 << 10  # read at once
_PIECE_BYTES: Final = 1 << 20  # uncompressed, handed on at once
_ZSTD_BYTES: Final = 1 << 10  # decoded at once: python-zstandard has no limit on the output, and four bytes can be 128 KiB
_WINDOW_BYTES: Final = 128 << 20  # zstd --long=27 and xz -9 need no more
_MAKE: dict[Compression, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_WINDOW_BYTES),
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj(),
}
_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


class ByteStream:
    """Reads one file once, or the `length` bytes of it from `offset`. `read_bytes` and `sha256()` are of what was read, raw."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        compression: Compression | None,
        faults: Faults,
        advance: Callable[[float], None] = lambda amount: None,
        *,
        offset: int = 0,
        length: int | None = None,
    ):
        self.path = os.fspath(path)
        self.compression: Compression | None = compression
        self.offset = offset
        self.read_bytes = 0
        self.at_end = False  # of the file: all was read, and nothing follows
        self.torn = False  # the compressed data ended early: the last record is incomplete
        self._length = length
        self._faults = faults
        self._advance = advance
        self._hash = hashlib.sha256()

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Uncompressed bytes, up to a megabyte at a time. Broken data raise DataError; in "skip" mode the stream ends there."""
        return self._raw() if self.compression is None else self._decompressed(self.compression)

    def exhaust(self) -> None:
        """Hash the whole file, for readers that open it themselves."""
        for _ in self._raw():
            pass

    def _raw(self) -> Iterator[bytes]:
        with storage.open_read(self.path) as stream:
            with storage.explain("read", self.path):
                stream.seek(self.offset)
            while True:
                left = _RAW_BYTES if self._length is None else min(_RAW_BYTES, self._length - self.read_bytes)
                with storage.explain("read", self.path):
                    data = stream.read(left)
                    self.at_end = not data and (left > 0 or not stream.read(1))
                if not data:
                    return
                self.read_bytes += len(data)
                self._hash.update(data)
                self._advance(len(data))
                yield data

    def _decompressed(self, compression: Compression) -> Iterator[bytes]:
        raw = self._raw()
        decoder: Any = None
        streams = written = 0
        for piece in raw:
            data = memoryview(piece)
            while data:
                if decoder is None:
                    if streams:  # files may be padded with zeros to a block size
                        data = memoryview(bytes(data).lstrip(b"\0"))
                    if not data:
                        break
                    decoder, streams = _MAKE[compression](), streams + 1
                at_once = _ZSTD_BYTES if compression == "zstd" else len(data)
                try:
                    for text in _bounded(decoder, compression, data[:at_once]):
                        written += len(text)
                        yield text
                except _ERRORS as error:
                    self._break(_reason(error), written)
                    for _ in raw:  # the hash is of the whole file
                        pass
                    return
                data = data[at_once:]
                if decoder.eof:
                    data, decoder = memoryview(decoder.unused_data + data), None
        if decoder is not None or not streams:
            self._break("ends too early", written)

    def _break(self, what: str, written: int) -> None:
        self._faults.add(
            "broken_file",
            f"the {self.compression} data {what}; {written} bytes of text could be read. Copy or compress the file again.",
            f"after byte {written} of the text",
        )
        self.torn = True


def _bounded(decoder: Any, compression: Compression, data: bytes | memoryview) -> Iterator[bytes]:
    """What the decoder makes of all of `data`, a piece at a time."""
    if compression == "zstd":
        text = decoder.decompress(data)
        yield from (text[start : start + _PIECE_BYTES] for start in range(0, len(text), _PIECE_BYTES))
        return
    while True:
        text = decoder.decompress(data, _PIECE_BYTES)
        if text:
            yield text
        if decoder.eof or len(text) < _PIECE_BYTES:
            return
        data = decoder.unconsumed_tail if compression == "gzip" else b""  # the others keep what they have not read


def _reason(error: Exception) -> str:
    if "memory" in str(error).lower():
        return f"needs a window of more than {_WINDOW_BYTES >> 20} MiB, which neither zstd --long=27 nor xz -9 makes"
    return f"is broken ({error})"
