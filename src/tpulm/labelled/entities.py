"""Texts with labelled spans: CoNLL and KLUE files, entities of tags, tags of tokens, and strict scores."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from tpulm.corpus.documents import UNDECODABLE, Fault, Faults, Wording, find_fault
from tpulm.corpus.paths import find_paths
from tpulm.corpus.readers.jsonl import show
from tpulm.corpus.readers.lines import ByteStream, find_codec, read_lines, suffixes
from tpulm.corpus.readers.tables import LINE_ENDS
from tpulm.errors import ConfigError, DataError
from tpulm.labelled.examples import Columns, Examples, label_text, missing_column, text_fault
from tpulm.labelled.records import WORDING, OnError, new_faults
from tpulm.labelled.rows import touching
from tpulm.readable import decimals
from tpulm.storage.paths import printable

OUTSIDE: Final = "O"
NO_CLASS: Final = -1  # the class of [CLS], [SEP], padding and tokens without visible characters


class Span(NamedTuple):
    """A span of characters of a text, or of tokens of a row, and its type."""

    begin: int
    end: int
    type: str


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The entities of tags (B-X, I-X, O; also E-X and S-X), as conlleval finds them: an I-X that follows no X begins one."""
    spans, begin = list[Span](), 0
    for at, (before, here) in enumerate(zip([OUTSIDE, *tags], [*tags, OUTSIDE], strict=True)):
        if before[2:] != here[2:] or here[:1] in "BSO" or before[:1] in "ESO":
            if before != OUTSIDE:
                spans.append(Span(begin, at, before[2:]))
            begin = at
    return spans


# -- reading ----------------------------------------------------------------------------------------------------------------


def span_fault(label: Any, text: str) -> Fault:
    """Why a value is not a list of the text's spans, [[0, 5, "PERSON"], …] or as `as_span` takes them."""
    if not isinstance(label, list | tuple):
        return "no_label", f'the label is {show(label)}; a list of spans is expected, such as [[0, 5, "PERSON"]].'
    spans = list[Span]()
    for one in label:
        try:
            spans.append(span := as_span(one))
        except (KeyError, TypeError):
            span = None
        if span is None or not _is_span(span):
            return "no_label", f'a span is begin, end and type, such as [0, 5, "PERSON"], not {show(one)}.'
        if span.end > len(text) or not text[span.begin : span.end].strip():
            return "no_label", (
                f"an entity is from {span.begin} to {span.end}, and the text has {len(text)} characters (or only blanks there)."
            )
    for one, other in pairwise(sorted({bare_span(span, text) for span in spans})):
        if other.begin < one.end:
            return (
                "no_label",
                f"the entities {show(one)} and {show(other)} overlap; a token has one class, so keep one of them.",
            )
    return None


def as_span(value: Any) -> Span:
    """From [0, 5, "PERSON"], {"start": 0, "end": 5, "label": "PERSON"}, or doccano's "start_offset" and "end_offset"."""
    if isinstance(value, dict):
        value = [value.get(f"{name}_offset", value.get(name)) for name in ("start", "end")] + [value["label"]]
    return Span(*value)


def bare_span(span: Span, text: str) -> Span:
    """A span without blanks at its ends, and its type as types are compared."""
    covered = text[span.begin : span.end]
    begin, end = span.begin + len(covered) - len(covered.lstrip()), span.begin + len(covered.rstrip())
    return Span(begin, end, label_text(span.type))


def _is_span(span: Span) -> bool:
    whole = type(span.begin) is int and type(span.end) is int and 0 <= span.begin < span.end
    return whole and isinstance(span.type, str) and bool(label_text(span.type))


def shown_label(label: Any, text: str) -> str:
    """A label or a prediction of a task as people read it: entities by their words."""
    if isinstance(label, list) and all(isinstance(one, list) for one in label):
        return ", ".join(f"{kind} '{text[begin:end]}'" for begin, end, kind in label) or "(none)"
    return decimals(label, places=3) if isinstance(label, float) else str(label)


