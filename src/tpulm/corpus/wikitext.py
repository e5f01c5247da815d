"""From the markup of a wiki's article to its running text: paragraphs alone, without lists, tables and headings.

That is what BERT's authors kept of Wikipedia ("only the text passages", Devlin et al. 2018, 3.1). What stands between those is
taken out here; what stands within them (links, emphasis, entities) is read by mwparserfromhell, which took seven times as long
when it was given all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements whose content is no running text; an end that is missing is taken to be that of the line.
_ELEMENTS: Final = (
    "ref|gallery|math|chem|ce|timeline|imagemap|syntaxhighlight|source|pre|score|hiero|templatedata|graph|mapframe|maplink|"
    "inputbox|categorytree|table|ol|ul|dl|indicator|h[1-6]"
)
_TAG: Final = re.compile(rf"<(/?)({_ELEMENTS})\b[^<>]*?(/?)>", re.IGNORECASE)
_LONGEST_ELEMENT: Final = 200_000  # characters: so far its end is looked for
_AT_ONCE: Final = (
    1 << 16
)  # characters that mwparserfromhell reads, which takes a few hundred times as many bytes; or a paragraph
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
_LISTED: Final = ("*", "#", ":", ";", "|", "!")  # at the start of a line: of a list, or left over of a table
_TEXT_OF: Final = re.compile(r"(?:lang(?:-[a-z-]+)?|nowrap|nobr|small|big|nihongo|transl|script|ipa)\Z", re.IGNORECASE)


def plain_text(markup: str, hidden: Collection[str]) -> str:
    """The paragraphs, one a line. `hidden`: namespaces, in small letters, whose links show no text (files, categories)."""
    import mwparserfromhell  # with the extra

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
    text = _BEFORE_BRACKET.sub(r"\1", _AFTER_BRACKET.sub(r"\1", _EMPTY_BRACKETS.sub("", text)))  # where templates stood
    lines = (line.lstrip(" ,;:").rstrip() for line in _SPACE_BEFORE.sub("", text).split("\n"))
    return "\n".join(line for line in lines if any(map(str.isalnum, line)))


def _is_running_text(line: str) -> bool:
    line = line.strip()
    return bool(line) and len(line) < _AT_ONCE and not line.startswith(_LISTED) and not _HEADING.fullmatch(line)


def _cut(text: str) -> Iterator[str]:
    """Whole lines, up to `_AT_ONCE` characters of them."""
    while len(text) > _AT_ONCE:
        end = text.rindex("\n", 0, _AT_ONCE)
        yield text[:end]
        text = text[end + 1 :]
    yield text


def _without_elements(text: str) -> str:
    """Those within others go with them. Of one whose end is missing, what follows on its line."""
    kept: list[str] = []
    position = 0
    while (tag := _TAG.search(text, position)) is not None:
        kept.append(text[position : tag.start()])
        closing, name, alone = tag.groups()
        position = tag.end() if closing or alone else _end_of(name, text, tag.end())
    return "".join([*kept, text[position:]])


def _end_of(name: str, text: str, position: int) -> int:
    """Where an element ends whose opening tag ends at `position`."""
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
    """What {{…}} encloses goes, but for the few that only say how their text is to be shown."""
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
    """Links to files and categories, which may hold other links, and those to the same article in another language."""

    def shown(content: str) -> str:
        namespace, colon, _ = content.partition(":")
        if colon and namespace.strip().lower() in hidden:
            return ""
        return f"[[{content.removeprefix(':')}]]"

    return _LANGUAGE.sub("", _without_nested(text, _LINK, "[[", shown))


def _without_nested(text: str, mark: re.Pattern[str], opening: str, shown: Callable[[str], str]) -> str:
    """What brackets enclose replaced by what `shown` makes of it, inner ones first. One without an end is up to its line's."""
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
    """A table is from a line that begins with {| to one that begins with |}; one without an end is up to the next heading."""
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
