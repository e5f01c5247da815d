"""Which cases are tried."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-seed", type=int, help="of each format, only the case of this number")
    parser.addoption("--fuzz-report", help="a file that gets a line of JSON for each case")