def words_fault(words: Sequence[Any], tags: Any) -> Fault:
    """Why words and their tags are not those of a text."""
    if not isinstance(tags, list | tuple) or len(tags) != len(words):
        return "no_label", f"the {len(words)} words are {show(words)}, and the tags {show(tags)}; each word has a tag."
    for word, tag in zip(words, tags, strict=True):
        if not isinstance(word, str):
            return "not_text", f"a word is {show(word)}, not a string."
        if type(tag) is int:
            return "no_label", f"a tag is the number {tag}, and the file does not name it: {_NAME_TAGS}"
        if not isinstance(tag, str) or not _tag(tag):
            return "no_label", f"a tag is {show(tag)}; {_TAGS}"
    text, spans = _joined(words, tags, " ")
    return text_fault(text, "text") or span_fault(spans, text)


def joined(examples: Examples) -> Examples:
    """With texts in place of lists of words, and spans in place of their tags.

    If words are single characters, some of them blanks (KLUE), a text consists of these characters; else of the words with
    spaces between them.
    """
    texts: list[Any] = examples.texts
    words = {word for text in texts if not isinstance(text, str) for word in text}
    if not words or examples.labels is None:
        return examples
    between = "" if max(map(len, words)) == 1 and any(map(str.isspace, words)) else " "
    both = [
        (text, label) if isinstance(text, str) else _joined(text, label, between)
        for text, label in zip(texts, examples.labels, strict=True)
    ]
    return replace(examples, texts=[text for text, _ in both], labels=[spans for _, spans in both])


def _joined(words: Sequence[str], tags: Sequence[str], between: str) -> tuple[str, list[Span]]:
    begins = [0, *accumulate(len(word) + len(between) for word in words)]
    spans = spans_of([_tag(tag) for tag in tags])
    return between.join(words), [Span(begins[a], begins[b] - len(between), kind) for a, b, kind in spans]


def read_columns(
    path: str | os.PathLike[str], columns: Columns | None = None, *, on_error: OnError = "stop", wording: Wording = WORDING
) -> Examples:
    """Sentences separated by blank lines, with a word and its tag, the first and the last column, on each line; see `joined`.

    Columns are separated by a tab, or by ASCII blanks. A first line that names the columns of words and tags (as `columns`, or
    by a usual name) is a header; below it commas and semicolons separate columns, too, and one may number the sentences. A
    first column that counts the words of every sentence is not the words: the second is. "-DOCSTART-", and lines of "# …",
    "## …" and "#name=…" that are no word and tag with as many columns as the others, are comments. Raises DataError, or counts
    in `skipped`, like `read_examples`.
    """
    faults, sentences = new_faults(on_error, wording=wording), list[_Sentence]()
    for file in find_paths(os.fspath(path)):
        sentences += _without_ids(
            [one for block in _blocks(file, columns or Columns(), faults) for one in _sentences(block, faults)]
        )
    if not sentences:
        raise DataError("no sentence with tags is in it: a word, a tab and its tag a line", location=os.fspath(path))
    words: list[Any] = [[row[0] for row in one.rows] for one in sentences]
    tags = [[row[-1] for row in one.rows] for one in sentences]
    return joined(Examples(words, None, tags, [one.place for one in sentences], faults.skipped))


class _Line(NamedTuple):
    number: int
    cells: list[str]
    text: str


class _Sentence(NamedTuple):
    place: str
    # The word, other columns, the tag; without multiword tokens and empty nodes, if the first column may be ids.
    rows: list[list[str]]
    every_row: list[list[str]]


class _LineLayout(NamedTuple):
    """The columns of a file that are read; of 0 columns all are."""

    between: str = ""  # a tab, or blanks
    columns: int = 0
    word: int = 0
    tag: int = -1
    sentence: int | None = None  # numbers the sentences, in each or in the first of their lines

    def split(self, line: str) -> list[str]:
        bare = line.rstrip("\r\n\t ")
        if not self.between:
            inner = bare.strip("\t ")
            by_tabs = "\t" in inner or ("\t" in bare and " " not in inner)  # a line that is indented by one has other columns
            return bare.split("\t") if by_tabs else re.split(" +", inner)
        try:
            return next(csv.reader([bare], delimiter=self.between, strict=True), [""])
        except csv.Error:
            return [bare]

    def chosen(self, cells: list[str]) -> list[str]:
        """The word and its tag, or all columns; those of a line with too few or too many are one."""
        if not self.columns:
            return cells
        return [cells[self.word], cells[self.tag]] if max(self.word, self.tag) < len(cells) <= self.columns else cells[:1]


