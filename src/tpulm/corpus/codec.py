"""Text encodings: which are known, which keep "\\n" a byte of its own, and what to suggest when bytes do not decode."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from encodings.aliases import aliases
from typing import Final, NamedTuple

from tpulm.corpus.faults import Faults, Wording
from tpulm.errors import ConfigError, DataError, suggest

UNDECODABLE: Final = "\udc80"  # stands for a byte that did not decode; no codec yields it by itself

# Double-byte codecs whose second byte is never 0x0A, so that bytes may be cut at line ends before decoding.
_LINE_SAFE_MULTIBYTE = {
    "utf-8", "big5", "big5hkscs", "cp932", "cp949", "cp950", "euc_jis_2004", "euc_jisx0213", "euc_jp", "euc_kr", "gb18030",
    "gb2312", "gbk", "johab", "shift_jis", "shift_jis_2004", "shift_jisx0213",
}  # fmt: skip
_NOT_ENCODINGS = {
    "undefined",
    "idna",
    "punycode",
    "unicode-escape",
    "raw-unicode-escape",
    "unicode_escape",
    "raw_unicode_escape",
}
_SUPERSETS = {"euc_kr": "cp949", "shift_jis": "cp932", "gb2312": "gb18030", "gbk": "gb18030", "ascii": "utf-8"}
_CANDIDATES = ("utf-8", "cp949", "cp932", "euc_jp", "gb18030", "big5hkscs")
_SIGNATURES = {
    b"\x1f\x8b": "It looks like gzip data: give the file a name that ends in .gz.",
    b"BZh": "It looks like bzip2 data: give the file a name that ends in .bz2.",
    b"\xfd7zXZ": "It looks like xz data: give the file a name that ends in .xz.",
    b"\x28\xb5\x2f\xfd": "It looks like Zstandard data: give the file a name that ends in .zst.",
    b"PK\x03\x04": "It looks like a zip archive: unpack it first.",
    b"PAR1": "It looks like a Parquet file: {format}.",
    b"\xff\xfe": "It starts with the mark of UTF-16: {encoding}.",
    b"\xfe\xff": "It starts with the mark of UTF-16: {encoding}.",
}


class Codec(NamedTuple):
    name: str  # Python's canonical name
    line_safe: bool  # the byte 0x0A is always a line end, and nothing else is


def find_codec(encoding: str) -> Codec:
    """The codec of a setting. Raises ConfigError, with the nearest name, for one that Python does not have."""
    try:
        info = codecs.lookup(encoding)
    except (LookupError, ValueError) as error:
        names = {*aliases, *aliases.values()}
        near = suggest(encoding.lower(), sorted({name.replace("_", "-") for name in names} | names))
        raise ConfigError(
            f"corpus.sources: encoding '{encoding}' is not known.{near} Common ones: utf-8, cp949 (Korean), cp932 (Japanese), "
            "gb18030 (Chinese), latin-1."
        ) from error
    if not getattr(info, "_is_text_encoding", True) or info.name in _NOT_ENCODINGS:
        raise ConfigError(f"corpus.sources: encoding '{encoding}' is not a character encoding; text usually has 'utf-8'")
    name = "utf-8" if info.name == "utf-8-sig" else info.name
    return Codec(name, name in _LINE_SAFE_MULTIBYTE or _is_single_byte(name))


def _is_single_byte(name: str) -> bool:
    if name.startswith("iso2022"):  # bytes as in ASCII, until an escape sequence
        return False
    try:
        ascii_kept = bytes(range(128)).decode(name) == bytes(range(128)).decode("ascii")
        return ascii_kept and all(len(bytes([byte]).decode(name, "replace")) == 1 for byte in range(256))
    except UnicodeError:
        return False


def decode(data: bytes, codec: Codec, faults: Faults, *, offset: int, line: int) -> str:
    """Text of bytes that are whole lines. `offset` and `line` say where in the (uncompressed) file they begin.

    In "stop" mode undecodable bytes raise DataError with their place; in "skip" mode each becomes `UNDECODABLE`.
    """
    try:
        text = data.decode(codec.name)
    except UnicodeDecodeError as error:
        if faults.stops:
            number = line + data.count(b"\n", 0, error.start)
            message = _undecodable(error, codec, faults.wording, at_start=offset == 0)
            faults.add("undecodable", message, f"line {number}, byte {offset + error.start}")
        text = data.decode(codec.name, "tpulm.mark")
    return text.removeprefix("\ufeff") if offset == 0 else text


def transcode(pieces: Iterator[bytes], codec: Codec, faults: Faults) -> Iterator[bytes]:
    """UTF-8 of bytes in an encoding that cannot be cut at line ends (UTF-16, ISO-2022-JP, …).

    Bytes that do not decode come out, in "skip" mode, as bytes that are not UTF-8 either.
    """
    decoder = codecs.getincrementaldecoder(codec.name)("strict" if faults.stops else "tpulm.mark")
    fed = 0
    for data, final in _with_last(pieces):
        fed += len(data)
        try:
            text = decoder.decode(data, final)
        except UnicodeDecodeError as error:
            offset = fed - len(error.object) + error.start
            message = _undecodable(error, codec, faults.wording, at_start=offset == 0)
            faults.add("undecodable", message, f"byte {offset}")
            raise
        except UnicodeError as error:
            raise DataError(
                f"{error}; name the byte order (encoding = '{codec.name}-le' or '{codec.name}-be'), or check the encoding.",
                location=faults.name,
            ) from error
        if text:
            yield text.encode("utf-8", "surrogatepass")


def _with_last(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    for piece in pieces:
        yield piece, False
    yield b"", True


def _undecodable(error: UnicodeDecodeError, codec: Codec, wording: Wording, *, at_start: bool) -> str:
    data = error.object
    shown = data[error.start : error.end].hex(" ")
    return f"the bytes '{shown}' are not {codec.name}.{_advice(data, codec, wording, at_start=at_start)}"


def _advice(data: bytes, codec: Codec, wording: Wording, *, at_start: bool) -> str:
    if at_start:
        for signature, advice in _SIGNATURES.items():
            if data.startswith(signature):
                return " " + advice.format(format=wording.format.format("parquet"), encoding=wording.encoding.format("utf-16"))
    wider = _SUPERSETS.get(codec.name)
    candidates = (wider, *_CANDIDATES) if wider else _CANDIDATES
    fitting = [name for name in dict.fromkeys(candidates) if name != codec.name and _decodes(data, name)]
    if wider in fitting:
        return f" They are {wider}, which contains {codec.name}: {wording.encoding.format(wider)}."
    if fitting:
        return f" The text around them would decode as {' or '.join(fitting[:3])}: {wording.some_encoding}."
    return ""


def _decodes(data: bytes, name: str) -> bool:
    try:
        data.decode(name)
    except UnicodeDecodeError:
        return False
    return True


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNDECODABLE * (error.end - error.start), error.end


codecs.register_error("tpulm.mark", _mark)
