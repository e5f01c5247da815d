"""Tagging entities: the formats of files, and strict scores equal to seqeval's."""

from __future__ import annotations

import gzip
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpulm.errors import DataError
from tpulm.finetuning import tagging
from tpulm.finetuning.tagging import EntityTagging
from tpulm.labelled import Columns, examples_of
from tpulm.labelled.entities import Span, TagScheme, character_scores, entity_counts, entity_scores, read_columns, spans_of

NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def written(path: Path, rows: list[Any]) -> Path:
    """A file of these rows as JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def random_tags(rng: np.random.Generator, rows: int) -> list[list[str]]:
    return [[NAMES[index] for index in rng.integers(0, 5, rng.integers(1, 9))] for _ in range(rows)]


@pytest.mark.needs_peer
def test_scores_are_those_of_seqeval_on_random_tags() -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    rng, scheme = np.random.default_rng(0), TagScheme(NAMES)
    for _ in range(150):
        true = random_tags(rng, 4)
        said = [[tag if rng.random() < 0.6 else NAMES[rng.integers(5)] for tag in row] for row in true]
        labels, classes = np.zeros((4, 9 + len(NAMES)), np.int32), np.zeros((4, 9), np.int64)
        labels[:, :9] = -1
        for number, (one, other) in enumerate(zip(true, said, strict=True)):
            labels[number, : len(one)] = [NAMES.index(tag) for tag in one]
            classes[number, : len(one)] = [NAMES.index(tag) for tag in other]
        found = entity_scores(scheme, labels, classes)
        scores = (seqeval.f1_score, seqeval.precision_score, seqeval.recall_score)
        expected = [score(true, said, zero_division=0) for score in scores]
        expected.append(seqeval.f1_score(true, said, average="macro", zero_division=0))
        np.testing.assert_allclose(found[:4], expected, atol=1e-12)
        counts, _ = entity_counts(scheme, labels, classes)
        of_types = seqeval.classification_report(true, said, output_dict=True, zero_division=0)
        for kind, (right, said_so, there) in zip(scheme.types, counts.tolist(), strict=True):
            if said_so or there:
                of = of_types[kind]
                assert there == of["support"] and right == round(of["recall"] * there) == round(of["precision"] * said_so)


@pytest.mark.needs_peer
def test_scores_of_characters_are_klues_on_random_tags() -> None:
    """Its two lines, seqeval's f1_score(average="macro", mode="strict", scheme=IOB2) and scikit-learn's f1_score(labels=all,
    average="macro", zero_division=1), of tags that tokens of one to three characters give."""
    seqeval, sklearn = pytest.importorskip("seqeval.metrics"), pytest.importorskip("sklearn.metrics")
    iob2 = pytest.importorskip("seqeval.scheme").IOB2
    rng, scheme = np.random.default_rng(0), TagScheme(NAMES)
    for _ in range(60):
        rows = [[row, rng.integers(1, 4, len(row))] for row in random_tags(rng, 4)]
        texts, spans, true, said = list[str](), list[list[Span]](), list[list[str]](), list[list[str]]()
        predicted, tokens = np.zeros((4, 9), np.int64), list[np.ndarray]()
        for number, (tags, sizes) in enumerate(rows):
            ends = np.cumsum(sizes)
            tokens.append(np.stack([ends - sizes, ends], axis=1))
            characters = rng.choice(["x", " "], ends[-1], p=[0.9, 0.1])
            characters[ends - sizes] = "x"  # a token begins with a letter
            texts.append("".join(characters))
            spans.append([Span(int(ends[a] - sizes[a]), int(ends[b - 1]), kind) for a, b, kind in spans_of(tags)])
            gold = ["O"] * len(characters)
            for begin, end, kind in spans[-1]:
                gold[begin:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - begin - 1)]
            changed = [tag if rng.random() < 0.6 else NAMES[rng.integers(5)] for tag in tags]
            predicted[number, : len(tags)] = [NAMES.index(tag) for tag in changed]
            of_tokens = ([tag, *[tag.replace("B-", "I-")] * (size - 1)] for tag, size in zip(changed, sizes, strict=True))
            each = [part for parts in of_tokens for part in parts]
            for kept, whole in ((true, gold), (said, each)):
                kept.append([tag for tag, one in zip(whole, characters, strict=True) if one != " "])
        starts = np.concatenate([[0], np.cumsum([len(tags) for tags, _ in rows])])
        found = character_scores(scheme, texts, spans, predicted, starts, np.concatenate(tokens))
        strict = seqeval.f1_score(true, said, average="macro", mode="strict", scheme=iob2, zero_division=0)
        flat = [[tag for row in tags for tag in row] for tags in (true, said)]
        tags = sklearn.f1_score(*flat, labels=list(NAMES), average="macro", zero_division=1)
        np.testing.assert_allclose(found, [strict, tags], atol=1e-12)


def test_tags_without_a_beginning_begin_an_entity() -> None:
    assert spans_of(["B-X", "I-X", "O", "I-Y", "S-X", "E-X"]) == [(0, 2, "X"), (3, 4, "Y"), (4, 5, "X"), (5, 6, "X")]


def test_an_entity_inside_of_a_token_or_cut_off_counts_as_missed() -> None:
    scheme, tokens = TagScheme.of({"X", "Y"}), np.array([[0, 0], [0, 3], [3, 5], [0, 0]])
    spans = [Span(0, 2, "X"), Span(3, 5, "X"), Span(7, 9, "Y")]
    labels, lost = scheme.encode(spans, tokens)
    assert labels.tolist() == [-1, 1 + 5, 1, -1] and lost.tolist() == [0, 0, 0, 1, 0]  # O, B-X, I-X, B-Y, I-Y
    found = entity_scores(scheme, np.concatenate([labels, lost])[None], np.array([[0, 1, 1, 0]]))
    # two are said, one of them right; three are there; of X alone F1 is 2 / 4, of Y 0
    assert found == (pytest.approx(0.4), 0.5, pytest.approx(1 / 3), 0.25, pytest.approx(2 / 3))


def test_only_tabs_and_ascii_blanks_separate_columns(tmp_path: Path) -> None:
    """As in CoNLL-2003's and CoNLL-U's definitions."""
    for blank in "\u00a0\u202f\u2009\u0085\u3000\u200b":
        for gap in (" ", "\t"):
            content = f"In{gap}O\r\n10{blank}000{gap}B-NUM \r\nyears{gap}O\r\n"
            (tmp_path / "a.conll").write_text(content, encoding="utf-8", newline="")
            found = read_columns(tmp_path / "a.conll")
            assert (found.texts, found.labels) == ([f"In 10{blank}000 years"], [[(3, 9, "NUM")]])


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("# id 7\tdomain=x\nOslo _ _ B-LOC\nis _ _ O\n", ["Oslo is"]),
        ("# sent_id = 1\n# text = group O\n1\tOslo\tB-LOC\n2\tis\tO\n", ["Oslo is"]),
        ("x O\n## O\n# O\ny B-LOC\n", ["x ## # y"]),
        ("token label O\ny N B-LOC\n", ["token y"]),
        ("1\tOslo\tB-LOC\n2\tis\tO\n\n1\tRome\tB-LOC\n", ["Oslo is", "Rome"]),
        ("1-2\tzum\t_\n1\tzu\tO\n2\tdem\tO\n2.1\tx\t_\n3\tTor\tB-LOC\n", ["zu dem Tor"]),
        ("1 CD O\nmay MD O\n\n2 CD B-NUM\n", ["1 may", "2"]),
        ("EU NNP B-ORG\nwon VBD O\n6-4 CD O\n3.5 CD B-NUM\n", ["EU won 6-4 3.5"]),  # CoNLL-2003 is full of such
        ("3.5 CD B-NUM\n\n1 CD O\n6-4 CD O\n\nEU NNP B-ORG\n", ["3.5", "1 6-4", "EU"]),
        ("1.\tOslo\tB-LOC\n2.\tis\tO\n", ["Oslo is"]),
        ("# global.columns = ID FORM NER\n1\tOslo\tB-LOC\n2\tis\tO\n", ["Oslo is"]),  # CoNLL-U Plus
        ("#id=1\nOslo B-LOC\n\n#text=Rome\nRome B-LOC\n", ["Oslo", "Rome"]),
        ("\tOslo NNP B-LOC\n\tis VB O\n", ["Oslo is"]),  # flairNLP/flair issue 223
        ("Oslo\tB-LOC\n\t\nRome\tB-LOC\n", ["Oslo", "Rome"]),  # EmilStenstrom/conllu issue 54
    ],
)
def test_comments_and_ids_are_no_words(tmp_path: Path, content: str, texts: list[str]) -> None:
    (tmp_path / "a.conll").write_text(content)
    (tmp_path / "b.conll").write_text(content, "utf-16")
    assert read_columns(tmp_path / "a.conll").texts == texts
    assert read_columns(tmp_path / "b.conll", Columns(encoding="utf-16")).texts == texts


ANN = (["Ann met Bob", "Oslo"], [[(0, 3, "PER"), (8, 11, "PER")], [(0, 4, "LOC")]])
KAGGLE = """Sentence #,Word,POS,Tag
Sentence: 1,Ann,NNP,B-PER
{0},met,VBD,O
{0},"Bob",NNP,B-PER
Sentence: 2,Oslo,NNP,B-LOC
"""
NUMBERED = "".join(f"{n},{line}\r\n" for n, line in zip(["", 0, 1, 2, 3], KAGGLE.format("").splitlines(), strict=True))


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", KAGGLE.format(""), Columns()),
        ("a.csv", KAGGLE.format("NaN"), Columns()),
        ("a.csv", NUMBERED, Columns()),
        ("a.tsv", "token\tlabel\nAnn\tB-PER\nmet\tO\nBob\tB-PER\n\nOslo\tB-LOC\n", Columns()),
        ("a.txt", "text pos ner\nAnn NNP B-PER\nmet VBD O\nBob NNP B-PER\n\nOslo NNP B-LOC\n", Columns()),
        ("a.csv", "Word;Tag\nAnn;B-PER\nmet;O\nBob;B-PER\n;\nOslo;B-LOC\n", Columns()),
        ("a.csv", "sentence_idx,x,tag,y\n1,Ann,O,B-PER\n1,met,O,O\n1,Bob,O,B-PER\n2,Oslo,O,B-LOC\n", Columns("x", "y")),
        ("a.tsv", "Ann\tB-PER\tN\nmet\tO\tV\nBob\tB-PER\tN\n\nOslo\tB-LOC\tN\n", Columns("1", "2", header=False)),
    ],
)
def test_columns_with_a_header(name: str, content: str, columns: Columns, tmp_path: Path) -> None:
    """Also Kaggle's "Annotated Corpus for Named Entity Recognition", where the first word of a sentence has its number."""
    (tmp_path / name).write_text(content)
    found = EntityTagging().read(tmp_path / name, columns)
    assert (found.texts, found.labels) == ANN


