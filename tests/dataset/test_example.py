from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from tfrecord_files import serialize
from tpulm.dataset import example
from tpulm.dataset.example import NotAnExample, parse

values = strategies.lists(strategies.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5) | strategies.lists(
    strategies.floats(width=32, allow_nan=False), min_size=1, max_size=5
)


@hypothesis.settings(max_examples=30)
@hypothesis.given(strategies.dictionaries(strategies.text(max_size=8), values, max_size=4))
def test_what_was_written_is_read(features: dict[str, list[int] | list[float]]) -> None:
    found = parse(serialize(features))
    assert set(found) == set(features)
    for name, written in features.items():
        assert list(example.values(found[name], "float_list" if isinstance(written[0], float) else "int64_list")) == written


def test_the_wire_format_is_that_of_tensorflow() -> None:
    """Bytes by hand, from the numbers in example.proto and feature.proto: packed, and one value at a time."""
    packed = b"\x0a\x0f" + b"\x0a\x0d" + b"\x0a\x03ids" + b"\x12\x06" + b"\x1a\x04" + b"\x0a\x02\x05\x07"
    assert serialize({"ids": [5, 7]}) == packed
    single = b"\x0a\x11" + b"\x0a\x0f" + b"\x0a\x03ids" + b"\x12\x08" + b"\x1a\x04" + b"\x08\x05\x08\x07" + b"\x1a\x00"
    assert list(example.values(parse(single)["ids"], "int64_list")) == [5, 7]


def test_another_kind_is_an_error() -> None:
    found = parse(serialize({"ids": [1], "weights": [1.0]}))
    with pytest.raises(NotAnExample, match="holds floats, not int64s"):
        example.values(found["weights"], "int64_list")
    with pytest.raises(NotAnExample, match="holds int64s, not floats"):
        example.values(found["ids"], "float_list")
    with pytest.raises(NotAnExample):
        parse(b"\xff\xff")
