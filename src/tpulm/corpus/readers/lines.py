"""A file as decoded chunks of whole lines, read once and hashed as it is read.

Memory is bounded, however far a file expands, by the size of a chunk and by the window of the compression.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import hashlib
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from encodings.aliases import aliases
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

import zstandard

from tpulm import storage
from tpulm.config import SourceConfig
from tpulm.corpus.documents import BATCH_BYTES, MAX_DOCUMENT_BYTES, NUL_MESSAGE, UNDECODABLE, Faults, Wording
from tpulm.errors import ConfigError, DataError, suggest
from tpulm.storage.paths import printable

Compression = Literal["gzip", "bzip2", "xz", "zstd"]
COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}

_RAW_BYTES: Final = 64 << 10  # read at a time
_PIECE_BYTES: Final = 1 << 20  # uncompressed, yielded at a time
_ZSTD_BYTES: Final = 1 << 10  # decoded at a time: python-zstandard cannot limit its output, and four bytes can become 128 KiB
_WINDOW_BYTES: Final = 128 << 20  # zstd --long=27 and xz -9 need no more
_MAKE: dict[Compression, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_WINDOW_BYTES),
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj(),
}
_BEGINNINGS: Final[dict[Compression, bytes]] = {
    "gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ", "zstd": b"\x28\xb5\x2f\xfd"
}  # fmt: skip
_MISNAMED: Final = "is none: if the file is decompressed already, take the compression's suffix off its name"
_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


class InputFile(NamedTuple):
    """One file to read, and how to read it."""

    path: str  # "" for the text that ships with Python; "hub:…" for a file on the Hub
    within: str  # its path within its source's folder or glob, the only location that is recorded
    source: int  # index in the configuration
    format: str  # a name in `readers.READERS`
    compression: Compression | None
    encoding: str  # Python's name for it
    bytes: int
    modified_ns: int
    # Known in advance, instead of a hash of what is read: the hash of Python's text, or the commit of a file on the Hub.
    sha256: str = ""
    # A large Wikipedia dump is read as several byte ranges, each an InputFile:
    offset: int = 0  # where the range begins
    length: int | None = None  # None: up to the end

    @property
    def name(self) -> str:
        where = f" (from byte {self.offset:,})" if self.offset else ""
        return f"{printable(self.path)}{where}" or "the text that ships with Python"


class ByteStream:
    """Reads one file, or `length` bytes of it from `offset`, once. `read_bytes` and `sha256()` cover the raw bytes read."""

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
        self.at_end = False  # the end of the file was reached
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
        """Hash all that is to be read, which somebody else decodes."""
        for _ in self._raw():
            pass

    def _raw(self) -> Iterator[bytes]:
        with storage.open_read(self.path) as stream:
            with storage.explain("read", self.path):
                stream.seek(self.offset)
            while True:
                remaining = _RAW_BYTES if self._length is None else min(_RAW_BYTES, self._length - self.read_bytes)
                with storage.explain("read", self.path):
                    data = stream.read(remaining)
                    self.at_end = not data and (remaining > 0 or not stream.read(1))
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
                    misnamed = self.read_bytes == len(piece) and not piece.startswith(_BEGINNINGS[compression])
                    self._break(_reason(error, misnamed=misnamed), written)
                    for _ in raw:  # the hash covers the whole file
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


class Input(NamedTuple):
    """A reader's input: a file, the settings of its source, and where to report faults and progress."""

    file: InputFile
    source: SourceConfig
    stream: ByteStream
    faults: Faults
    advance: Callable[[float], None]

    def lines(self) -> Iterator[Lines]:
        """The decoded text in chunks of whole lines."""
        return read_lines(self.stream, self.file.encoding, self.faults)


def suffixes(path: str) -> tuple[str, Compression | None]:
    """A file's suffix and compression, by name: "reviews.TSV.gz" -> (".tsv", "gzip")."""
    name = PurePath(path)
    compression = COMPRESSIONS.get(name.suffix.lower())
    return (name.with_suffix("") if compression else name).suffix.lower(), compression


