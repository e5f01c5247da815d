"""MediaWiki dumps (pages-articles.xml.bz2): a document is the running text of an article.

Left out and counted: redirects, pages in other namespaces (talk, files, templates), pages that are not wikitext (modules).
"""

from __future__ import annotations

import bz2
import itertools
import re
from collections.abc import Iterator
from typing import BinaryIO, Final, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tpulm import storage
from tpulm.corpus.documents import Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import ByteStream, Input
from tpulm.corpus.readers.wikitext import NAMES, TEMPLATES, normalized, plain_text
from tpulm.errors import DataError

_ARTICLES: Final = "0"  # the main namespace, in every wiki
_HIDDEN: Final = ("6", "14")  # files, categories: links to them show no text
_LONGEST_ARTICLE: Final = 2 << 20  # characters; MediaWiki itself allows as many bytes
_LONGEST_PAGE: Final = 4 << 20  # bytes of XML, mostly an article
_ELEMENT_BYTES: Final = 256  # of memory that an element takes besides its text
_FED_BYTES: Final = 64 << 10  # parsed at a time


def read_wikipedia(opened: Input) -> Iterator[DocumentBatch]:
    """Read a dump. Raises DataError if the XML is not a MediaWiki dump, whatever `on_error` is."""
    stream, faults = opened.stream, opened.faults
    batcher = Batcher(faults, place=lambda number: f"page {number}")
    hidden = _hidden_of_site(stream, faults)
    templates = TEMPLATES | {normalized(name): form for name, form in opened.source.templates.items()}
    number = 0
    for element in _elements(stream, faults):
        if element.tag == "siteinfo":
            continue
        number += 1
        text = _wikitext(element, number, faults)
        if text is None:
            continue
        batcher.add(plain_text(text, hidden, templates, faults.removed_templates), number)
        yield from batcher.full()
    yield from batcher.flush()


def _hidden_of_site(stream: ByteStream, faults: Faults) -> set[str]:
    """Names of hidden namespaces, from the head of the file, which a byte range from its middle lacks."""
    head = ByteStream(stream.path, stream.compression, faults)
    names = {
        (namespace.text or "").lower()
        for site in itertools.islice(_elements(head, faults), 1)
        for namespace in site.iter("namespace")
        if namespace.get("key") in _HIDDEN
    }
    return (names | NAMES["namespaces"]) - {""}


def _wikitext(page: Element, number: int, faults: Faults) -> str | None:
    """The text of an article's newest revision; None for a page that is left out and counted."""
    title = page.findtext("title", "")
    if page.findtext("ns", _ARTICLES).strip() != _ARTICLES:
        faults.leave_out("other_namespace", title)
        return None
    if page.find("redirect") is not None:
        faults.leave_out("redirect", title)
        return None
    revisions = page.findall("revision")
    if not revisions or revisions[-1].findtext("model", "wikitext") != "wikitext":
        faults.leave_out("no_wikitext", title)
        return None
    text = revisions[-1].findtext("text") or ""
    if len(text) > _LONGEST_ARTICLE:
        faults.add("too_large", f"'{title}' is longer than {_LONGEST_ARTICLE:,} characters.", f"page {number}")
        return None
    return text


def _elements(stream: ByteStream, faults: Faults) -> Iterator[Element]:
    """`siteinfo` and each `page`, named without the XML namespace; each is cleared when the next one is requested."""
    parser = XMLPullParser(["start", "end"])
    root: Element | None = None
    pieces, pages = stream.pieces(), 0
    held = 0  # bytes since the last page
    if stream.offset:
        parser.feed("<mediawiki>")
    try:
        for data in _slices(pieces):
            parser.feed(data)
            held += len(data)
            for event, element in cast("Iterator[tuple[str, Element]]", parser.read_events()):
                element.tag = element.tag.rpartition("}")[2]
                held += _ELEMENT_BYTES * (event == "start")
                if root is None:
                    root = element
                    if root.tag != "mediawiki":
                        raise _no_dump(faults, f"its outermost element is <{root.tag}>")
                elif event == "end" and element.tag in ("siteinfo", "page"):
                    pages += element.tag == "page"
                    yield element
                    root.clear()
                    held = 0
            if held > _LONGEST_PAGE:
                raise ParseError(f"no page ends within {_LONGEST_PAGE >> 20} MiB")
        if stream.at_end and not stream.torn:
            parser.close()
    except ParseError as error:
        if root is None:
            raise _no_dump(faults, str(error)) from error
        message = f"the XML is broken or no dump of articles ({error}). Download the file again."
        faults.add("broken_file", message, f"after page {pages}")
        for _ in pieces:  # the hash covers the whole file
            pass


def _slices(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (piece[start : start + _FED_BYTES] for start in range(0, len(piece), _FED_BYTES))


def _no_dump(faults: Faults, why: str) -> DataError:
    return DataError(
        f"not a dump of a wiki, which is XML that begins with <mediawiki> ({why}); take the file that is called "
        "…-pages-articles.xml.bz2, or set another format",
        location=faults.name,
    )


_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")  # a stream's header and that of its first block
_WINDOW_BYTES: Final = 256 << 10
_REACH_BYTES: Final = 8 << 20  # streams have a megabyte or less
_BLOCK_BYTES: Final = 1 << 20  # compressed: enough for a block, which has 900 KB of text


def stream_offsets(path: str, size: int, every: int) -> list[int]:
    """The offsets of bzip2 streams that begin with a page, about `every` bytes apart; [] if the file is one stream.

    A large dump is a sequence of bzip2 streams of 100 pages each.
    """
    offsets: list[int] = []
    if size < 2 * every:
        return offsets
    with storage.open_read(path) as file, storage.explain("read", path):
        for target in range(every, size - every // 2, every):
            place = _next_stream(file, target)
            if place is None:
                break
            if place < size and place not in offsets:
                offsets.append(place)
    return offsets


def _next_stream(file: BinaryIO, position: int) -> int | None:
    """The offset of the first stream at or after `position` that begins with a page; None if it is far away."""
    start, window = position, b""
    while start + len(window) < position + _REACH_BYTES:
        file.seek(start + len(window))
        more = file.read(_WINDOW_BYTES)
        if not more:
            return None
        window += more
        for match in _STREAM.finditer(window):
            if _begins_with_page(file, start + match.start()):
                return start + match.start()
        start, window = start + max(0, len(window) - 9), window[-9:]  # a header may span two windows
    return None


def _begins_with_page(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    try:
        return bz2.BZ2Decompressor().decompress(file.read(_BLOCK_BYTES), 64).lstrip().startswith(b"<page>")
    except OSError:
        return False
