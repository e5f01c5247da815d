"""A comparison as tables, for the terminal and the page alike."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from tpulm.readable import percent
from tpulm.tokenization.comparison import Comparison
from tpulm.tokenization.forms import visible
from tpulm.tokenization.lengths import PERCENTILES
from tpulm.tokenization.text_sample import size

_MOST_SCRIPTS = 5  # as many as stand side by side on 80 columns
_LONGEST_LABEL = 22


class Table(NamedTuple):
    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(comparison: Comparison, *, most_scripts: int = _MOST_SCRIPTS) -> list[Table]:
    """Every table has a row for each tokenizer."""
    return [
        _tokens(comparison),
        _unknown(comparison),
        _lengths(comparison),
        _longer(comparison),
        _speed(comparison),
        _shared(comparison),
        _scripts(comparison, most_scripts),
    ]


def _tokens(comparison: Comparison) -> Table:
    return Table(
        "Tokens",
        ("tokenizer", "vocabulary", "used", "tok/word", "tok/char", "bytes/tok"),
        [
            (
                shortened(one.label, _LONGEST_LABEL),
                f"{one.vocab_size:,}",
                percent(one.tokens_used / one.vocab_size, 1),
                f"{one.tokens_per_word:.3f}",
                f"{one.tokens_per_character:.3f}",
                f"{one.bytes_per_token:.2f}",
            )
            for one in comparison.measured
        ],
    )


def _unknown(comparison: Comparison) -> Table:
    return Table(
        "Unknown",
        ("tokenizer", "of tokens", "of words", "of characters"),
        [
            (
                shortened(one.label, _LONGEST_LABEL),
                percent(one.unknown_rate),
                percent(one.unknown_words),
                percent(one.unknown_characters),
            )
            for one in comparison.measured
        ],
    )


def _lengths(comparison: Comparison) -> Table:
    return Table(
        "Length of documents in tokens, percentiles",
        ("tokenizer", *(f"{percent}%" for percent in PERCENTILES), "max"),
        [
            (
                shortened(one.label, _LONGEST_LABEL),
                *(f"{one.lengths.percentile(percent):,}" for percent in PERCENTILES),
                f"{one.lengths.longest:,}",
            )
            for one in comparison.measured
        ],
    )


def _longer(comparison: Comparison) -> Table:
    return Table(
        "Documents longer than",
        ("tokenizer", *(f"{tokens:,} tokens" for tokens in comparison.over)),
        [
            (
                shortened(one.label, _LONGEST_LABEL),
                *(percent(one.lengths.share_over(tokens), 2) for tokens in comparison.over),
            )
            for one in comparison.measured
        ],
    )


def _speed(comparison: Comparison) -> Table:
    return Table(
        f"Speed in MB/s, all cores, on {size(comparison.speed_bytes)}",
        ("tokenizer", "tpulm, cold", "library, cold"),
        [
            (shortened(one.label, _LONGEST_LABEL), f"{one.speed.bulk:.2f}", f"{one.speed.library:.2f}")
            for one in comparison.measured
        ],
    )


def _shared(comparison: Comparison) -> Table:
    measured, overlaps = comparison.measured, comparison.overlaps
    return Table(
        "Tokens in both vocabularies",
        ("A", "B", "in both", "of A", "of B", "of all"),
        [
            (
                shortened(measured[mine].label, _LONGEST_LABEL),
                shortened(measured[theirs].label, _LONGEST_LABEL),
                f"{overlaps[mine][theirs].both:,}",
                percent(overlaps[mine][theirs].share, 1),
                percent(overlaps[theirs][mine].share, 1),
                percent(overlaps[mine][theirs].jaccard, 1),
            )
            for mine, theirs in combinations(range(len(measured)), 2)
        ],
    )


def _scripts(comparison: Comparison, most: int) -> Table:
    scripts = comparison.measured[0].scripts
    title = "Characters within one token, by script"
    return Table(
        title if len(scripts) <= most else f"{title} ({most} of {len(scripts)})",
        ("tokenizer", *(f"{item.script}\n{percent(item.characters / comparison.characters, 1)}" for item in scripts[:most])),
        [
            (shortened(one.label, _LONGEST_LABEL), *(percent(item.coverage, 2) for item in one.scripts[:most]))
            for one in comparison.measured
        ],
    )


def contrast_tables(comparison: Comparison) -> list[Table]:
    return [
        Table(
            f"{'Best' if one.best else 'Worst'} with {comparison.measured[one.tokenizer].label}: {visible(one.text)}",
            ("tokenizer", "tokens", "cut up"),
            [
                (
                    shortened(measured.label, _LONGEST_LABEL),
                    f"{len(pieces)}",
                    "|".join(f"[UNK {piece.text}]" if piece.unknown else piece.text for piece in pieces),
                )
                for measured, pieces in zip(comparison.measured, one.pieces, strict=True)
            ],
        )
        for one in comparison.contrasts
    ]


def shortened(label: str, most: int) -> str:
    """At most so many characters, beginning and end kept: labels often differ at the end."""
    if len(label) <= most:
        return label
    head = (most - 1) // 2
    return f"{label[:head]}…{label[len(label) - (most - 1 - head) :]}"
