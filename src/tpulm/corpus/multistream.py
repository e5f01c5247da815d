"""Where a large dump of Wikipedia can be cut: its bzip2 data are many streams of 100 pages each, one after another."""

from __future__ import annotations

import bz2
import re
from typing import BinaryIO, Final

from tpulm import storage

_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")  # a header and that of its first block
_WINDOW_BYTES: Final = 256 << 10
_REACH_BYTES: Final = 8 << 20  # streams have a megabyte or less
_BLOCK_BYTES: Final = 1 << 20  # compressed: 900 KB of text, and so a whole one


def cuts(path: str, size: int, every: int) -> list[int]:
    """Offsets at which a stream begins with a page, about `every` bytes apart; none of a file that is one stream."""
    found: list[int] = []
    if size < 2 * every:
        return found
    with storage.open_read(path) as file, storage.explain("read", path):
        for target in range(every, size - every // 2, every):
            place = _next_stream(file, target)
            if place is None:
                break
            if place < size and place not in found:
                found.append(place)
    return found


def _next_stream(file: BinaryIO, position: int) -> int | None:
    """The first one at or after `position` that begins with a page."""
    start, window = position, b""
    while start + len(window) < position + _REACH_BYTES:
        file.seek(start + len(window))
        more = file.read(_WINDOW_BYTES)
        if not more:
            return None
        window += more
        for found in _STREAM.finditer(window):
            if _begins_with_page(file, start + found.start()):
                return start + found.start()
        start, window = start + max(0, len(window) - 9), window[-9:]  # a header may lie across two windows
    return None


def _begins_with_page(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    try:
        return bz2.BZ2Decompressor().decompress(file.read(_BLOCK_BYTES), 64).lstrip().startswith(b"<page>")
    except OSError:
        return False
