"""A comparison as one page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tpulm.readable import percent
from tpulm.tokenization.comparison import Comparison, Measured
from tpulm.tokenization.comparison_tables import Table, tables
from tpulm.tokenization.contrasts import Contrast, Piece
from tpulm.tokenization.drawing import Bar, Curve, bars, colour, curves, share_map
from tpulm.tokenization.forms import visible
from tpulm.tokenization.text_sample import size

_STYLE = Path(__file__).with_suffix(".css")
_CURVE_POINTS = 400  # more would not be seen
_MOST_SCRIPTS = 8


def page(comparison: Comparison) -> str:
    """HTML. Whatever comes from texts, vocabularies and names is escaped, and what cannot be seen is made visible."""
    measured = comparison.measured
    title = "Tokenizers compared: " + ", ".join(one.label for one in measured)
    counts = f"{comparison.documents:,} documents, {comparison.words:,} words, {comparison.characters:,} characters"
    plots = [
        _section("Tokens per character", "Fewer are better; characters without blanks.", _per_character(measured)),
        _section(
            "Unknown",
            "Shares of the words (in part or as a whole) and of the characters that are written as the unknown token.",
            _unknown(measured),
        ),
        _section(
            "Length of documents",
            "Share of the documents of at most so many tokens. Special tokens are not counted.",
            _legend(measured) + _scroll(_lengths(comparison)),
        ),
        _section(
            "Vocabularies in common",
            "Share of the row's tokens that the column's vocabulary has, too. Tokens are compared as text, with their place: "
            "at the beginning of a word or within one.",
            _overlaps(comparison),
        ),
        _section(
            "Speed",
            f"Megabytes of UTF-8 a second on all cores, on {size(comparison.speed_bytes)}, by encoders that have seen "
            "no text before: tpulm's bulk encoder and, paler, the tokenizers library alone.",
            _speed(measured),
        ),
        _section(
            "Coverage by script",
            "Share of a script's characters within one token, (paler) split over several, (red) unknown.",
            _scripts(comparison),
        ),
    ]
    numbers = [_section(table.title, "", _table(table)) for table in tables(comparison, most_scripts=_MOST_SCRIPTS)]
    about = _section("The tokenizers", "", _sources(measured))
    sections = [about, *_columns(plots), *_contrasts(comparison), *_columns(numbers)]
    return _DOCUMENT.format(
        title=_shown(title),
        style=_STYLE.read_text(encoding="utf-8"),
        sample=_shown(f"On {comparison.sample}: {counts}."),
        sections="\n".join(sections),
    )


_DIFFER = (
    "Passages that suit one tokenizer far better, or worse, than all others: by tokens per character, where an unknown token "
    "counts for all characters it hides. A gap is where a word begins; what is unknown is outlined."
)
_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>Tokenizers compared</h1>
<p>{sample}</p>
<main>
{sections}
</main>
</body>
</html>
"""


def _shown(text: str) -> str:
    return escape(visible(text))


def _section(title: str, said: str, content: str) -> str:
    note = f"<p>{escape(said)}</p>" if said else ""
    return f"<section>\n<h2>{_shown(title)}</h2>\n{note}{content}\n</section>"


def _columns(sections: Sequence[str]) -> list[str]:
    return ['<div class="columns">', *sections, "</div>"]


def _scroll(content: str) -> str:
    return f'<div class="scroll">{content}</div>'


def _swatch(series: int) -> str:
    return f'<span class="swatch {colour(series)}"></span>'


def _legend(measured: Sequence[Measured]) -> str:
    names = (f'<span class="name">{_swatch(number)}{_shown(one.label)}</span>' for number, one in enumerate(measured))
    return f'<div class="legend">{"".join(names)}</div>'


def _sources(measured: Sequence[Measured]) -> str:
    rows = "".join(
        f'<tr><td>{_swatch(number)}{_shown(one.label)}</td><td class="words">{_shown(one.source)}</td>'
        f"<td>{escape(one.algorithm)}</td><td>{one.vocab_size:,}</td><td>{one.fingerprint[:12]}</td></tr>"
        for number, one in enumerate(measured)
    )
    header = '<th>tokenizer</th><th class="words">path</th><th>algorithm</th><th>vocabulary</th><th>fingerprint</th>'
    return _scroll(f"<table><tr>{header}</tr>{rows}</table>")


