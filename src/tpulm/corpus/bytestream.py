"""A file as pieces of uncompressed bytes, hashed as it is read."""

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

_RAW_BYTES: Final = 64 << 10  # read at once; compressed text expands some 3 to 20 times, and at most about 1,000 times
_MAKE: dict[Compression, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
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
        """Uncompressed bytes in pieces of any size. Broken data raise DataError; in "skip" mode the stream ends there."""
        return self._raw() if self.compression is None else self._decompressed(_MAKE[self.compression])

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

    def _decompressed(self, make: Callable[[], Any]) -> Iterator[bytes]:
        raw = self._raw()
        decoder: Any = None
        streams = written = 0
        for data in raw:
            while data:
                if decoder is None:
                    data = data.lstrip(b"\0") if streams else data  # files may be padded with zeros to a block size
                    if not data:
                        break
                    decoder, streams = make(), streams + 1
                try:
                    text = decoder.decompress(data)
                except _ERRORS as error:
                    self._break(f"is broken ({error})", written)
                    for _ in raw:  # the hash is of the whole file
                        pass
                    return
                if text:
                    written += len(text)
                    yield text
                data = decoder.unused_data if decoder.eof else b""
                if decoder.eof:
                    decoder = None
        if decoder is not None or not streams:
            self._break("ends too early", written)

    def _break(self, what: str, written: int) -> None:
        self._faults.add(
            "broken_file",
            f"the {self.compression} data {what}; {written} bytes of text could be read. Copy or compress the file again.",
            f"after byte {written} of the text",
        )
        self.torn = True