def _layout(line: str, columns: Columns, location: str) -> tuple[_LineLayout, bool]:
    """The layout of a file by its first line, and whether that is a header."""
    named = (columns.text, columns.label) != ("text", "label")
    if not columns.header:
        names = columns.needed(labelled=True) if named else None
        return _LineLayout("", sys.maxsize, int(names["text"]) - 1, int(names["label"]) - 1) if names else _LineLayout(), False
    splits = {between: [cell.strip() for cell in _LineLayout(between).split(line)] for between in ("", ",", ";")}
    for between, cells in splits.items():
        word, tag = _column(cells, columns.text, _WORDS), _column(cells, columns.label, _TAG_COLUMNS)
        if word is not None and tag is not None and not _tag(cells[-1]):
            return _LineLayout(between, len(cells), word, tag, _column(cells, "sentence", _SENTENCES)), True
    if named:
        cells = max(splits.values(), key=len)
        role = "label" if _column(cells, columns.text, _WORDS) is not None else "text"
        raise DataError(missing_column(cells, getattr(columns, role), role), location=location)
    return _LineLayout(), False


def _column(cells: list[str], name: str, usual: Sequence[str]) -> int | None:
    """The place of the column of that name or, if it is the default, of a usual one."""
    lower = [cell.lower() for cell in cells]
    others = usual if name in ("text", "label", "sentence") else ()
    return cells.index(name) if name in cells else next((lower.index(one) for one in others if one in lower), None)


def _blocks(path: str, columns: Columns, faults: Faults) -> Iterator[list[_Line]]:
    """The lines of a file up to a blank one, -DOCSTART- or another number of the sentence."""
    faults.name = printable(path)
    stream = ByteStream(path, suffixes(path)[1], faults)
    layout, begun = _LineLayout(), False
    block, sentence = list[_Line](), ""
    for lines in read_lines(stream, find_codec(columns.encoding), faults):
        for number, line in enumerate(lines.split(), lines.first):
            if not begun and line.strip() and not _COMMENT.match(line):
                begun, (layout, is_header) = True, _layout(line, columns, f"{faults.name}, line {number}")
                if is_header:
                    continue
            cells = layout.split(line)
            ends = not any(cells) or line.startswith("-DOCSTART-")
            chosen, place = layout.chosen(cells), layout.sentence
            key = cells[place].lower() if place is not None and place < len(cells) and len(chosen) > 1 else ""
            if ends or key not in ("", "nan", sentence):
                yield block
                block, sentence = [], key
            if not ends:
                block.append(_Line(number, chosen, line))
    yield block


def _sentences(block: list[_Line], faults: Faults) -> Iterator[_Sentence]:
    """The sentences of a block, which comments separate."""
    widths = {len(one.cells) for one in block if not _COMMENT.match(one.text)}

    def is_comment(line: _Line) -> bool:
        fits = len(line.cells) in (widths or {len(line.cells)}) and _tag(line.cells[-1])
        return _COMMENT.match(line.text) is not None and not fits

    for comment, lines in groupby(block, is_comment):
        if not comment and (sentence := _sentence(list(lines), faults)) is not None:
            yield sentence


def _sentence(lines: list[_Line], faults: Faults) -> _Sentence | None:
    """None, after a fault of a line or of the whole sentence."""
    every_row = [one.cells for one in lines]
    counted = [row for row in every_row if not _NO_WORD.fullmatch(row[0]) or len(row) < 3]
    are_ids = _first_id([row[0] for row in counted]) is not None
    rows = counted if are_ids else every_row
    line_faults = ((fault, one.number) for one in lines if (fault := _line_fault(one.cells, one.text, are_ids)))
    fault, number = next(line_faults, (None, lines[0].number))
    if fault := fault or words_fault([row[0] for row in rows], [row[-1] for row in rows]):
        return faults.add(*fault, f"line {number}")
    return _Sentence(f"{faults.name}, line {number}", rows, every_row)


