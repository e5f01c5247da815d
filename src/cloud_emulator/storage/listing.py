"""Listing: which names and which prefixes a page shows; a pure function of the sorted names."""

from __future__ import annotations

import base64
import bisect
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloud_emulator.errors import invalid
from cloud_emulator.http import Call

PAGE_LIMIT = 1000  # the most that the service lists at once


class Query(NamedTuple):
    prefix: str = ""
    delimiter: str = ""
    start: str = ""  # first name listed
    end: str = ""  # first name not listed; "" for no end
    after: str = ""  # the last name or prefix of the page before
    after_prefix: bool = False  # `after` is a prefix, so all its names were listed
    limit: int = PAGE_LIMIT
    with_marker: bool = False  # includeTrailingDelimiter: "a/" itself is listed beside the prefix "a/"
    pattern: str = ""  # matchGlob


class Page(NamedTuple):
    names: list[str]
    prefixes: list[str]
    token: str | None


def query_of(call: Call) -> Query:
    limit = call.integer("maxResults")
    if limit is not None and limit < 0:
        raise invalid(f"Invalid value for maxResults: {limit}. Values must be within the range: [0, 2147483647]")
    prefix, delimiter, start, end, token, pattern = (
        call.query_params.get(name, "")
        for name in ("prefix", "delimiter", "startOffset", "endOffset", "pageToken", "matchGlob")
    )
    with_marker, limit = call.flag("includeTrailingDelimiter"), min(limit or PAGE_LIMIT, PAGE_LIMIT)
    return Query(prefix, delimiter, start, end, *opened(token), limit, with_marker, pattern)


def page_of(names: Sequence[str], query: Query) -> Page:
    """One page of the sorted `names`. A name with the delimiter after the query's prefix is shown as a prefix, once."""
    shown: list[str] = []
    prefixes: list[str] = []
    fits = _glob(query.pattern) if query.pattern else None
    last = ("", False)
    at = bisect.bisect_left(names, max(query.prefix, query.start))
    if query.after:
        at = max(at, _past(names, query.after) if query.after_prefix else bisect.bisect_right(names, query.after))
    while at < len(names):
        name = names[at]
        if not name.startswith(query.prefix) or (query.end and name >= query.end):
            break
        if fits is not None and not fits(name):
            at += 1
            continue
        cut = name.find(query.delimiter, len(query.prefix)) if query.delimiter else -1
        stop = cut + len(query.delimiter)
        marker = cut >= 0 and query.with_marker and stop == len(name)
        if len(shown) + len(prefixes) >= query.limit:
            return Page(shown, prefixes, _sealed(*last))
        if cut < 0 or marker:
            shown.append(name)
        if cut >= 0 and name[:stop] not in prefixes[-1:]:
            prefixes.append(name[:stop])
        last = (name, False) if cut < 0 else (name[:stop], True)
        at = at + 1 if cut < 0 or marker or fits is not None else _past(names, name[:stop])
    return Page(shown, prefixes, None)


def _past(names: Sequence[str], prefix: str) -> int:
    """The index at which the names that begin with `prefix` end."""
    return bisect.bisect_left(names, prefix + "\U0010ffff")


def _sealed(name: str, is_prefix: bool) -> str:
    return base64.urlsafe_b64encode(f"{'p' if is_prefix else 'n'}{name}".encode()).decode()


def opened(token: str) -> tuple[str, bool]:
    try:
        text = base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise invalid("Invalid Value: pageToken") from None
    return text[1:], text[:1] == "p"


def _glob(pattern: str) -> Callable[[str], object]:
    """`**` spans slashes, `*` and `?` do not; `{a,b}` and `[abc]` are alternatives."""
    parts: list[str] = []
    depth = 0
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|\{|\}|,|.", pattern, flags=re.DOTALL):
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
        if token == "," and depth:
            parts.append("|")
        elif token in known:
            parts.append(known[token])
        elif len(token) > 1:
            parts.append("[" + token[1:-1].replace("\\", "\\\\").replace("!", "^", 1) + "]")
        else:
            parts.append(re.escape(token))
    try:
        return re.compile("".join(parts), re.DOTALL).fullmatch
    except re.error:
        raise invalid(f"Invalid matchGlob: '{pattern}'") from None
