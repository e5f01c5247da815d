"""Whom the emulator answers: its own user's programs, and no web page that the user happens to look at.

The emulator runs scripts as its user, and a page of any site may send requests to 127.0.0.1. It may not read what is printed
on a terminal, so the address that the emulator prints begins with a random token, `http://127.0.0.1:9023/TOKEN`, and nothing
is answered without it. A path is the one thing that all clients carry unmodified: google-cloud-storage and gcsfs send no
credentials to an emulator, nor does google-cloud-tpu over plain HTTP. All addresses in answers have it as well.

Two rules stand beside it. A Host that is no loopback name means that a site's name was made to lead here (DNS rebinding), by
which a page would become part of the same site and could read answers. An Origin is sent by pages and by no client.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable

from cloud_emulator.answers import ApiError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def refuse_pages(headers: Iterable[tuple[bytes, bytes]], hosts: Collection[str] = LOOPBACK) -> None:
    """Raise ApiError unless the Host is one of `hosts`, with or without a port, and there is no Origin."""
    named = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if len(named) != 1 or re.sub(r":\d*$", "", named[0]).lower() not in hosts:
        raise ApiError(421, f"The emulator is not called '{', '.join(named)}' but {' or '.join(hosts)}.", "misdirected")
    if any(name == b"origin" for name, _ in headers):
        raise ApiError(403, "The emulator answers no web pages: the request has an Origin.", "forbidden")


def without_token(path: bytes, token: str) -> bytes:
    """What follows the token at the beginning of a path; raises ApiError where it is another, or none."""
    _, given, *rest = [*path.split(b"/", 2), b""]
    if not hmac.compare_digest(given, token.encode("ascii")):
        message = "The address lacks the emulator's token. Use the addresses that 'tpulm cloud emulator' printed when it began."
        raise ApiError(403, message, "forbidden")
    return b"/" + rest[0]
