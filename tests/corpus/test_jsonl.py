import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpulm.corpus import documents
from tpulm.errors import DataError


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_come_back_as_they_are(read: Callable, monkeypatch: pytest.MonkeyPatch, texts: list[str], ascii_only: bool):
    monkeypatch.setattr(documents, "BATCH_BYTES", 64)
    content = "\r\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only) for text in texts)
    assert read("a.jsonl", content).documents == texts


def test_dots_descend_unless_a_key_has_them(read: Callable):
    content = '{"a": {"b": {"c": "deep"}}}\n{"a.b.c": "flat", "a": 1}\n'
    assert read("a.jsonl", content, text_field="a.b.c").documents == ["deep", "flat"]


def test_blank_lines_are_counted(read: Callable):
    found = read("a.jsonl", '\n{"text": "x"}\n  \n')
    assert (found.documents, found.skipped) == (["x"], {"empty": 2})


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        ('{"txt": "x", "id": 3}', "no_field", r"the record has no 'text'. Did you mean 'txt'\? Its keys: txt, id"),
        ("{}", "no_field", "has no 'text'. Its keys: none"),
        ('["text"]', "no_field", r"the record is \[\"text\"\], not an object"),
        ('{"text": null}', "not_text", "'text' is null, not a string"),
        ('{"text": ["a", "b"]}', "not_text", r"'text' is \[\"a\", \"b\"\], not a string"),
        ('{"text": "cut', "not_json", r"is not JSON \(Unterminated string"),
        ("plain text", "not_json", "'plain text' is not JSON"),
        ('[{"text": "x"},', "not_json", "one object a line"),
        ("[" * 100_000, "not_json", "one object a line"),
        ('{"text": ' + "[" * 5_000 + "]" * 5_000 + "}", "not_json", "nested more than 100 deep"),
        ('{"text": ' + "[" * 950 + "]" * 950 + "}", "not_json", "nested more than 100 deep"),
        (r'{"text": "half \ud83d of a pair"}', "not_unicode", r"\\ud83d"),
        (r'{"text": "a \u0000 b"}', "nul_character", "NUL"),
    ],
)
def test_a_bad_line_is_an_error_with_its_number_or_skipped(read: Callable, line: str, reason: str, message: str):
    content = f'{{"text": "good"}}\n{line}\n{{"text": "also good"}}\n'
    with pytest.raises(DataError, match=message) as failure:
        read("a.jsonl", content)
    assert failure.value.location == "a.jsonl, line 2"
    assert len(str(failure.value)) < 400
    found = read("a.jsonl", content, on_error="skip")
    assert (found.documents, found.skipped) == (["good", "also good"], {reason: 1})


def test_a_missing_inner_key_names_the_place(read: Callable):
    with pytest.raises(DataError, match=r"'a' has no 'b'\. Its keys: x"):
        read("a.jsonl", '{"a": {"x": 1}}', text_field="a.b")
    with pytest.raises(DataError, match="'a' is 1, not an object with the key 'b'"):
        read("a.jsonl", '{"a": 1}', text_field="a.b")
