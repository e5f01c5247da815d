from __future__ import annotations

import os

import pytest

from tpulm.progress import held_stderr
from tpulm.storage.arrays import LOG_LINE


def test_log_lines_of_libraries_are_left_out_and_nothing_else(capfd: pytest.CaptureFixture[str]):
    with held_stderr(without=LOG_LINE):
        os.write(2, b"\x1b[2KTraining  1/2\rI1123 00:44:31.098986   27320 google_auth_provider.cc:136] Using a token\n")
        os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
        os.write(
            2, b"E1123 00:46:20.101343   27924 google_auth_provider.cc:188] Could not find the credentials file\nI am here\n"
        )
    os.write(2, b"later\n")
    err = capfd.readouterr().err
    assert err.startswith("\x1b[2KTraining  1/2\rE1123") and err.endswith("credentials file\nI am here\nlater\n")