def test_a_line_of_a_csv_that_is_no_word_and_tag_is_refused(tmp_path: Path) -> None:
    for line in ("Ann,Lee,B-PER,x", '"Ann,B-PER', "Ann", ",O"):
        (tmp_path / "a.csv").write_text(f"word,tag\n{line}\n\nOslo,B-LOC\n")
        with pytest.raises(DataError, match=r"a\.csv, line 2"):
            read_columns(tmp_path / "a.csv")
        assert read_columns(tmp_path / "a.csv", on_error="skip").skipped == {"malformed_row": 1}
    (tmp_path / "b.csv").write_text(f'{KAGGLE.format("")},"met,VBD,O\n,Ann,NNP,O\nSentence: 3,x,N,O\n')
    found = read_columns(tmp_path / "b.csv", on_error="skip")
    assert found.texts == ["Ann met Bob", "x"] and found.skipped == {"malformed_row": 1}  # with its whole sentence
    with pytest.raises(DataError, match="'ner'"):
        read_columns(tmp_path / "a.csv", Columns(label="ner"))


WORDS = [(["Ann", "met", "Bob"], ["B-PER", "O", "B-PER"]), (["Oslo"], ["B-LOC"])]


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([{"id": "0", "tokens": words, "ner_tags": tags} for words, tags in WORDS], Columns()),
        ([{"text": "x", "tokens": words, "tags": tags} for words, tags in WORDS], Columns()),
        ([{"words": words, "chunk_tags": tags, "labels": []} for words, tags in WORDS], Columns(label="chunk_tags")),
        ([{"a": words, "b": tags} for words, tags in WORDS], Columns("a", "b")),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_words_and_their_tags_as_the_hub_has_them(rows: list[Any], columns: Columns, form: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"a.{form}", rows)
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = EntityTagging().read(path, columns)
    assert (found.texts, found.labels) == ANN
    assert EntityTagging().take(WORDS).texts == ANN[0]


