"""A file as decoded stretches of whole lines, each with the place where it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tpulm.corpus.bytestream import ByteStream
from tpulm.corpus.codec import UNDECODABLE, Codec, decode, transcode
from tpulm.corpus.faults import MAX_DOCUMENT_BYTES, Faults
from tpulm.corpus.records import BATCH_BYTES, NUL_MESSAGE

_UTF8: Final = Codec("utf-8", line_safe=True)


class Lines(NamedTuple):
    """Whole lines; "\\n" ends each, except perhaps the last line of the file. Nothing else ends a line."""

    text: str
    first: int  # number of the first line, from 1
    suspect: bool  # NUL or undecodable bytes are in it

    def joined(self) -> str:
        """The lines with "\\n" between them: "\\r\\n" is a line end too, and the last one is taken off."""
        text = self.text.replace("\r\n", "\n") if "\r" in self.text else self.text
        return text.removesuffix("\n")

    def split(self) -> list[str]:
        return self.joined().split("\n")


class _Bytes(NamedTuple):
    data: bytes
    offset: int  # in the uncompressed file
    line: int


def read_lines(stream: ByteStream, codec: Codec, faults: Faults) -> Iterator[Lines]:
    """The file in stretches of about `BATCH_BYTES`. A last line that was cut off by broken compression is left out."""
    pieces = stream.pieces()
    if not codec.line_safe:
        pieces, codec = transcode(pieces, codec, faults), _UTF8
    for part in _cut_at_line_ends(pieces, stream, faults):
        text = decode(part.data, codec, faults, offset=part.offset, line=part.line)
        nul = text.find("\0")
        if nul >= 0 and faults.stops:
            number = part.line + text.count("\n", 0, nul)
            faults.add("nul_character", NUL_MESSAGE, f"line {number}")
        if text:
            yield Lines(text, part.line, nul >= 0 or UNDECODABLE in text)


def _cut_at_line_ends(pieces: Iterator[bytes], stream: ByteStream, faults: Faults) -> Iterator[_Bytes]:
    tail: list[bytes] = []  # the beginning of a line
    tail_bytes = 0
    offset, line = 0, 1  # where the tail begins
    dropping = False  # inside a line that is too long
    for block in _gathered(pieces):
        start = block.find(b"\n") + 1 if dropping else 0
        cut = block.rfind(b"\n") + 1
        if dropping and cut:
            offset, line, dropping = offset + start, line + 1, False
        if dropping:
            offset += len(block)
            continue
        if cut > start:
            data = b"".join((*tail, block[start:cut]))
            yield _Bytes(data, offset, line)
            offset, line = offset + len(data), line + data.count(b"\n")
            tail, tail_bytes = [], 0
        rest = block[max(cut, start) :]
        tail.append(rest)
        tail_bytes += len(rest)
        if tail_bytes > MAX_DOCUMENT_BYTES:
            faults.add("too_large", _TOO_LARGE, f"line {line}, byte {offset}")
            offset, tail, tail_bytes, dropping = offset + tail_bytes, [], 0, True
    if tail_bytes and not stream.torn:
        yield _Bytes(b"".join(tail), offset, line)


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += len(piece)
        if held_bytes >= BATCH_BYTES:
            yield b"".join(held)
            held, held_bytes = [], 0
    if held:
        yield b"".join(held)


_TOO_LARGE = (
    f"a line longer than {MAX_DOCUMENT_BYTES >> 20} MiB: is this really one record a line? A document that long is of no use; "
    "put line ends between its paragraphs."
)
