"""The running text of an article in wikitext, with the words that its reader sees.

Written by hand: docs/experiments.md compares it with two libraries.
"""

from __future__ import annotations

import functools
import html
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from html.entities import html5
from importlib import resources
from typing import Final

_TABLE: Final = tomllib.loads((resources.files("tpulm.corpus.readers") / "templates.toml").read_text(encoding="utf-8"))
NAMES: Final = {of: frozenset(names.split(", ")) for of, names in _TABLE.pop("names").items()}
TEMPLATES: Final[dict[str, str]] = {name: form for form, names in _TABLE.items() for name in names.split(", ")}
_ARGUMENT: Final = re.compile(r"(?:\d+|[^\W\dA-Z][\w *-]*)(?:\|(?:\d+|[^\W\d][\w *-]*))*")  # other words are text
_FIELD: Final = re.compile(r"\{([^{}]+)\}")
_NUMBER: Final = re.compile(r"[-+−]?\d[\d.,/+⁄]*|\(\d+\)")

# Control characters, which XML cannot contain. Around the name of what was removed from a place:
_GONE, _END = "\x01", "\x02"
# For characters that are not markup where they stand, until the end:
_PLAIN: Final = dict(zip(map(ord, "{}[]|'<>=:_"), "\x03\x04\x05\x06\x07\x08\x0e\x0f\x10\x11\x12", strict=True))
_NO_MARKUP: Final = "\x13"  # before text that cannot begin a list
_PLAIN_AGAIN: Final = {ord(stands): chr(character) for character, stands in _PLAIN.items()} | {ord(_NO_MARKUP): ""}
_NAMED: Final = re.compile(r"\x01([^\x02]*)\x02")

