"""The emulator's page: what is there, with nothing unescaped."""

from __future__ import annotations

import re

import requests
from rig import Rig


def test_it_shows_what_is_there(rig: Rig):
    rig.emulator.create_bucket("runs")
    rig.create()
    rig.emulator.faults.set(error_rate=0.0, read_only=True, match="<script>alert(1)</script>")
    found = requests.get(f"{rig.emulator.url}/_control/page", timeout=30)
    rig.emulator.faults.clear()
    assert found.status_code == 200 and found.headers["content-type"].startswith("text/html")
    for text in ("runs", "read_only", "Nodes", *rig.tpu.nodes()):
        assert text in found.text, text
    assert "&lt;script&gt;" in found.text and not re.search(r"<script|https?://|url\(", found.text)