def open_file(file: InputFile, faults: Faults, advance: Callable[[float], None] = lambda amount: None) -> ByteStream:
    return ByteStream(file.path, file.compression, faults, advance, offset=file.offset, length=file.length)


def _bounded(decoder: Any, compression: Compression, data: bytes | memoryview) -> Iterator[bytes]:
    """Decode all of `data`, yielding up to `_PIECE_BYTES` at a time."""
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
        data = decoder.unconsumed_tail if compression == "gzip" else b""  # the others buffer unread input


def _reason(error: Exception, *, misnamed: bool) -> str:
    if "memory" in str(error).lower():
        return f"needs a window of more than {_WINDOW_BYTES >> 20} MiB, which neither zstd --long=27 nor xz -9 makes"
    return _MISNAMED if misnamed else f"is broken ({error})"


_NOT_ENCODINGS = {"undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape"}
_WINDOWS: Final = {"windows-949": "cp949", "windows-31j": "cp932", "windows-936": "gb18030"}  # which Python lacks
_AMBIGUOUS: Final = {
    "ansi": "cp949 for Korean, cp932 for Japanese, gb18030 for Chinese, cp1252 for Western European",
    "unicode": "utf-16, or utf-8",
}
_SUPERSETS = {"euc_kr": "cp949", "shift_jis": "cp932", "gb2312": "gb18030", "gbk": "gb18030", "ascii": "utf-8"}
# With these alone charset-normalizer is right oftener than with all that it knows (docs/experiments.md).
_CANDIDATES: Final = (
    "cp949 cp932 euc_jp gb18030 big5hkscs cp1252 cp1251 koi8_r cp1250 iso8859_2 cp1253 cp1254 cp1255 cp1256 cp1257 cp874 "
    "utf_16_le utf_16_be mac_roman cp866"
)
_EXAMINED: Final = 1 << 16  # bytes, to guess an encoding
_CUT: Final = ("unexpected end of data", "incomplete multibyte sequence", "truncated data")  # Python's words
_SIGNATURES = {
    _BEGINNINGS["gzip"]: "It looks like gzip data: give the file a name that ends in .gz.",
    _BEGINNINGS["bzip2"]: "It looks like bzip2 data: give the file a name that ends in .bz2.",
    _BEGINNINGS["xz"]: "It looks like xz data: give the file a name that ends in .xz.",
    _BEGINNINGS["zstd"]: "It looks like Zstandard data: give the file a name that ends in .zst.",
    b"\x04\x22\x4d\x18": "It looks like LZ4 data: decompress it first.",
    b"%PDF": "It looks like a PDF: extract its text first (pdftotext does it).",
    b"PK\x03\x04": "It looks like a zip archive, or an .xlsx: unpack it, or save it as 'CSV UTF-8'.",
    b"\xd0\xcf\x11\xe0": "It looks like an .xls, .doc or .hwp: save it as 'CSV UTF-8', or as plain text.",
    b"PAR1": "It looks like a Parquet file: {format}.",
    b"\xff\xfe": "It starts with the mark of UTF-16: {encoding}.",
    b"\xfe\xff": "It starts with the mark of UTF-16: {encoding}.",
}