# Elements whose content is not running text; one without a closing tag ends with its line.
_ELEMENTS: Final = (
    "nowiki|ref|gallery|math|chem|ce|timeline|imagemap|syntaxhighlight|source|pre|score|hiero|templatedata|graph|mapframe|maplink|"
    "inputbox|categorytree|table|ol|ul|dl|indicator|h[1-6]|includeonly|templatestyles|rt|rp|rtc"
)
_UNCOUNTED: Final = ("ref", "rt", "rp", "rtc")  # a note is not part of its sentence
# Their closing tags may be left out (HTML): before which tags they end.
_RUBY: Final = {
    name: re.compile(rf"</{name}\s*>|(?=<(?:{tags}|/ruby)\b|\n\n)", re.IGNORECASE)
    for name, tags in [("rt", "r[bpt]|/?rtc"), ("rp", "r[bpt]|/?rtc"), ("rtc", "rb|rtc")]
}
_ATTRIBUTES: Final = r"""[^<>=]*+(?:=\s*(?:"[^"<>]*>[^"<]*"|'[^'<>]*>[^'<]*')?[^<>=]*+)*"""  # a quoted value may contain >
_UNSEEN: Final = r"(?!br|hr|wbr|link|meta)[a-z]+(?=\s[^<>]*(?:display\s*:\s*none|\bnoprint\b))"
_TAG: Final = re.compile(rf"<!--|<(/?)({_ELEMENTS}|{_UNSEEN})\b{_ATTRIBUTES}>", re.IGNORECASE)
_LONGEST_ELEMENT: Final = 200_000  # characters in which a closing tag is looked for
_DEEPEST: Final = 40  # levels of nesting; MediaWiki has the same limit for templates
_LONGEST_LINE: Final = 1 << 16
_LONGEST_NAME: Final = 60
_BRACKETS: Final = re.compile(r"\{{2,}|\}{2,}|\[\[|\[(?=https?://|ftp://|mailto:)|\]+|\|")
_HEADING: Final = re.compile(r"={1,6}[^=].*=")
_TABLE_START: Final = re.compile(r"(?:[ :*#\t]|\x01[^\x02]*\x02)*\{\|")
_LISTED: Final = ("*", "#", ":", ";", "|")  # begin a line of a list, or a table's remnant
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(?:-[A-Za-z-]+)?|simple")
_FILE_NAME: Final = re.compile(  # what Commons has
    r"[^:]+:.+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gva]|web[mp]|pdf|djvu|midi?|wav|mp[34g]|mpeg|flac|opus|xcf|stl)", re.I
)
_PICTURE: Final = re.compile(r"(?:upright|hochkant|redresse).*|\d*(?:x?\d+)(?:px|пкс)")
# -{text}-, -{zh-hans:…;zh-hant:…}- and -{flags|…}-: MediaWiki's LanguageConverter.
_FLAGS: Final = re.compile(r"-\{[A-Za-z;\s+-]{0,80}\|")
_VARIANTS: Final = re.compile(rf"-\{{(?:([A-Za-z;\s+-]{{0,80}}){_PLAIN[ord('|')]})?([^{{}}]*)\}}-")
_VARIANT: Final = re.compile(rf"(?:^|;)\s*(?:[^:;]*=>\s*)?((?:{'|'.join(NAMES['variants'])})(?:-[a-z]+)?)\s*:")
_FALLBACKS: Final = ["zh", "zh-hans", "zh-hant", "zh-cn", "zh-tw", "zh-hk", "zh-sg", "zh-mo", "zh-my", "sr", "sr-ec"]
_SWITCH: Final = re.compile(r"__(?:NO[A-Z]+|(?:FORCE)?TOC|(?:NO)?INDEX|HIDDENCAT|DISAMBIG|[A-ZÀ-Þ_]{10,}|[^\W\x00-\x7f]+)__")
_MARKUP: Final = re.compile(
    r"</?(?:(p|div|center|blockquote|hr|li|poem|section|dt|dd|caption|figure|figcaption|aside)|(br|td|th|tr)|(?:abbr|bd[io]|big|b|cite|"
    r"code|data|del|dfn|em|font|ins|i|kbd|mark|q|rb|ruby|samp|small|span|strike|strong|su[bp]|s|time|tt|u|var|wbr|noinclude|"
    rf"onlyinclude|references|link|meta|{_ELEMENTS}))(?:[\s/]{_ATTRIBUTES})?>",
    re.IGNORECASE,
)
_BREAK: Final = re.compile(r" ?\x18 ?")
_QUOTES: Final = re.compile(r"('{2,})")
_ENTITY: Final = re.compile(r"&(#\d+;|#[xX][0-9a-fA-F]+;|\w+;)")
# Next to what was removed: brackets that are empty now, punctuation at the edge of brackets, doubled spaces and commas.
_TIDY: Final = [
    (re.compile(r"[ \u00a0]?[(（][\s,;:、，–—-]{0,8}\x01[\s,;:、，–—\x01-]{0,40}[)）]"), "\x01"),
    (re.compile(r"([(（])[\s,;:、，]{0,8}\x01[\s,;:、，\x01]{0,40}"), r"\1"),
    (re.compile(r"[\s,;:、，]{0,8}\x01[\s,;:、，\x01]{0,40}([)）])"), r"\1"),
    (re.compile(r"^[ ,;:、，]{0,8}\x01[ ,;:、，\x01]{0,40}", re.MULTILINE), ""),
    (re.compile(r"[,;、，]? ?\x01(?: ?\x01){0,20}(?=[,;:.、，。])"), ""),
    (re.compile(r" \x01[ \x01]{0,40}(?=[ \u00a0)）]|&nbsp;|$|(?<! )[!?])|\x01 (?= )", re.MULTILINE), ""),
    (re.compile(r"\x01( )\x01[ \x01]{0,40}"), r"\1"),
]


def plain_text(
    markup: str, hidden: Collection[str], templates: Mapping[str, str] = TEMPLATES, removed: Counter[str] | None = None
) -> str:
    """The paragraphs of an article, one per line, without lists, tables and headings.

    This is what BERT's authors kept of Wikipedia ("only the text passages", Devlin et al. 2018, 3.1). Templates show what
    `templates` says; others, and elements such as <math>, are counted in `removed` by name where they are part of running text.
    `hidden`: lower-case namespaces whose links show no text.
    """
    text = _FLAGS.sub(lambda flags: flags[0][:-1] + _PLAIN[ord("|")], _without_elements(markup))
    text = _resolved(text, hidden, templates)
    for _ in range(_DEEPEST):
        text, count = _VARIANTS.subn(_of_variants, text)
        if not count:
            break
    text = _without_tables(text)
    lines = [_unquoted(line) for line in text.split("\n") if _is_running_text(line)]
    text = _BREAK.sub(" ", _SWITCH.sub("", _MARKUP.sub(_space, "\n".join(lines))))
    if _GONE in text:
        if removed is not None:
            removed.update(name.translate(_PLAIN_AGAIN) for name in _NAMED.findall(text) if name)
        text = re.sub(r"(?:\x01[^\x02]*\x02)+", _GONE, text)
        for pattern, replacement in _TIDY:
            text = pattern.sub(replacement, text)
        text = text.replace(_GONE, "")
    text = _ENTITY.sub(_character, text).translate(_PLAIN_AGAIN).replace("\u00a0", " ")
    return "\n".join(line for line in map(str.strip, text.split("\n")) if any(map(str.isalnum, line)))


