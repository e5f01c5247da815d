"""CRC32C and MD5 in the base64 that Cloud Storage writes them in, and the comparison with what a client sent."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import google_crc32c

from cloud_emulator.answers import invalid


class Hashes(NamedTuple):
    crc32c: str
    md5: str


def hashes_of(content: bytes) -> Hashes:
    crc32c = google_crc32c.value(content).to_bytes(4, "big")
    md5 = hashlib.md5(content, usedforsecurity=False).digest()
    return Hashes(base64.b64encode(crc32c).decode(), base64.b64encode(md5).decode())


def promised_hashes(metadata: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    """What the client says the content hashes to, under "crc32c" and "md5"."""
    promised: dict[str, str] = {}
    for part in headers.get("x-goog-hash", "").split(","):
        name, _, value = part.strip().partition("=")
        if name in ("crc32c", "md5"):
            promised[name] = value
    if "content-md5" in headers:
        promised["md5"] = headers["content-md5"]
    for field, name in (("crc32c", "crc32c"), ("md5Hash", "md5")):
        if metadata.get(field):
            promised[name] = metadata[field]
    return promised


def check_hashes(promised: Mapping[str, str], found: Hashes) -> None:
    if promised.get("crc32c", found.crc32c) != found.crc32c:
        raise invalid(f'Provided CRC32C "{promised["crc32c"]}" doesn\'t match calculated CRC32C "{found.crc32c}".')
    if promised.get("md5", found.md5) != found.md5:
        raise invalid(f'Provided MD5 hash "{promised["md5"]}" doesn\'t match calculated MD5 hash "{found.md5}".')
