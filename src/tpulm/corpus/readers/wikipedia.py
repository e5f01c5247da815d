"""MediaWiki dumps (pages-articles.xml.bz2): a document is the running text of an article.

Left out and counted: redirects, pages in other namespaces (talk, files, templates), pages that are not wikitext (modules).
"""

from __future__ import annotations

import bz2
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from typing import BinaryIO, Final, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from tpulm import storage
from tpulm.corpus.documents import Batcher, DocumentBatch, Faults
from tpulm.corpus.readers.lines import ByteStream, Input
from tpulm.errors import DataError, MissingExtra, installing

_ARTICLES: Final = "0"  # the main namespace, in every wiki
_HIDDEN: Final = ("6", "14", "-2")  # files, categories, media: links to them show no text
_LONGEST_ARTICLE: Final = 2 << 20  # characters; MediaWiki itself allows as many bytes
_LONGEST_PAGE: Final = 4 << 20  # bytes of XML, mostly an article
_ELEMENT_BYTES: Final = 256  # of memory that an element takes besides its text
_FED_BYTES: Final = 64 << 10  # parsed at once
_ENGLISH: Final = frozenset(["file", "image", "category", "media"])  # valid in wikis of all languages


def read_wikipedia(given: Input) -> Iterator[DocumentBatch]:
    """Read a dump. Raises DataError if the XML is not a MediaWiki dump, whatever `on_error` is."""
    try:
        import mwparserfromhell  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"dumps of Wikipedia need a package more: {installing('wikipedia')}") from error
    stream, faults = given.stream, given.faults
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
    """Names of hidden namespaces, from the head of the file, which a byte range from its middle lacks."""
    head = ByteStream(stream.path, stream.compression, faults)
    names = {
        (namespace.text or "").lower()
        for site in itertools.islice(_elements(head, faults), 1)
        for namespace in site.iter("namespace")
        if namespace.get("key") in _HIDDEN
    }
    return (names | _ENGLISH) - {""}


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
        for _ in pieces:  # the hash covers the whole file
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


_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")  # a stream's header and that of its first block
_WINDOW_BYTES: Final = 256 << 10
_REACH_BYTES: Final = 8 << 20  # streams have a megabyte or less
_BLOCK_BYTES: Final = 1 << 20  # compressed: enough for a block, which has 900 KB of text


def stream_offsets(path: str, size: int, every: int) -> list[int]:
    """The offsets of bzip2 streams that begin with a page, about `every` bytes apart; [] if the file is one stream.

    A large dump is a sequence of bzip2 streams of 100 pages each.
    """
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
    """The offset of the first stream at or after `position` that begins with a page; None if it is far away."""
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
        start, window = start + max(0, len(window) - 9), window[-9:]  # a header may span two windows
    return None