def _gone(name: str = "") -> str:
    return f"{_GONE}{name[:_LONGEST_NAME].translate(_PLAIN)}{_END}"


def _is_running_text(line: str) -> bool:
    line = _NAMED.sub("", line).strip()
    return bool(line) and len(line) < _LONGEST_LINE and not line.startswith(_LISTED) and not _HEADING.fullmatch(line)


def _space(tag: re.Match[str]) -> str:
    return "\n" if tag[1] else "\x18" if tag[2] else ""


def _character(entity: re.Match[str]) -> str:
    return html.unescape(entity[0]) if entity[1][0] == "#" or entity[1] in html5 else entity[0]


def _of_variants(rule: re.Match[str]) -> str:
    """What is shown in a language's base variant: its own text, that of the first fallback, else the first (ConverterRule)."""
    flags, text = {flag.strip() for flag in (rule[1] or "").split(";")}, rule[2]
    if flags & set("HND-") or (flags & set("T+") and "A" not in flags):
        return _gone()
    before, *rules = _VARIANT.split(text)
    if before.strip() or "R" in flags:
        return text
    texts = {name: some for name, some in zip(rules[::2], (some.strip("; \n") for some in rules[1::2]), strict=True) if some}
    return next((texts[name] for name in [*_FALLBACKS, *texts] if name in texts), "")


def _without_elements(text: str) -> str:
    """Remove comments and elements with what is in them, except <nowiki>, in which nothing is markup."""
    parts: list[str] = []
    position = 0
    while (tag := _TAG.search(text, position)) is not None:
        parts.append(text[position : tag.start()])
        position = tag.end()
        (closing, name), alone = tag.groups(), text[tag.end() - 2] == "/"
        if name is None:
            position = text.find("-->", position) + 3
            if position < 3:
                return "".join(parts)
        elif not closing and not alone:
            name = name.lower()
            start, (position, end) = position, _end_of(name, text, position)
            if name == "nowiki":
                parts.append(_NO_MARKUP + text[start:position].translate(_PLAIN).replace("\n", "\n" + _NO_MARKUP))
            else:
                parts.append(_gone("" if name in _UNCOUNTED else f"<{name}>"))
            position = end
        elif alone and name.lower() == "nowiki":
            parts.append(_NO_MARKUP)
    return "".join([*parts, text[position:]])


def _end_of(name: str, text: str, position: int) -> tuple[int, int]:
    """Where the content of the element ends whose opening tag ends at `position`, and where its closing tag ends."""
    if name in _RUBY and (match := _RUBY[name].search(text, position, position + _LONGEST_ELEMENT)) is not None:
        return match.span()
    depth = 1
    for tag in _tags_named(name).finditer(text, position, position + _LONGEST_ELEMENT):
        depth += 0 if text[tag.end() - 2] == "/" else -1 if tag[1] else 1
        if depth == 0:
            return tag.start(), tag.end()
        if depth > _DEEPEST:
            break
    line_end = text.find("\n", position)
    line_end = len(text) if line_end < 0 else line_end
    return line_end, line_end


@functools.lru_cache
def _tags_named(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}\b{_ATTRIBUTES}>", re.IGNORECASE)


class _Open:
    """A bracket that is not closed yet: where it is in the output, and where the | at its level are."""

    __slots__ = ("bars", "braces", "bracket", "place")

    def __init__(self, bracket: str, place: int):
        self.bracket, self.place, self.braces = bracket[0] if bracket != "[[" else bracket, place, len(bracket)
        self.bars: list[int] = []


