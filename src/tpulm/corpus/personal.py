"""Personal data that has a form: e-mail addresses and telephone numbers, replaced where `cleaning.replace` names them.

By form alone: an order's number that is written like a telephone number goes, too, and a name is not found. Digits that are not
grouped are only taken for a telephone number after a "+".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tpulm.corpus.samples import Samples

EMAIL, PHONE = "<email>", "<phone>"
_CONTEXT: Final = 60  # characters of a sample on each side
_LINE_END: Final = re.compile(r"[\n\0]")

_EMAIL: Final = re.compile(
    r"(?<![\w.+%@-])[a-zA-Z0-9_](?:[\w.+%-]{0,62}[\w+%-])?@(?:[a-zA-Z0-9-]{1,63}\.){1,8}[a-zA-Z]{2,24}(?![\w@])", re.ASCII
)
_PHONE: Final = re.compile(
    r"(?<![\w./,:+-])"
    r"(?:"
    r"\+\d{1,3}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){2,3}"  # +82 10-1234-5678
    r"|\(0\d{1,4}\)[ .-]?\d{2,4}[ .-]\d{3,4}"  # (02) 123-4567
    r"|0\d{1,4}([ .-])\d{3,4}\1\d{4}"  # 010-1234-5678, 03-1234-5678
    r"|\(\d{3}\)[ .-]?\d{3}[ .-]\d{4}|\d{3}([.-])\d{3}\2\d{4}"  # (212) 555-0123
    r")"
    r"(?![\w+-]|[./,:]\d)",
    re.ASCII,
)
_FORMS: Final = {"email": (_EMAIL, "@", EMAIL), "phone": (_PHONE, "", PHONE)}


def replaced(text: str, kinds: Sequence[str], counts: Counter[str], samples: Samples) -> str:
    """The text with a placeholder for each of these kinds ("email", "phone"); how many there were is added to `counts`."""
    for kind in kinds:
        form, sign, placeholder = _FORMS[kind]
        if sign in text:
            if samples.wants(kind):
                samples.add(kind, (with_context(text, found) for found in form.finditer(text)))
            text, number = form.subn(placeholder, text)
            if number:
                counts[kind] += number
    return text


def with_context(text: str, found: re.Match[str]) -> str:
    """The line it stands in, near it."""
    before = _LINE_END.split(text[max(0, found.start() - _CONTEXT) : found.start()])[-1]
    after = _LINE_END.split(text[found.end() : found.end() + _CONTEXT])[0]
    return f"{before}[{found[0]}]{after}"
