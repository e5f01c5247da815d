"""Ports for servers and hosts of tests."""

from __future__ import annotations

import socket


def free_port_pair() -> int:
    """A port that is free, and the next one, too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