def _first_id(words: list[str]) -> int | None:
    """The first of numbers that count, such as 1 of "1", "2", "3" or "1.", "2."; None if these are others, or none."""
    numbers = [word.removesuffix(".") for word in words]
    first = int(numbers[0]) if numbers and numbers[0].isdecimal() else -1
    return first if first >= 0 and numbers == [str(number) for number in range(first, first + len(words))] else None


def _without_ids(sentences: list[_Sentence]) -> list[_Sentence]:
    """With the second column as words, if the first one counts them in every sentence. Raises DataError if there is none."""
    last = 0
    for one in sentences:
        first = _first_id([row[0] for row in one.rows])
        if first is None or first not in (0, 1, last + 1):
            return [_whole(one) for one in sentences]
        last = first + len(one.rows) - 1
    rows = [row for one in sentences for row in one.rows]
    if len(rows) < 2:
        return sentences
    if any(len(row) < 3 or not row[1] for row in rows):
        raise DataError("its first column counts the words, and no other column holds them", location=sentences[0].place)
    if all(len(row) > 3 and _tag(row[-2]) for row in rows) and any(_tag(row[-2]) != OUTSIDE for row in rows):
        raise DataError(
            "its last two columns are both tags, and one is learnt; keep one of them (GermEval's outer entities: cut -f 1-3)",
            location=sentences[0].place,
        )
    return [one._replace(rows=[row[1:] for row in one.rows]) for one in sentences]


def _whole(sentence: _Sentence) -> _Sentence:
    """With the lines that would be no words if the first column were ids. Raises DataError for one without a tag."""
    for row in sentence.every_row:
        if not _tag(row[-1]):
            raise DataError(f"the tag of {show(row[0])} is {show(row[-1])}; {_TAGS}", location=sentence.place)
    return sentence._replace(rows=sentence.every_row)


_WORDS: Final = ("word", "words", "token", "tokens", "form", "text")  # usual names of columns, of several the first
_TAG_COLUMNS: Final = ("ner_tags", "ner_tag", "ner", "tags", "tag", "labels", "label")
_SENTENCES: Final = ("sentence #", "sentence_id", "sentence_idx", "sentence id", "sent_id")
_TAGS: Final = "tags are O, B-TYPE and I-TYPE (E-TYPE, S-TYPE, BILOU and TYPE-B too)."
_NAME_TAGS: Final = "write names instead, or the data set as Parquet (dataset.to_parquet), which keeps them."
_COMMENT: Final = re.compile(r"##?[ \t]|#[\w.]+ *=")  # unless "#" is a word, with as many columns as the others
_NO_WORD: Final = re.compile(r"\d+-\d+|\d+\.\d+")  # CoNLL-U's ids of multiword tokens and of empty nodes
_LIKE: Final = str.maketrans("LUMW", "ESIS")  # BILOU and BMEWO as IOBES


def _tag(tag: str) -> str:
    """O, B-TYPE, I-TYPE, E-TYPE or S-TYPE, also of BILOU, BMEWO, B, TYPE-B and TYPE_B with "-" for O; "" if it is not a tag."""
    tag = tag.strip()
    if tag in (OUTSIDE, "-"):
        return OUTSIDE
    if re.fullmatch("[BIES]", tag):
        return f"{tag}-_"  # the type that seqeval gives it
    if re.match("[BIESLUMW]-.", tag):
        return tag[0].translate(_LIKE) + tag[1:]
    return f"{tag[-1].translate(_LIKE)}-{tag[:-2]}" if re.fullmatch(r"\S+[-_][BIESLUMW]", tag) else ""


def _line_fault(parts: list[str], line: str, are_ids: bool) -> Fault:
    if UNDECODABLE in line or "\0" in line:
        return find_fault(line)
    if "\r" in line.rstrip("\r\n"):
        return "malformed_row", f"a carriage return alone; {LINE_ENDS}"
    if len(parts) < 2 or not parts[0]:
        return "malformed_row", (
            f"it is {show(line)}; a word and its tag are expected, with a tab or a blank between them (below a header such as "
            "word,tag commas or semicolons, too)."
        )
    if not _tag(parts[-1]) and not (are_ids and _NO_WORD.fullmatch(parts[0])):
        return "no_label", f"its tag is {show(parts[-1])}; {_TAGS}"
    return None


