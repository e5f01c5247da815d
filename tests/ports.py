"""Ports for servers and hosts of tests."""

from __future__ import annotations

import secrets
import socket


def free_port_pair() -> int:
    """A port that is free, and the next one, too; below those that the system gives to whoever connects meanwhile."""
    while True:
        port = 10_000 + 2 * secrets.randbelow(11_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
