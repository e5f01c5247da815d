"""A browser without a window, where this machine has one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-proxy-server"),
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium (or google-chrome)")


def browsing(address: str, folder: Path | str, resolving: str, *options: str) -> list[str]:
    """The command that opens a page; `resolving` are rules that say where names lead."""
    rules = f"--host-resolver-rules={resolving}"
    return [str(CHROMIUM), *FLAGS, rules, f"--user-data-dir={folder}/profile", *options, address]