# -- tags of tokens -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TagScheme:
    """The classes of tokens: O, and B- and I- for each type of entity. An entity's first token is B-, its others are I-."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, types: set[str]) -> TagScheme:
        return cls((OUTSIDE, *(f"{mark}-{kind}" for kind in sorted(types) for mark in "BI")))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    @cached_property
    def types(self) -> list[str]:
        return sorted({name[2:] for name in self.names if name != OUTSIDE})

    def __post_init__(self) -> None:
        wrong = [name for name in self.names if name != OUTSIDE and name[:2] not in ("B-", "I-")]
        if wrong or OUTSIDE not in self.names:
            raise ConfigError(f"the labels are O, B-TYPE and I-TYPE of each type of entity, not {', '.join(self.names[:9])}")

    def encode(self, spans: Sequence[Span], tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The class of each token, int32 [tokens], and the number of entities left without a token, by first class: int32 [C].

        `tokens` int64 [tokens, 2] are character spans; empty ones have no class. An entity whose ends are not token boundaries
        (it was truncated, or a token holds more) takes its classes + C.
        """
        labels = np.where(tokens[:, 1] > tokens[:, 0], self.ids[OUTSIDE], NO_CLASS).astype(np.int32)
        lost, free = np.zeros(len(self.names), np.int32), labels != NO_CLASS
        for begin, end, kind in spans:
            both = [self.ids[name] for name in (f"B-{kind}", f"I-{kind}") if name in self.ids]
            own = touching(tokens, begin, end)
            own = own[free[own]]
            if not len(own):
                lost[both[0]] += 1
                continue
            exact = tokens[own, 0].min() == begin and tokens[own, 1].max() == end
            labels[own], labels[own[0]] = both[-1], both[0]
            labels[own] += 0 if exact else len(self.names)
            free[own] = False
        return labels, lost

    def decode(self, classes: np.ndarray, tokens: np.ndarray) -> list[list[Any]]:
        """[[begin, end, type], …] in characters, from the classes of a text's tokens."""
        visible = np.flatnonzero(tokens[:, 1] > tokens[:, 0])
        spans = spans_of([self.names[index] for index in classes[visible]])
        return [[int(tokens[visible[a], 0]), int(tokens[visible[b - 1], 1]), kind] for a, b, kind in spans]

    def chunks(self, classes: np.ndarray, first: np.ndarray) -> np.ndarray:
        """int64 [entities, 3]: first token, end (exclusive) and type of the entities in consecutive texts; `first` bool
        [tokens] marks where a text begins. Like `spans_of`."""
        kinds = np.array([-1 if name == OUTSIDE else self.types.index(name[2:]) for name in self.names])[classes]
        begins = np.array([name.startswith("B") for name in self.names])[classes] | first | (kinds != np.roll(kinds, 1))
        edges = np.flatnonzero(begins | (kinds < 0))
        ends = np.append(edges[1:], len(classes))
        chosen = kinds[edges] >= 0
        return np.stack([edges, ends, kinds[edges]], axis=1)[chosen]


class CharacterScores(NamedTuple):
    """Scores over characters, as KLUE computes them: each visible character has a tag."""

    strict_macro_f1: float  # the mean F1 of the types; an entity begins with B- (seqeval: mode="strict", scheme=IOB2)
    character_macro_f1: float  # the mean F1 of the tags, including O; 1 for a tag that neither occurs nor is predicted