def _resolved(text: str, hidden: Collection[str], templates: Mapping[str, str]) -> str:
    """Replace templates and links by what they show, inner ones first."""
    out: list[str] = []
    stack: list[_Open] = []
    open_templates = position = 0
    for mark in _BRACKETS.finditer(text):
        out.append(text[position : mark.start()])
        position = mark.end()
        run, remaining = mark[0], len(mark[0])
        if run[0] in "{[":
            stack.append(_Open(run, len(out)))
            open_templates += run[0] == "{"
            out.append("")
        elif run == "|":
            while len(stack) > 1 and stack[-1].bracket == "[":
                stack.pop()
            if stack:
                stack[-1].bars.append(len(out))
            out.append("|")
        elif run[0] == "}":
            while remaining > 1 and open_templates:
                while stack[-1].bracket != "{":
                    stack.pop()
                opened = stack[-1]
                used = 3 if remaining > 2 and opened.braces > 2 else 2
                remaining -= used
                opened.braces -= used
                shown = _of_template(_parts(out, opened), used, templates) if len(stack) <= _DEEPEST else _gone("{{…")
                del out[opened.place + 1 :]
                out[opened.place] = "" if opened.braces > 1 else "{" * opened.braces
                out.append(shown.replace("=", _PLAIN[ord("=")]))
                opened.bars = []
                if opened.braces < 2:
                    stack.pop()
                    open_templates -= 1
            out.append("}" * (remaining % 2))
        else:
            while remaining and stack and stack[-1].bracket in ("[", "[[")[:remaining]:
                opened = stack.pop()
                remaining -= len(opened.bracket)
                if len(stack) < _DEEPEST:
                    parts = _parts(out, opened)
                    del out[opened.place :]
                    shown = _of_link(parts, hidden) if opened.bracket == "[[" else _of_address("|".join(parts))
                    out.append(_NO_MARKUP * shown.startswith(_LISTED) + shown.replace("=", _PLAIN[ord("=")]))
            out.append("]" * (remaining % 2))
    out.append(text[position:])
    return "".join(_without_unclosed(out, stack, hidden))


def _parts(out: list[str], opened: _Open) -> list[str]:
    edges = [opened.place, *opened.bars, len(out)]
    return ["".join(out[edges[i] + 1 : edges[i + 1]]) for i in range(len(edges) - 1)]


def _without_unclosed(out: list[str], stack: list[_Open], hidden: Collection[str]) -> Iterator[str]:
    """Without templates and pictures that are not closed, up to the ends of their lines."""
    unclosed = {opened.place: opened.bracket for opened in stack}
    skips = False
    for place, some in enumerate(out):
        bracket = unclosed.get(place)
        if not skips and (bracket == "{" or (bracket == "[[" and _is_hidden(out[place + 1], hidden))):
            skips = True
            yield _gone("{{" + out[place + 1].strip().partition("\n")[0] if bracket == "{" else "")
        if skips and "\n" in some:
            skips, some = False, some[some.index("\n") :]
        if not skips:
            yield some


def _is_hidden(target: str, hidden: Collection[str]) -> bool:
    namespace, colon, _ = target.partition(":")
    return bool(colon) and namespace.replace("_", " ").strip().lower() in hidden


def _of_link(parts: list[str], hidden: Collection[str]) -> str:
    target = parts[0].strip()
    if "\n" in target:
        return "|".join(parts)
    if "://" in target:
        return _of_address("|".join(parts))
    if ":" in target[1:] and target[0] != ":" and not _is_hidden(target, NAMES["media"]):
        is_picture = any(part in NAMES["pictures"] or _PICTURE.fullmatch(part) for part in map(str.strip, parts[1:]))
        if is_picture or _FILE_NAME.fullmatch(target) or _is_hidden(target, hidden) or _is_hidden(target, NAMES["wikis"]):
            return _gone()
    return "|".join(parts[1:]) or target.removeprefix(":")


def _of_address(content: str) -> str:
    """The text of [https://a.org text]; MediaWiki numbers a link without text."""
    if "\n" in content:
        return content
    return content.partition(" ")[2].strip() or _gone()


def normalized(name: str) -> str:
    """The name of a template as the table has it: capitals and underscores make no difference."""
    return " ".join(name.replace("_", " ").split()).casefold().removeprefix("template:")


def _of_template(parts: list[str], braces: int, templates: Mapping[str, str]) -> str:
    if braces == 3:  # a parameter, outside of a template: its default
        return parts[1] if len(parts) > 1 else _gone("{{{")
    name = normalized(parts[0])
    form = templates.get(name)
    if form is None and ":" in name:
        name, _, first = parts[0].strip().partition(":")
        name = f"{name.lower()}:"
        form, parts = templates.get(name), ["", first.strip()]
    elif form is None:
        form = "1|text" if name.startswith("lang-") else "[{1}]" if name.startswith("ipa-") else None
    if form is not None:
        shown = _shown(form, _arguments(parts))
        if shown is not None:
            return shown
    return _gone("{{" + _NAMED.sub("", name).strip() + "}}")


