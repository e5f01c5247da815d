"""The exception tree is the one its docstring draws, and survives the way back from a worker process."""

from __future__ import annotations

import pickle
import re

from tpulm import errors

CLASSES = {name: item for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}


def test_the_drawn_tree_is_the_real_one():
    drawn = re.findall(r"^([ │├└─]*)([A-Z]\w+) +(\d+) ", errors.__doc__ or "", re.MULTILINE)
    assert {name for _, name, _ in drawn} == set(CLASSES)
    path: list[tuple[int, type]] = []
    for indent, name, code in drawn:
        assert getattr(CLASSES[name], "exit_code", None) == int(code), name
        while path and path[-1][0] >= len(indent):
            path.pop()
        assert CLASSES[name].__base__ is (path[-1][1] if path else Exception), name
        path.append((len(indent), CLASSES[name]))


def test_every_error_survives_pickling_and_a_data_error_says_where():
    for kind in CLASSES.values():
        again = pickle.loads(pickle.dumps(kind("what happened")))
        assert (type(again), str(again)) == (kind, "what happened")
    again = pickle.loads(pickle.dumps(errors.DataError("no field 'text'", location="reviews.jsonl, line 7")))
    assert (str(again), again.location) == ("reviews.jsonl, line 7: no field 'text'", "reviews.jsonl, line 7")


def test_suggestions():
    assert errors.suggest("stpes", ["steps", "seed"]) == " Did you mean 'steps'?"
    assert errors.suggest("zzzzz", ["steps", "seed"]) == ""
    assert errors.suggest("x", []) == ""
    assert errors.suggest("label", ["label5", "gold_label", "author"]) == " Did you mean 'gold_label'?"
    assert errors.suggest("감정", ["text", "감성"]) == " Did you mean '감성'?"  # one letter of six


def test_a_message_does_not_control_the_terminal():
    error = errors.DataError("'\x1b[2J\x9b1m\rx' and 가나\nover two lines \ud800", location="a\0b.txt")
    assert str(error) == r"a\x00b.txt: '\x1b[2J\x9b1m\rx' and 가나" + "\n" + r"over two lines \ud800"


def test_a_message_does_not_fill_the_terminal():
    assert str(errors.ConfigError("a/b/" + "x" * 5_000 + " and more")) == "a/b/" + "x" * 196 + "… and more"
    path = "/long" * 150
    assert str(errors.ConfigError(path)) == path


def test_any_value_can_be_shown():
    assert errors.brief({"a": [1, None]}) == "{'a': [1, None]}"
    assert len(errors.brief("x" * 1_000)) == 61
