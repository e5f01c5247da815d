"""Listings: a law against the plainest implementation there is, and what goes over the wire."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from cloud_emulator.storage.listing import Page, Query, opened, page_of

NAMES = st.sets(st.text("ab/ü", min_size=1, max_size=5), max_size=20)


def plainly(names: list[str], query: Query) -> tuple[list[str], list[str]]:
    """Everything that a query shows, by going through all names."""
    shown, prefixes = [], []
    for name in names:
        if not name.startswith(query.prefix) or name < query.start or (query.end and name >= query.end):
            continue
        rest = name[len(query.prefix) :]
        head, found, tail = rest.partition(query.delimiter) if query.delimiter else (rest, "", "")
        if found:
            prefixes.append(query.prefix + head + found)
        if not found or (query.with_marker and not tail):
            shown.append(name)
    return shown, sorted(set(prefixes))


SHORT = st.text("ab/", max_size=2)


@settings(max_examples=60)
@given(NAMES, SHORT, st.sampled_from(["", "/", "a", "//"]), SHORT, SHORT, st.booleans(), st.integers(1, 4))
def test_pages_together_are_the_whole_listing(
    names: set[str], prefix: str, delimiter: str, start: str, end: str, with_marker: bool, limit: int
):
    query = Query(prefix, delimiter, start, end, limit=limit, with_marker=with_marker)
    shown, prefixes, page = list[str](), list[str](), Page([], [], None)
    for _ in range(len(names) + 2):
        page = page_of(sorted(names), query)
        assert len(page.names) + len(page.prefixes) <= limit + 1
        shown += page.names
        prefixes += page.prefixes
        if page.token is None:
            break
        after, after_prefix = opened(page.token)
        query = query._replace(after=after, after_prefix=after_prefix)
    assert page.token is None, "the pages end"
    assert (shown, prefixes) == plainly(sorted(names), Query(prefix, delimiter, start, end, with_marker=with_marker))
