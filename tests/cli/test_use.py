"""What `tpulm generate` writes while tokens come: one text after another, though they are made by turns."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from tpulm.cli import use
from tpulm.predict.generate import Piece


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(use, "console", Console(file=stream, width=40))
    return stream


PIECES = [
    Piece(0, " cat", 7, None),
    Piece(1, " fox", 8, None),
    Piece(0, " sat", 9, None),
    Piece(1, "", None, "end of text"),
    Piece(0, " [bold]:smile:[/] on a very long mat " + "indeed " * 6, 10, "max_tokens"),
    Piece(2, " dog", 11, "max_tokens"),
]


def test_texts_follow_each_other_and_stay_as_they_are(written: io.StringIO):
    def pieces() -> Iterator[Piece]:
        for number, piece in enumerate(PIECES):
            yield piece
            if number == 2:
                assert written.getvalue() == "the cat sat", "each piece is written as it comes"

    assert list(use._shown(["the", "a", "one"], pieces())) == PIECES
    mat = " [bold]:smile:[/] on a very long mat " + "indeed " * 6
    assert written.getvalue() == f"the cat sat{mat}  (max_tokens)\n\na fox  (end of text)\n\none dog  (max_tokens)\n\n"
