"""A comparison as tables, for both the terminal and the HTML page, and as that page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from tpulm import pages
from tpulm.readable import percent, size, visible
from tpulm.tokenization.comparison import PERCENTILES, Comparison, Measured

_MOST_SCRIPTS = 5  # as many as fit in 80 columns
_MOST_SCRIPTS_OF_PAGE = 8
_CURVE_POINTS = 400  # more would not be visible


class Table(NamedTuple):
    title: str
    header: Sequence[str]
    rows: list[tuple[str, ...]]
    names: int = 1  # how many of the first columns are text


def tables(comparison: Comparison, *, most_scripts: int = _MOST_SCRIPTS) -> list[Table]:
    """All tables have one row per tokenizer, except that of pairs."""
    measured, overlaps = comparison.tokenizers, comparison.overlaps
    some = next(iter(measured.values()))
    scripts = some.scripts[:most_scripts]

    def table(title: str, header: Iterable[str], row: Callable[[Measured], Iterable[str]]) -> Table:
        return Table(title, ("tokenizer", *header), [(label, *row(one)) for label, one in measured.items()])

    def tokens(one: Measured) -> tuple[str, ...]:
        per = (f"{one.tokens_per_word:.3f}", f"{one.tokens_per_character:.3f}", f"{one.bytes_per_token:.2f}")
        return (f"{one.vocab_size:,}", percent(one.tokens_used / one.vocab_size, 1), *per)

    def pair(mine: str, theirs: str) -> tuple[str, ...]:
        there, back = overlaps[mine][theirs], overlaps[theirs][mine]
        return (mine, theirs, f"{there.both:,}", *(percent(share, 1) for share in (there.share, back.share, there.jaccard)))

    return [
        table("Tokens", ("vocabulary", "used", "tok/word", "tok/char", "bytes/tok"), tokens),
        table(
            "Unknown",
            ("of tokens", "of words", "of characters"),
            lambda one: map(percent, (one.unknown_rate, one.unknown_words, one.unknown_characters)),
        ),
        table(
            "Length of documents in tokens, percentiles",
            (*(f"{percentile}%" for percentile in PERCENTILES), "max"),
            lambda one: (f"{length:,}" for length in one.lengths.percentiles.values()),
        ),
        table(
            "Documents longer than",
            (f"{length:,} tokens" for length in some.lengths.share_over),
            lambda one: (percent(share, 2) for share in one.lengths.share_over.values()),
        ),
        table(
            f"Speed in MB/s, all cores, on {size(comparison.speed_bytes)}",
            ("tpulm, cold", "library, cold"),
            lambda one: (f"{one.megabytes_per_second.bulk:.2f}", f"{one.megabytes_per_second.library:.2f}"),
        ),
        Table(
            "Tokens in both vocabularies",
            ("A", "B", "in both", "of A", "of B", "of all"),
            [pair(mine, theirs) for mine, theirs in combinations(measured, 2)],
            names=2,
        ),
        table(
            "Characters within one token, by script"
            + (f" ({most_scripts} of {len(some.scripts)})" if len(some.scripts) > most_scripts else ""),
            (f"{item.script}\n{percent(item.characters / comparison.characters, 1)}" for item in scripts),
            lambda one: (percent(item.coverage, 2) for item in one.scripts[:most_scripts]),
        ),
    ]


def contrast_tables(comparison: Comparison) -> list[Table]:
    return [
        Table(
            f"{'Best' if one.best else 'Worst'} with {one.tokenizer}: {visible(one.text)}",
            ("tokenizer", "tokens", "cut up"),
            [
                (label, str(len(pieces)), "|".join(f"[UNK {it.text}]" if it.unknown else it.text for it in pieces))
                for label, pieces in one.pieces.items()
            ],
        )
        for one in comparison.contrasts
    ]


def page(comparison: Comparison) -> str:
    """The comparison as a self-contained HTML page."""
    measured = comparison.tokenizers
    longest = max(max(*one.lengths.share_over, one.lengths.percentiles["max"]) for one in measured.values())
    return pages.render(
        "tokenizer_comparison.html",
        comparison=comparison,
        about=[
            (label, one.source, one.algorithm, f"{one.vocab_size:,}", one.fingerprint[:12]) for label, one in measured.items()
        ],
        tables=tables(comparison, most_scripts=_MOST_SCRIPTS_OF_PAGE),
        most_scripts=_MOST_SCRIPTS_OF_PAGE,
        length_curves={label: [(1, 0.0), *_thinned(one.length_curve), (longest, 1.0)] for label, one in measured.items()},
        length_marks=[(length, f"{length:,}") for length in next(iter(measured.values())).lengths.share_over],
        lengths_axis=pages.log_axis(longest),
        shares_axis=pages.SHARES,
        overlaps=[
            (mine, [("100%", 1.0) if one == mine else (percent(row[one].share, 1), row[one].share) for one in measured])
            for mine, row in comparison.overlaps.items()
        ],
    )


def _thinned(curve: Iterable[tuple[int, float]]) -> Iterable[tuple[int, float]]:
    """For each height that a screen can show, the last point of the curve."""
    return {round(share * _CURVE_POINTS): (length, share) for length, share in curve}.values()