def _begins_with_page(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    try:
        return bz2.BZ2Decompressor().decompress(file.read(_BLOCK_BYTES), 64).lstrip().startswith(b"<page>")
    except OSError:
        return False


_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements whose content is not running text; one without a closing tag ends with its line.
_ELEMENTS: Final = (
    "ref|gallery|math|chem|ce|timeline|imagemap|syntaxhighlight|source|pre|score|hiero|templatedata|graph|mapframe|maplink|"
    "inputbox|categorytree|table|ol|ul|dl|indicator|h[1-6]"
)
_TAG: Final = re.compile(rf"<(/?)({_ELEMENTS})\b[^<>]*?(/?)>", re.IGNORECASE)
_LONGEST_ELEMENT: Final = 200_000  # characters in which a closing tag is looked for
_AT_ONCE: Final = 1 << 16  # characters, of mwparserfromhell's input (it takes a few hundred bytes for each) and of a paragraph
_HEADING: Final = re.compile(r"={1,6}[^=].*=\s*")
_TEMPLATE: Final = re.compile(r"\{\{|\}\}")
_LINK: Final = re.compile(r"\[\[|\]\]")
_SWITCH: Final = re.compile(r"__[A-ZÀ-Þ_]+__")
_LANGUAGE: Final = re.compile(r"\[\[:?[a-z][a-z-]{1,11}:[^\[\]|]*\]\]")
_REMAINS: Final = re.compile(r"'{2,}|\[\[|\]\]|\{\{+|\}\}+|\{\||\|\}|</?[a-zA-Z][^<>\n]{0,200}>|\[(?=https?://)")
_EMPTY_BRACKETS: Final = re.compile(r"[ \u00a0]?[(（][\s,;:、，–—-]*[)）]")
_AFTER_BRACKET: Final = re.compile(r"([(（])[\s,;:]+")
_BEFORE_BRACKET: Final = re.compile(r"[\s,;:]+([)）])")
_SPACE_BEFORE: Final = re.compile(r" +(?=[,.;:!?](?:\s|$))")
_LISTED: Final = ("*", "#", ":", ";", "|", "!")  # begin a line of a list, or a table's remnant
_TEXT_OF: Final = re.compile(r"(?:lang(?:-[a-z-]+)?|nowrap|nobr|small|big|nihongo|transl|script|ipa)\Z", re.IGNORECASE)


def plain_text(markup: str, hidden: Collection[str]) -> str:
    """The paragraphs of an article, one per line, without lists, tables and headings.

    This is what BERT's authors kept of Wikipedia ("only the text passages", Devlin et al. 2018, 3.1). Markup between paragraphs
    is removed here; markup within them (links, emphasis, entities) is parsed by mwparserfromhell, which took seven times as
    long for whole articles. `hidden`: lower-case namespaces whose links show no text.
    """
    import mwparserfromhell  # optional

    text = _COMMENT.sub("", markup)
    text = _without_elements(text)
    text = _without_templates(text)
    text = _without_tables(text)
    text = _without_links(text, hidden)
    text = "\n".join(line for line in text.split("\n") if _is_running_text(line))
    if not text:
        return ""
    text = "\n".join(
        mwparserfromhell.parse(some, skip_style_tags=True).strip_code(normalize=True, collapse=False) for some in _cut(text)
    )
    text = _SWITCH.sub("", _REMAINS.sub("", text)).replace("\u00a0", " ")
    text = _BEFORE_BRACKET.sub(r"\1", _AFTER_BRACKET.sub(r"\1", _EMPTY_BRACKETS.sub("", text)))  # where templates were
    lines = (line.lstrip(" ,;:").rstrip() for line in _SPACE_BEFORE.sub("", text).split("\n"))
    return "\n".join(line for line in lines if any(map(str.isalnum, line)))


def _is_running_text(line: str) -> bool:
    line = line.strip()
    return bool(line) and len(line) < _AT_ONCE and not line.startswith(_LISTED) and not _HEADING.fullmatch(line)


def _cut(text: str) -> Iterator[str]:
    """The text in pieces of whole lines, up to `_AT_ONCE` characters."""
    while len(text) > _AT_ONCE:
        end = text.rindex("\n", 0, _AT_ONCE)
        yield text[:end]
        text = text[end + 1 :]
    yield text


def _without_elements(text: str) -> str:
    """Remove elements and what is in them. One without a closing tag is removed up to the end of its line."""
    kept: list[str] = []
    position = 0
    while (tag := _TAG.search(text, position)) is not None:
        kept.append(text[position : tag.start()])
        closing, name, alone = tag.groups()
        position = tag.end() if closing or alone else _end_of(name, text, tag.end())
    return "".join([*kept, text[position:]])


def _end_of(name: str, text: str, position: int) -> int:
    """The end of the element whose opening tag ends at `position`."""
    depth = 1
    for tag in _tags_named(name.lower()).finditer(text, position, position + _LONGEST_ELEMENT):
        closing, alone = tag.groups()
        depth += 0 if alone else -1 if closing else 1
        if depth == 0:
            return tag.end()
    line_end = text.find("\n", position)
    return len(text) if line_end < 0 else line_end


@functools.cache
def _tags_named(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}\b[^<>]*?(/?)>", re.IGNORECASE)


def _without_templates(text: str) -> str:
    """Remove templates, {{…}}, except the text of the few that only format it."""
    return _without_nested(text, _TEMPLATE, "{{", _shown_of_template)


def _shown_of_template(content: str) -> str:
    name, *arguments = content.split("|")
    name = name.strip()
    if not arguments or not _TEXT_OF.match(name):
        return ""
    positional = [argument for argument in arguments if "=" not in argument]
    if name.lower() == "lang" and len(positional) > 1:
        return positional[1]
    return positional[0] if positional else ""


def _without_links(text: str, hidden: Collection[str]) -> str:
    """Remove links to files and categories, which may contain links, and links to the article in other languages."""

    def shown(content: str) -> str:
        namespace, colon, _ = content.partition(":")
        if colon and namespace.strip().lower() in hidden:
            return ""
        return f"[[{content.removeprefix(':')}]]"

    return _LANGUAGE.sub("", _without_nested(text, _LINK, "[[", shown))


def _without_nested(text: str, mark: re.Pattern[str], opening: str, shown: Callable[[str], str]) -> str:
    """Replace bracketed parts by `shown(content)`, inner ones first. An unclosed one is removed up to the end of its line."""
    if opening not in text:
        return text
    stack: list[list[str]] = [[]]
    position = 0
    for found in mark.finditer(text):
        stack[-1].append(text[position : found.start()])
        position = found.end()
        if found[0] == opening:
            stack.append([])
        elif len(stack) > 1:
            content = "".join(stack.pop())
            stack[-1].append(shown(content))
    stack[-1].append(text[position:])
    while len(stack) > 1:
        _, newline, rest = "".join(stack.pop()).partition("\n")
        stack[-1].append(newline + rest)
    return "".join(stack[0])


def _without_tables(text: str) -> str:
    """Remove tables: from a line that begins with {| to one that begins with |}, or to the next heading if unclosed."""
    if "{|" not in text:
        return text
    kept: list[str] = []
    depth = 0
    for line in text.split("\n"):
        start = line.lstrip(" :*#\t")
        if start.startswith("{|"):
            depth += 1
        elif depth and start.startswith("|}") and not start.startswith("|}}"):
            depth -= 1
            if not depth:
                kept.append(start[2:])
        elif depth and _HEADING.fullmatch(line.strip()):
            depth = 0
        elif not depth:
            kept.append(line)
    return "\n".join(kept)