def _arguments(parts: list[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    number = 0
    for part in parts[1:]:
        key, equals, value = part.partition("=")
        if equals:
            arguments[key.strip().lower()] = value.strip()
        else:
            number += 1
            arguments[str(number)] = part.strip("\n")
    return arguments


def _shown(form: str, arguments: dict[str, str]) -> str | None:
    """What a template with these arguments shows; None if they are not those of any form."""
    if "{quantity}" in form:
        arguments = _with_quantity(arguments)
    for pieces in _forms(form):
        shown = [_value(piece, arguments) if place % 2 else piece for place, piece in enumerate(pieces)]
        if all(
            value.strip() or _may_be_empty(field, arguments) for value, field in zip(shown[1::2], pieces[1::2], strict=True)
        ):
            return "".join(shown)
    return None


def _may_be_empty(field: str, arguments: dict[str, str]) -> bool:
    return ":" in field or (field.endswith("!") and bool(arguments.get(field[:-1])))


def _value(names: str, arguments: dict[str, str]) -> str:
    before, optional, names = names.rpartition(":")
    if optional:
        value = _value(names, arguments)
        return value and before + value
    if names == "*":
        return "".join(value for name, value in arguments.items() if name.isdecimal())
    if names == "?":
        return "" if _LANGUAGE.fullmatch(arguments.get("1", "")) else arguments.get("1", "")
    return next((value for name in names.split("|") if (value := arguments.get(name, "")).strip()), "")


def _with_quantity(arguments: dict[str, str]) -> dict[str, str]:
    """With the numbers of 5|to|6|km, 5|ft|6|in or 5|0.3 as "quantity" (5 to 6, 5 ft 6, 5±0.3), and what follows from "2" on."""
    values = [value.strip() for name, value in arguments.items() if name.isdecimal()][:_DEEPEST]
    quantity, *rest = values or [""]
    if rest and _NUMBER.fullmatch(rest[0]):  # an uncertainty, an upper and a lower one, or one in brackets
        more = f"+{rest[0].lstrip('+')}−{rest[1].lstrip('-−')}" if len(rest) > 1 else f"±{rest[0]}".replace("±(", "(")
        quantity, rest = f"({quantity}{more})" if arguments.get("e") and more[0] != "(" else quantity + more, []
    while len(rest) > 1 and (
        rest[0] in NAMES["ranges"]
        or (rest[0] in NAMES["divided"] and [bool(_NUMBER.fullmatch(v)) for v in rest[1:3]] == [True, False])
    ):
        quantity, rest = " ".join([quantity, *rest[:2]]), rest[2:]
    return arguments | dict.fromkeys("2345", "") | {"quantity": quantity} | {str(n): v for n, v in enumerate(rest, start=2)}


@functools.cache
def _forms(form: str) -> list[list[str]]:
    """Each form as text and names of arguments in turn."""
    return [_FIELD.split(f"{{{one}}}" if _ARGUMENT.fullmatch(one) and one.strip() else one) for one in form.split(" // ")]


def _unquoted(line: str) -> str:
    """Without the apostrophes of bold and italics, by the rules of MediaWiki's Parser::doQuotes."""
    if "''" not in line:
        return line
    pieces = _QUOTES.split(line)
    marks = [len(run) for run in pieces[1::2]]
    for number, run in enumerate(marks):  # four: an apostrophe and bold; more than five: apostrophes and both
        marks[number] = 3 if run == 4 else min(run, 5)
        pieces[2 * number] += "'" * (run - marks[number])
        pieces[2 * number + 1] = ""
    if sum(run in (3, 5) for run in marks) % 2 and sum(run in (2, 5) for run in marks) % 2:
        places = [2 * number + 1 for number, run in enumerate(marks) if run == 3]
        if places:  # one bold is an apostrophe and italics: after a single letter, else after a longer word, else after a space
            before = [pieces[place - 1][-2:].encode()[-2:] for place in places]  # MediaWiki looks at two bytes
            kinds = [2 if text.endswith(b" ") else 0 if text.startswith(b" ") else 1 for text in before]
            pieces[places[kinds.index(min(kinds))]] += "'"
    return "".join(pieces)


def _without_tables(text: str) -> str:
    """Remove tables: from a line that begins with {| to one that begins with |}, or to the next heading if unclosed."""
    if "{|" not in text:
        return text
    parts: list[str] = []
    depth = 0
    for line in text.split("\n"):
        start = line.lstrip(" :*#\t")
        if _TABLE_START.match(line):
            depth += 1
        elif depth and start.startswith("|}") and not start.startswith("|}}"):
            depth -= 1
            if not depth:
                parts.append(start[2:])
        elif depth and _HEADING.fullmatch(line.strip()):
            depth = 0
        elif not depth:
            parts.append(line)
    return "\n".join(parts)