def test_words_and_tags_that_are_no_example() -> None:
    cases: list[tuple[Any, Any, str]] = [
        *((["Ann", "met"], tags, "no_label") for tags in ([1, 0], ["B-PER"], "B-PER", ["NNP", "VBD"])),
        (["Ann", " "], ["O", "B-PER"], "no_label"),
        (["Ann", None], ["B-PER", "O"], "not_text"),
        *((words, ["O"] * len(words), "empty") for words in ([" ", ""], ["\u3000"], [])),
        (["Ann", "\0"], ["O", "O"], "nul_character"),
    ]
    for words, tags, reason in cases:
        fault = EntityTagging().fault({"text": words, "label": tags})
        assert fault is not None and fault[0] == reason


def test_exports_of_annotation_tools(tmp_path: Path) -> None:
    """doccano's JSONL with and without relations and of version 1.0, and Prodigy's: offsets are of Python's strings."""
    entity, token = {"id": 1, "label": "PER", "start_offset": 2, "end_offset": 5}, {"text": "😀", "start": 0, "end": 1, "id": 0}
    for row in (
        {"id": 7, "entities": [entity], "relations": [], "Comments": []},
        {"id": 7, "label": [[2, 5, "PER"]], "Comments": []},
        {"id": 7, "labels": [[2, 5, "PER"]]},
        {"tokens": [token], "spans": [{"start": 2, "end": 5, "label": "PER"}]},
    ):
        found = EntityTagging().read(written(tmp_path / "a.jsonl", [{"text": "😀 Ann", **row}]), Columns())
        assert tagging._spans(found) == [[(2, 5, "PER")]]  # pyright: ignore[reportPrivateUsage]


