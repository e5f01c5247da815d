"""Bodies in parts: metadata and content of an upload (multipart/related), and the calls of a batch (multipart/mixed)."""

from __future__ import annotations

import email.message
import email.parser
from typing import NamedTuple

from cloud_emulator.answers import invalid


class Part(NamedTuple):
    headers: dict[str, str]  # names in lower case
    content: bytes


def boundary_of(content_type: str) -> bytes:
    message = email.message.Message()
    message["Content-Type"] = content_type
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise invalid("Missing boundary in the Content-Type of a multipart body.")
    return boundary.encode()


def related_parts(body: bytes, content_type: str) -> tuple[Part, Part]:
    """The metadata and the content, which runs to the last boundary and so may contain anything."""
    boundary = b"--" + boundary_of(content_type)
    first = body.find(boundary)
    end = body.rfind(boundary + b"--")
    ending = _line_ending(body, first + len(boundary))
    second = body.find(ending + boundary + ending, first + len(boundary))
    if first < 0 or second < 0 or end <= second:
        raise invalid("Multipart body must have exactly two parts.")
    metadata = _part(body, first + len(boundary) + len(ending), second, ending)
    content = _part(body, second + 2 * len(ending) + len(boundary), end - len(ending), ending)
    return metadata, content


def mixed_parts(body: bytes, content_type: str) -> list[Part]:
    boundary = b"--" + boundary_of(content_type)
    parts = []
    for piece in body.split(boundary)[1:]:
        if piece.startswith(b"--"):
            break
        ending = _line_ending(piece, 0)
        parts.append(_part(piece, len(ending), len(piece), ending))
    return parts


def _line_ending(body: bytes, at: int) -> bytes:
    """Clients write either; which one must be known, for the content may itself end with a carriage return."""
    return b"\r\n" if body[at : at + 2] == b"\r\n" else b"\n"


def _part(body: bytes, start: int, stop: int, ending: bytes) -> Part:
    blank = body.find(ending + ending, start, stop)
    if body.startswith(ending, start):  # no headers at all
        return Part({}, body[start + len(ending) : stop])
    if blank < 0:
        raise invalid("A part of a multipart body has no blank line after its headers.")
    return Part(headers_of(body[start:blank]), body[blank + 2 * len(ending) : stop])


def headers_of(text: bytes) -> dict[str, str]:
    message = email.parser.BytesHeaderParser().parsebytes(text)
    return {name.lower(): str(value) for name, value in message.items()}
