"""Dumps of a wiki as MediaWiki exports them (pages-articles.xml.bz2): a document is the running text of an article.

Left out and counted: redirects, pages of other namespaces (talk, files, templates), and pages that are no wikitext (modules).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tpulm.corpus.bytestream import ByteStream
from tpulm.corpus.faults import Faults
from tpulm.corpus.records import Batch, Batcher
from tpulm.corpus.wikitext import plain_text
from tpulm.errors import DataError, MissingExtra, installing

_ARTICLES: Final = "0"  # the main namespace, in every wiki
_HIDDEN: Final = ("6", "14", "-2")  # files, categories, media: links to them show no text
_LONGEST_ARTICLE: Final = 2 << 20  # characters; MediaWiki itself allows as many bytes
_LONGEST_PAGE: Final = 4 << 20  # bytes of XML, of which an article is most
_ELEMENT_BYTES: Final = 256  # as which an element counts: of the memory that it takes beside its text
_FED_BYTES: Final = 64 << 10  # parsed at once
_ENGLISH: Final = frozenset(["file", "image", "category", "media"])  # understood in every language's wiki


def read_wikipedia(stream: ByteStream, faults: Faults) -> Iterator[Batch]:
    """Raises DataError for XML that is no dump of a wiki, whatever `on_error` says."""
    try:
        import mwparserfromhell  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"dumps of Wikipedia need a package more: {installing('wikipedia')}") from error
    batcher = Batcher(faults, place=lambda number: f"page {number}")
    hidden = _hidden_of_site(stream, faults)
    number = 0
    for element in _elements(stream, faults):
        if element.tag == "siteinfo":
            continue
        number += 1
        text = _wikitext(element, number, faults)
        if text is None:
            continue
        batcher.add(plain_text(text, hidden), number)
        yield from batcher.full()
    yield from batcher.flush()


def _hidden_of_site(stream: ByteStream, faults: Faults) -> set[str]:
    """As the head of the file says, which a stretch from the middle of it does not have."""
    head = ByteStream(stream.path, stream.compression, faults)
    names = {
        (namespace.text or "").lower()
        for site in itertools.islice(_elements(head, faults), 1)
        for namespace in site.iter("namespace")
        if namespace.get("key") in _HIDDEN
    }
    return (names | _ENGLISH) - {""}


def _wikitext(page: Element, number: int, faults: Faults) -> str | None:
    """Of an article's newest revision; None for what is counted as left out."""
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
    """`siteinfo` and each `page`, their names without the namespace of the XML; what was handed on is forgotten."""
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
                    root = _checked(element, faults)
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
        faults.add(
            "broken_file",
            f"the XML is broken or no dump of articles ({error}). Download the file again.",
            f"after page {pages}",
        )
        for _ in pieces:  # the hash is of the whole file
            pass


def _slices(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (piece[start : start + _FED_BYTES] for start in range(0, len(piece), _FED_BYTES))


def _checked(root: Element, faults: Faults) -> Element:
    if root.tag != "mediawiki":
        raise _no_dump(faults, f"its outermost element is <{root.tag}>")
    return root


def _no_dump(faults: Faults, why: str) -> DataError:
    return DataError(
        f"not a dump of a wiki, which is XML that begins with <mediawiki> ({why}); take the file that is called "
        "…-pages-articles.xml.bz2, or set another format",
        location=faults.name,
    )