# As browsers read them (https://encoding.spec.whatwg.org): the bytes 80 to 9f are marks such as “ and €, not the control
# characters that ISO has there. The five that are neither (81, 8d, 8f, 90, 9d) stay errors: they are often of Shift JIS.
_READ_AS = {"utf-8-sig": "utf-8", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"}


def find_codec(encoding: str) -> str:
    """Python's canonical name of an encoding. Raises ConfigError, suggesting the nearest name, for an unknown one."""
    name = encoding.lower().replace("_", "-")
    if name in _AMBIGUOUS:
        raise ConfigError(f"encoding '{encoding}' is Windows' name of several encodings: write {_AMBIGUOUS[name]}")
    try:
        info = codecs.lookup(_WINDOWS.get(name, encoding))
    except (LookupError, ValueError) as error:
        names = {*aliases, *aliases.values()}
        near = suggest(encoding.lower(), sorted({name.replace("_", "-") for name in names} | names))
        raise ConfigError(
            f"encoding '{encoding}' is not known.{near} Common ones: utf-8, cp949 (Korean), cp932 (Japanese), "
            "gb18030 (Chinese), cp1252 (Western European)."
        ) from error
    if not getattr(info, "_is_text_encoding", True) or info.name.replace("_", "-") in _NOT_ENCODINGS:
        raise ConfigError(f"encoding '{encoding}' is not a character encoding; text usually has 'utf-8'")
    return _READ_AS.get(info.name, info.name)


_MARKS: Final = re.compile("^\ufeff+", re.MULTILINE)


class Lines(NamedTuple):
    """Whole lines, each ended by "\\n", except perhaps the last line of the file. Nothing else ends a line."""

    text: str
    first: int  # number of the first line, from 1
    suspect: bool  # it contains NUL or undecodable bytes
    unit: str = "line"  # or "item", for those of a JSON array, from 0

    def joined(self) -> str:
        """The lines with "\\n" between them; "\\r\\n" is a line end too, and the last line end is removed."""
        text = self.text.replace("\r\n", "\n") if "\r" in self.text else self.text
        return text.removesuffix("\n")

    def split(self) -> list[str]:
        return self.joined().split("\n")


def read_lines(stream: ByteStream, encoding: str, faults: Faults) -> Iterator[Lines]:
    """The file in chunks of about `BATCH_BYTES`. A last line truncated by broken compression is left out."""
    return lines_of(decoded(stream, encoding, faults), stream, faults)


def lines_of(texts: Iterator[str], stream: ByteStream, faults: Faults) -> Iterator[Lines]:
    """The lines of a stream whose text was decoded before."""
    tail: list[str] = []  # the beginning of a line
    tail_bytes = 0
    line = 1  # the tail's line number
    dropping = False  # inside a line that is too long
    for text in texts:
        start = 0
        if dropping:
            start = text.find("\n") + 1
            if not start:
                continue
            line, dropping = line + 1, False
        cut = text.rfind("\n") + 1
        if cut > start:
            whole = "".join((*tail, text[start:cut]))
            yield _checked(whole, line, faults)
            line += whole.count("\n")
            tail, tail_bytes = [], 0
        tail.append(text[cut:])
        tail_bytes += len(tail[-1].encode("utf-8", "surrogatepass"))
        if tail_bytes > MAX_DOCUMENT_BYTES:
            faults.add("too_large", _TOO_LARGE, f"line {line}")
            tail, tail_bytes, dropping = [], 0, True
    if tail_bytes and not stream.torn:
        yield _checked("".join(tail), line, faults)


def _checked(text: str, line: int, faults: Faults) -> Lines:
    if "\ufeff" in text:  # the mark of a file, which is at the start of any line where files were joined (Unicode 23.8)
        text = _MARKS.sub("", text)
    nul = text.find("\0")
    if nul >= 0 and faults.stops:
        number = line + text.count("\n", 0, nul)
        faults.add("nul_character", NUL_MESSAGE, f"line {number}")
    return Lines(text, line, nul >= 0 or UNDECODABLE in text)


def decoded(stream: ByteStream, encoding: str, faults: Faults) -> Iterator[str]:
    """The text, without a byte-order mark at its start, about `BATCH_BYTES` of the file at a time.

    In "stop" mode undecodable bytes raise DataError with their position; in "skip" mode each becomes `UNDECODABLE`.
    """
    make = codecs.getincrementaldecoder(encoding)
    decoder = make("strict" if faults.stops else "tpulm.mark")
    fed, line, begun = 0, 1, False
    for data, final in _gathered(stream.pieces()):
        before = decoder.getstate()
        try:
            text = decoder.decode(data, final)
        except UnicodeDecodeError as error:
            held = len(error.object) - len(data)  # bytes of a character that began in the previous data
            again = make("ignore")
            again.setstate(before)
            with contextlib.suppress(UnicodeError):  # UTF-16 without a byte-order mark, whose lines cannot be counted
                line += again.decode(data[: max(0, error.start - held)]).count("\n")
            offset = fed - held + error.start
            faults.add("undecodable", _undecodable(error, encoding, faults.wording, offset), f"line {line}, byte {offset}")
            raise
        except UnicodeError as error:
            raise DataError(
                f"{error}; name the byte order ({faults.wording.encoding.format(f'{encoding}-le')} or {encoding}-be).",
                location=faults.name,
            ) from error
        fed += len(data)
        line += text.count("\n")
        if text:
            yield text if begun else text.removeprefix("\ufeff")
            begun = True


def _gathered(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The bytes, about `BATCH_BYTES` at a time, and whether they are the last."""
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += len(piece)
        if held_bytes >= BATCH_BYTES:
            yield b"".join(held), False
            held, held_bytes = [], 0
    yield b"".join(held), True


_TOO_LARGE = (
    f"a line longer than {MAX_DOCUMENT_BYTES >> 20} MiB: is this really one record a line? A document that long is of no use; "
    "put line ends between its paragraphs."
)


def _undecodable(error: UnicodeDecodeError, encoding: str, wording: Wording, offset: int) -> str:
    """A message on undecodable bytes at `offset` in the file and what to do about them."""
    data = error.object
    message = f"the bytes '{data[error.start : min(error.end, error.start + 16)].hex(' ')}' are not {encoding}."
    begins = offset == error.start and not encoding.startswith(("utf-16", "utf-32"))  # `data` is the beginning of the file
    for signature, advice in _SIGNATURES.items():
        if begins and data.startswith(signature):
            return f"{message} " + advice.format(
                format=wording.format.format("parquet"), encoding=wording.encoding.format("utf-16")
            )
    is_cut = error.reason in _CUT and (encoding.startswith("utf-16") or not data[: error.start].isascii())
    if is_cut:  # and what came before was this encoding's
        return (
            f"the file ends within a character: of its last one only '{data[error.start :].hex(' ')}' is there. It was "
            "truncated; copy or download it again."
        )
    wider = _SUPERSETS.get(encoding)
    if wider is not None and _decodes(data, wider):
        return f"{message} They are {wider}, which contains {encoding}: {wording.encoding.format(wider)}."
    if fitting := [name for name in _guesses(data, error.start) if name != encoding]:
        return f"{message} The text around them would decode as {' or '.join(fitting[:3])}: {wording.some_encoding}."
    return message


def _guesses(data: bytes, place: int) -> list[str]:
    """Encodings that the text around a byte may have, the likeliest first."""
    from charset_normalizer import from_bytes

    begin = data.rfind(b"\n", 0, place) + 1 if place > _EXAMINED // 2 else 0
    end = data.find(b"\n", begin + _EXAMINED) + 1
    matches = list(from_bytes(data[begin : end or None], cp_isolation=list[str](_CANDIDATES.split())))
    encodings = [match.encoding for match in matches]
    is_latin = not any(one > "\u024f" and one.isalpha() for match in matches[:1] for one in str(match))
    # It knows Western European worst, above all English with a few “ and –.
    western = ["cp1252"] if b"\0" not in data and _decodes(data, "cp1252") else []
    return list(dict.fromkeys([*western, *encodings] if is_latin else [*encodings, *western]))


def _decodes(data: bytes, name: str) -> bool:
    try:
        codecs.getincrementaldecoder(name)().decode(data)  # which may end within a character
    except UnicodeDecodeError:
        return False
    return True


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODABLE * (error.end - error.start), error.end


codecs.register_error("tpulm.mark", _mark)
