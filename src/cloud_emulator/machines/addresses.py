"""Addresses of workers: each has its own in 127.0.0.0/8, so that all of them may use the same ports."""

from __future__ import annotations

import errno
import random
import socket
import threading

METADATA_PORT = 8479  # beside JAX's coordinator (8476, 8477) and the TPU's own 8470
ATTEMPTS = 50


class Addresses:
    """Hands out addresses that no other emulator of this machine has: holding one is listening on its metadata port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = self._elsewhere()

    @staticmethod
    def _elsewhere() -> int:
        return random.randrange(1, 255) * 65_536 + random.randrange(256) * 256 + 1

    def take(self) -> socket.socket:
        """A listening socket at METADATA_PORT of a fresh address."""
        with self._lock:
            for _ in range(ATTEMPTS):
                number, self._next = self._next, self._next + 1
                if number % 256 in (0, 255) or number >= 254 << 16:
                    self._next = self._elsewhere() if number >= 254 << 16 else number + 1
                    continue
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                try:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind((f"127.{number >> 16}.{number >> 8 & 255}.{number & 255}", METADATA_PORT))
                    listener.listen(128)
                except OSError as error:
                    listener.close()
                    if error.errno != errno.EADDRINUSE:
                        raise
                    self._next = self._elsewhere()
                    continue
                return listener
        raise RuntimeError(f"port {METADATA_PORT} is taken on every address that was tried; something listens on 0.0.0.0")