def character_scores(
    scheme: TagScheme,
    texts: Sequence[str],
    labels: Sequence[Sequence[Span]],
    predicted: np.ndarray,
    starts: np.ndarray,
    tokens: np.ndarray,
) -> CharacterScores:
    """`predicted` are classes [N, L] of tokens, in row i those of tokens[starts[i]:starts[i + 1]], int64 [T, 2] characters.

    A token's characters after its first are inside of what it begins; characters without a token (of a truncated text) are
    outside. Source: KLUE-benchmark/KLUE-baseline, klue_baseline/metrics/functional.py and models/named_entity_recognition.py
    @443c38b, where [CLS] and [SEP] count as two more characters.
    """
    outside, count = scheme.ids[OUTSIDE], len(scheme.names)
    inside_of = np.array([scheme.ids.get(f"I-{name[2:]}", number) for number, name in enumerate(scheme.names)])
    true, predictions, first = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for number, (text, spans) in enumerate(zip(texts, labels, strict=True)):
        visible = np.array([not one.isspace() for one in text], bool)
        both = np.full((2, len(text)), outside)
        for begin, end, kind in spans:
            if f"B-{kind}" in scheme.ids:
                both[0, begin:end], both[0, begin] = scheme.ids[f"I-{kind}"], scheme.ids[f"B-{kind}"]
        for (begin, end), chosen in zip(tokens[starts[number] : starts[number + 1]], predicted[number], strict=False):
            if end > begin:
                both[1, begin:end], both[1, begin] = inside_of[chosen], chosen
        visible_ids = both[:, visible]
        true.append(visible_ids[0])
        predictions.append(visible_ids[1])
        first.append(np.arange(visible_ids.shape[1]) == 0)
    gold, answers, begins = np.concatenate(true), np.concatenate(predictions), np.concatenate(first)
    starters = np.array([name.startswith("B") for name in scheme.names])
    chunks = [one[starters[classes[one[:, 0]]]] for classes in (gold, answers) for one in [scheme.chunks(classes, begins)]]
    right = set(map(tuple, chunks[0].tolist())) & set(map(tuple, chunks[1].tolist()))
    sizes = [np.bincount(one[:, 2], minlength=len(scheme.types)) for one in chunks]
    hits = np.bincount([kind for _, _, kind in right], minlength=len(scheme.types))
    some = sizes[0] + sizes[1] > 0
    of_types = 2 * hits[some] / (sizes[0] + sizes[1])[some]
    occurs = np.bincount(gold, minlength=count) + np.bincount(answers, minlength=count)
    same = np.bincount(gold[gold == answers], minlength=count)
    of_tags = np.where(occurs > 0, 2 * same / np.maximum(occurs, 1), 1.0)
    return CharacterScores(float(of_types.mean()) if len(of_types) else 0.0, float(of_tags.mean()))


class EntityScores(NamedTuple):
    f1: float  # of whole entities: both ends and the type must be right, as conlleval and seqeval count
    precision: float
    recall: float
    macro_f1: float  # the mean F1 of all types that occur or were predicted
    unaligned: float  # the fraction of true entities that no tokens match exactly


def entity_scores(scheme: TagScheme, labels: np.ndarray, predicted: np.ndarray) -> EntityScores:
    """`labels` int32 [N, L + C]: in each row the result of `TagScheme.encode`; `predicted` classes [N, L]."""
    counts, aligned = entity_counts(scheme, labels, predicted)
    hit, num_predicted, num_true = counts.sum(axis=0)
    some = counts[counts[:, 1:].any(axis=1)]
    return EntityScores(
        f1=float(2 * hit / max(num_predicted + num_true, 1)),
        precision=float(hit / max(num_predicted, 1)),
        recall=float(hit / max(num_true, 1)),
        macro_f1=float((2 * some[:, 0] / some[:, 1:].sum(axis=1)).mean()) if len(some) else 0.0,
        unaligned=float(1 - aligned / num_true) if num_true else 0.0,
    )


def entity_counts(scheme: TagScheme, labels: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, int]:
    """int64 [types, 3]: by type, how many entities were correctly predicted, predicted, and true; and how many true ones tokens
    match exactly."""
    length, count, types = predicted.shape[1], len(scheme.names), len(scheme.types)
    inside = labels[:, :length] != NO_CLASS
    first = np.diff(np.nonzero(inside)[0], prepend=-1) != 0
    true = labels[:, :length][inside]
    gold, chosen = (scheme.chunks(classes, first) for classes in (true % count, predicted[inside]))
    aligned = gold[true[gold[:, 0]] < count]
    answers = set(map(tuple, chosen.tolist()))
    right = aligned[np.array([tuple(one) in answers for one in aligned.tolist()], bool)]
    kinds = np.array([0 if name == OUTSIDE else scheme.types.index(name[2:]) for name in scheme.names])
    lost = np.bincount(kinds, labels[:, length:].sum(axis=0), types).astype(np.int64)
    hits, of_chosen, of_gold = (np.bincount(some[:, 2], minlength=types) for some in (right, chosen, gold))
    return np.stack([hits, of_chosen, of_gold + lost], axis=1), len(aligned)