def test_ids_without_words_or_with_two_columns_of_tags_are_refused(tmp_path: Path) -> None:
    for content, said in (
        ("1\tB-LOC\n2\tO\n\n1\tO\n2\tO\n", "first column"),
        ("1\tOslo\tB-LOC\tO\n2\tis\tO\tO\n", "last two columns"),
        ("Oslo NNP B-LOC\n\n1 CD O\n3.5 CD CD\n", "the tag of"),
    ):
        (tmp_path / "a.conll").write_text(content)
        with pytest.raises(DataError, match=said):
            read_columns(tmp_path / "a.conll")


def test_a_carriage_return_alone_ends_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_bytes(b"a\tO\rb\tB-X\r")
    with pytest.raises(DataError, match="line 1: a carriage return alone"):
        read_columns(tmp_path / "a.conll")


def test_schemes_of_tags(tmp_path: Path) -> None:
    """The entities of seqeval's Entities(tags, scheme=BILOU) and, of tags without types, of its get_entities."""
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    tags = "B O B I I B S E"
    (tmp_path / "a.conll").write_text("".join(f"w {tag}\n" for tag in tags.split()))
    expected = [(2 * first, 2 * last + 1, kind) for kind, first, last in entities(tags.split())]
    assert read_columns(tmp_path / "a.conll").labels == [expected]
    schemes = "U-LOC O B-LOC I-LOC L-LOC", "S-LOC O B-LOC I-LOC E-LOC", "LOC-B O LOC-B LOC-I LOC-I", "LOC_B - LOC_B LOC_I LOC_I"
    for tags in schemes:
        (tmp_path / "a.conll").write_text("".join(f"w {tag}\n" for tag in tags.split()))
        assert read_columns(tmp_path / "a.conll").labels == [[(0, 1, "LOC"), (4, 9, "LOC")]]