def _table(table: Table) -> str:
    kinds = [' class="words"' if name == "B" else "" for name in table.header]  # the one name that is not in front
    header = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, table.header, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{_shown(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    return _scroll(f"<table><tr>{header}</tr>{rows}</table>")


def _per_character(measured: Sequence[Measured]) -> str:
    return _scroll(
        bars(
            [
                Bar(visible(one.label), number, (one.tokens_per_character,), f"{one.tokens_per_character:.3f}")
                for number, one in enumerate(measured)
            ],
            "tokens per character of each tokenizer",
        )
    )


def _unknown(measured: Sequence[Measured]) -> str:
    items = [
        Bar(visible(one.label), number, (share,), percent(share, 2), heading if number == 0 else "")
        for heading, name in (("words", "unknown_words"), ("characters", "unknown_characters"))
        for number, one in enumerate(measured)
        for share in (getattr(one, name),)
    ]
    return _scroll(bars(items, "unknown words and characters of each tokenizer"))


def _speed(measured: Sequence[Measured]) -> str:
    items = [
        Bar(visible(one.label) if name == "tpulm" else "", number, parts, f"{rate:.2f} {name}")
        for number, one in enumerate(measured)
        for name, rate, parts in (
            ("tpulm", one.speed.bulk, (one.speed.bulk,)),
            ("library", one.speed.library, (0.0, one.speed.library)),
        )
    ]
    return _scroll(bars(items, "megabytes a second of each tokenizer"))


def _lengths(comparison: Comparison) -> str:
    series = [
        Curve(visible(one.label), number, _thinned(one.lengths.cumulative(), one.lengths.documents))
        for number, one in enumerate(comparison.measured)
    ]
    return curves(series, comparison.over, "cumulative distribution of document lengths", x_title="tokens in a document")


def _thinned(cumulative: Sequence[tuple[int, int]], documents: int) -> list[tuple[float, float]]:
    """The first, the last, and what differs from the one before by more than a hair."""
    points: list[tuple[float, float]] = []
    for number, (length, so_far) in enumerate(cumulative):
        share = so_far / documents
        if not points or number == len(cumulative) - 1 or share - points[-1][1] > 1 / _CURVE_POINTS:
            points.append((float(length), share))
    return points


def _overlaps(comparison: Comparison) -> str:
    labels = [visible(one.label) for one in comparison.measured]
    shares = [[cell.share for cell in row] for row in comparison.overlaps]
    return _scroll(share_map(labels, labels, shares, "share of each vocabulary in each other"))


def _scripts(comparison: Comparison) -> str:
    items = []
    for place, script in enumerate(comparison.measured[0].scripts[:_MOST_SCRIPTS]):
        share = script.characters / comparison.characters
        for number, one in enumerate(comparison.measured):
            found = one.scripts[place]
            parts = tuple(count / found.characters for count in (found.whole, found.split, found.unknown))
            heading = f"{script.script}, {percent(share, 2)} of the characters" if number == 0 else ""
            items.append(Bar(visible(one.label), number, parts, percent(found.coverage, 2), heading))
    return _scroll(bars(items, "share of the characters of each script within one token"))


def _contrasts(comparison: Comparison) -> list[str]:
    if not comparison.contrasts:
        return []
    passages = "".join(_passage(comparison.measured, one) for one in comparison.contrasts)
    return [_section("Where they differ", _DIFFER, passages)]


def _passage(measured: Sequence[Measured], contrast: Contrast) -> str:
    rows = "".join(
        f'<div class="who">{_swatch(number)}{_shown(one.label)}<small>{_plural(len(pieces))}</small></div>'
        f"<div>{''.join(map(_piece, pieces))}</div>"
        for number, (one, pieces) in enumerate(zip(measured, contrast.pieces, strict=True))
    )
    why = f"{'Best' if contrast.best else 'Worst'} with {measured[contrast.tokenizer].label}"
    return (
        f'<div class="passage"><p>{_shown(why)}</p><blockquote>{_shown(contrast.text)}</blockquote>'
        f'<div class="cut">{rows}</div></div>'
    )


def _piece(piece: Piece) -> str:
    kinds = " ".join(["piece", *(["begins"] if piece.begins_word else []), *(["unknown"] if piece.unknown else [])])
    return f'<span class="{kinds}" title="{_shown(piece.token)}">{escape(piece.text) or "∅"}</span>'


def _plural(tokens: int) -> str:
    return f"{tokens:,} tokens" if tokens != 1 else "1 token"
