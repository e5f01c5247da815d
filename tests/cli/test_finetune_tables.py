"""What `tpulm finetune` shows of texts."""

from __future__ import annotations

from tpulm.cli.finetune import _shortened


def test_a_text_of_several_lines_takes_one() -> None:
    assert _shortened("do a rollover\n\n    when it is time", None) == "do a rollover when it is time"
    assert _shortened("a  b", "c\nd") == "a b | c d"
    assert len(_shortened("long " * 40, None)) == 80