def test_a_type_is_one_in_both_forms_of_unicode() -> None:
    task, types = EntityTagging(), [unicodedata.normalize(form, "인물") for form in ("NFC", "NFD")]
    names = task.learn(examples_of([("Ann met Bob", [[0, 3, types[0]], [8, 11, f"\u200b{types[1]}"]])], fault=task.fault)).names
    assert names == ("O", f"B-{types[0]}", f"I-{types[0]}")


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([[0, 3, "PER"], [8, 11, "PER"], [0, 3, "PER"]], 2),
        ([{"start": 0, "end": 4, "label": "PER"}, [0, 3, "PER"]], 1),  # but for a blank at its end
        ([[0, 4, "PER"], [3, 7, "VERB"]], 2),  # which share a blank alone
        ([[0, 11, "SENTENCE"], [4, 7, "VERB"]], None),  # as spaCy: E103, a token can only be part of one entity
        ([[4, 7, "VERB"], [0, 3, "PER"], [0, 3, "ORG"]], None),
        ([[0, 6, "PER"], [5, 11, "PER"]], None),
    ],
)
def test_a_span_counts_once_and_none_overlap(spans: list[Any], kept: int | None) -> None:
    task = EntityTagging()
    fault = task.fault({"text": "Ann met Bob", "label": spans})
    assert (fault is None) == (kept is not None)
    if fault is None:
        (found,) = tagging._spans(examples_of([("Ann met Bob", spans)], fault=task.fault))  # pyright: ignore[reportPrivateUsage]
        assert len(found) == kept
    else:
        assert fault[0] == "no_label" and "overlap" in fault[1]


def test_columns_of_words_and_of_characters(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\nNew JJ B-LOC\nYork NN I-LOC\n\nNo O\n")
    found = read_columns(tmp_path / "a.conll")
    assert found.texts == ["EU rejects New York", "No"] and found.labels == [[(0, 2, "ORG"), (11, 19, "LOC")], []]
    assert found.places[1].endswith("a.conll, line 8")
    # of the characters' blanks the second sentence has none, as in klue/klue
    (tmp_path / "b.tsv").write_text("## id\t<4일:DT> 현\n4\tB-DT\n일\tI-DT\n \tO\n현\tO\n\n네\tO\n!\tO\n")
    found = read_columns(tmp_path / "b.tsv")
    assert found.texts == ["4일 현", "네!"] and found.labels == [[(0, 2, "DT")], []]
    (tmp_path / "c.tsv").write_text("good\tPER\n\n\u3000\tO\n\nfilm\tO\n")
    with pytest.raises(DataError, match=r'c.tsv, line 1: .*"PER"'):
        read_columns(tmp_path / "c.tsv")
    assert read_columns(tmp_path / "c.tsv", on_error="skip").skipped == {"no_label": 1, "empty": 1}


def test_klue(real_data: Path, tmp_path: Path) -> None:
    """The file's comments mark the entities in the text."""
    with gzip.open(real_data / "ko" / "klue_ner_4000.tsv.gz", "rt", encoding="utf-8") as file:
        sentences = file.read().split("\n\n")[:800]
    (tmp_path / "klue.tsv").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    heads = [line.split("\t", 1)[1] for one in sentences for line in one.splitlines() if line.startswith("## klue-ner")]
    found = read_columns(tmp_path / "klue.tsv")
    assert len(found) == len(heads) > 790
    for text, spans, head in zip(found.texts, found.labels or [], heads, strict=True):
        assert all(f"<{text[begin:end]}:{kind}>" in head for begin, end, kind in spans)
