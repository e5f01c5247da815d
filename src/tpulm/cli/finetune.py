"""`tpulm finetune` and `tpulm classify`: a classifier from labelled text, and its use."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tpulm.cli.options import (
    Encoding,
    FieldOptions,
    HostOptions,
    SetOptions,
    Track,
    TuningOverrides,
    argument,
    option,
    path_argument,
    path_option,
    rates_of,
    tracked,
)
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say, say_note, wants_json
from tpulm.cli.use import load, warn_of_unknown_text
from tpulm.errors import ConfigError, shorten, suggest
from tpulm.readable import decimals, plural
from tpulm.storage import exists, same_file

if TYPE_CHECKING:
    from tpulm.convert.huggingface import LoadedModel
    from tpulm.finetuning import FinetuneSummary
    from tpulm.labelled import Columns
    from tpulm.labelled.examples import TextRow
    from tpulm.predict.classify import Classified

_SHOWN_MISTAKES, _MOST_CONFUSED, _MOST_CLASSES = 8, 12, 40
_TEXTS_AT_ONCE = 4_096
_COLUMNS = "Columns"
_ROLES = ("text", "label", "pair", "negative")
_TASKS = {"classify": "classification", "regress": "regression"}  # shorter names
_HEADERS = {  # of answers that are more than a label of a text, by the model's head
    "tokens": ("entity", "characters", "text"),
    "spans": ("answer", "characters", "probability"),
    "choice": ("choice", "number", "probability"),
}


def _column(help: str, metavar: str = "NAME") -> Any:
    return option(help, metavar=metavar, panel=_COLUMNS)


PairColumn = Annotated[str | None, _column("The column of the second text, where examples are pairs.")]
ColumnsOfFile = Annotated[
    list[str] | None, _column("Column names of this file alone: text=review, label=stars or pair=…; repeatable.", "ROLE=NAME")
]


@dataclass(frozen=True)
class FileOptions:
    """How files of texts are read."""

    text_column: Annotated[
        str | None, _column("The column of the text. Default: that of fine-tuning; for 'finetune', the task's, such as text.")
    ] = None
    no_header: Annotated[
        bool,
        option(
            "The tsv or csv has no line of names; columns are numbers from 1: --text-column 2.", "--no-header", panel=_COLUMNS
        ),
    ] = False
    format: Annotated[
        Literal["auto", "tsv", "csv", "jsonl", "parquet", "squad"], option("File format; auto: by file name.")
    ] = "auto"
    encoding: Encoding = "utf-8"
    on_error: Annotated[
        Literal["stop", "skip"],
        option("Unusable rows (no text, no label, undecodable bytes): stop with an error, or skip and count them."),
    ] = "stop"

    def columns(self, **others: Any) -> Columns:
        from tpulm.labelled import Columns

        named = {role: name for role, name in {"text": self.text_column, **others}.items() if name is not None}
        return Columns(**named, header=not self.no_header, encoding=self.encoding)


@dataclass(frozen=True)
class TextOptions(FileOptions):
    texts: Annotated[list[str] | None, argument("The texts.", "[TEXT]...")] = None
    input: Annotated[
        PurePath | None, path_option("A file of texts instead: tsv, csv, jsonl or parquet, compressed or not.")
    ] = None

    def __post_init__(self) -> None:
        if (self.input is None) == (not self.texts):
            raise ConfigError("give either texts, or a file with --input")


def finetune(
    model: Annotated[PurePath, path_argument("A work folder, an export, or an imported model.", "MODEL")],
    train: Annotated[PurePath, path_option("Labelled texts: tsv, csv, jsonl or parquet, compressed or not; gs:// too.")],
    output: Annotated[PurePath, path_option("Output folder; continued if begun.", "--output", "-o", metavar="DIR")],
    files: FileOptions,
    training: Annotated[
        SetOptions,
        FieldOptions(
            "tpulm.config:FinetuneConfig",
            ("task", "epochs", "batch_size", "learning_rate", "class_weights", "max_length", "seed", "seeds"),
            panel="Training",
        ),
    ],
    several: HostOptions,
    dev: Annotated[
        PurePath | None, path_option("Validation set, which selects the best epoch. Default: a part of the training file.")
    ] = None,
    test: Annotated[PurePath | None, path_option("Test set: scored once at the end, never used for selection.")] = None,
    label_column: Annotated[str | None, _column("The column of the label. Default: the task's, such as label.")] = None,
    pair_column: PairColumn = None,
    negative_column: Annotated[str | None, _column("The column of hard negatives (--task retrieve).")] = None,
    label_separator: Annotated[
        str | None, _column("Separates the labels of a text, such as ';' (--task multilabel).", "TEXT")
    ] = None,
    dev_column: ColumnsOfFile = None,
    test_column: ColumnsOfFile = None,
    regression: Annotated[
        bool, option("Labels are numbers, not classes: short for --task regression.", "--regression")
    ] = False,
    learning_rates: Annotated[
        str | None, option("Try each, such as 5e-5,3e-4,1e-3, and keep the best on dev.", metavar="A,B", panel="Training")
    ] = None,
    overwrite: Annotated[bool, option("Begin again where DIR was begun with other inputs or settings.", "--overwrite")] = False,
    track: Track = None,
    overrides: TuningOverrides = None,
) -> None:
    """Train a text classifier from a pretrained model and labelled texts; --regression for numbers, --pair-column for pairs.

    tpulm finetune w/export --train reviews.tsv.gz --text-column document --output sentiment

    tpulm classify sentiment "이 영화 정말 재미있다"

    The best epoch is chosen on dev, never on test. Stop it or kill it: the same command goes on where it was. DIR is a folder
    that transformers' AutoModelForSequenceClassification loads, or of --task tag AutoModelForTokenClassification.

    tpulm finetune w/export --task tag --train ner.tsv --output entities

    tpulm finetune w/export --task embed --train sts.tsv --text-column a --pair-column b --label-column score -o sts

    Entities come in columns, a word (CoNLL) or a character (KLUE) and its tag a line, also as a csv with a header; or in jsonl
    or Parquet, as words and tags (tokens, ner_tags) or as [[begin, end, type], …] and other spans (doccano).

    tpulm finetune w/export --task qa --train train-v1.1.json.gz --dev dev-v1.1.json.gz --output answers

    Questions come in SQuAD's JSON (JSQuAD, KorQuAD, KLUE-MRC), or in jsonl with question, context and answers.
    AutoModelForQuestionAnswering loads DIR.

    tpulm finetune w/export --task choice --train train.jsonl --dev valid.jsonl --output chooser

    Choices come in jsonl, {"question": …, "choices": […], "label": 0}, or in columns choice0, choice1, …
    AutoModelForMultipleChoice loads DIR.
    """
    from tpulm.config import load_finetune

    task = training.get("task")
    if regression and task is not None:
        raise ConfigError(f"--regression is short for --task regression, and --task is {task}; give one of them")
    if label_separator is not None and task != "multilabel":
        raise ConfigError("--label-separator is for --task multilabel, whose texts have several labels")
    if negative_column is not None and task != "retrieve":
        raise ConfigError("--negative-column is for --task retrieve")
    if task is not None or regression:
        training["task"] = "regression" if regression else _TASKS.get(task or "", task)
    settings = [*(overrides or []), *(f"{name}={value}" for name, value in training.items())]
    config = load_finetune([*settings, *tracked(track)])
    from tpulm.finetuning import finetune as run

    member = several.membership()
    columns = files.columns(label=label_column, pair=pair_column, negative=negative_column, label_separator=label_separator)
    others = {"dev": (dev, dev_column), "test": (test, test_column)}
    of_files = {part: _columns_of(part, path, assignments or [], columns) for part, (path, assignments) in others.items()}
    reading = {"columns": {"train": columns, **of_files}, "format": files.format, "on_error": files.on_error}
    how: dict[str, Any] = {"learning_rates": rates_of(learning_rates), "overwrite": overwrite, "member": member, **reading}
    with drawn_progress() as progress:
        summary = run(model, train, output, dev=dev, test=test, config=config, progress=progress, **how)
    if member is None or member.index == 0:  # the first host says it
        _show(summary)
        print_json(summary.values())


def _columns_of(part: str, path: PurePath | None, assignments: list[str], usual: Columns) -> Columns:
    """Those of all files, but for what `--dev-column` or `--test-column` says of this one."""
    if assignments and path is None:
        raise ConfigError(f"--{part}-column is of the file --{part}, and there is none; give it, or leave the column out")
    named: dict[str, str] = {}
    for item in assignments:
        role, _, name = item.partition("=")
        if role not in _ROLES or not name:
            hint = suggest(role, _ROLES)
            raise ConfigError(f"--{part}-column {item}: write it as {' or '.join(f'{role}=NAME' for role in _ROLES)}.{hint}")
        if role in named:
            raise ConfigError(f"--{part}-column {role} is given twice, as '{named[role]}' and as '{name}'; give it once")
        named[role] = name
    if "pair" in named and usual.pair is None:
        raise ConfigError(f"--{part}-column {named['pair']}: examples are pairs in all files or in none; give --pair-column")
    return replace(usual, **named)


def _show(summary: FinetuneSummary) -> None:
    from tpulm.finetuning import read_mistakes
    from tpulm.finetuning.tasks import find_task
    from tpulm.labelled.entities import shown_label

    if summary.nothing_to_do:
        say("nothing left to do: this was trained before, with the same inputs")
    seeds, task = summary.seeds, find_task(summary.settings)
    best = seeds[summary.best]
    parts = summary.scored

    if summary.learning_rates:
        tried = [(rate, decimals(score)) for rate, score in summary.learning_rates.items()]
        print_table("Learning rates", tried, header=("", f"{summary.settings.chosen_by.replace('_', ' ')} on dev"))
    title = f"Scores of {len(seeds)} seeds, mean ± deviation" if len(seeds) > 1 else "Scores"
    lines = [(name.replace("_", " "), *(summary.shown(part, name) for part in parts)) for name in best.dev]
    lines.append(("examples", *(f"{summary.examples[part]:,}" for part in parts)))
    print_table(title, lines, header=("", *parts))
    _show_classes(summary, parts[-1])
    wrong = read_mistakes(summary.output)
    if wrong:
        kind, first = task.mistakes_are
        shown = [
            (
                decimals(m.confidence, places=2),
                *(shown_label(one, m.text) for one in (m.label, m.predicted)),
                shorten(" ".join(_joined(m.text, m.pair).split()), 79, quoted=False),
            )
            for m in wrong[:_SHOWN_MISTAKES]
        ]
        title = f"{kind} on dev ({len(wrong):,}, all in mistakes.jsonl)"
        print_table(title, shown, header=(first, "label", "predicted", "text"))
    chosen = f"epoch {best.best_epoch} of {best.epochs}" + (f" of seed {best.seed}" if len(seeds) > 1 else "")
    chosen += f" at learning rate {summary.settings.learning_rate:g}" if summary.learning_rates else ""
    rows = {
        "chosen": f"{chosen}, by {summary.settings.chosen_by.replace('_', ' ')} on dev, never on test",
        "trained on": plural(summary.examples["train"], "example"),
        **_left_out(summary.cut, task.longest, summary.skipped, task.cut_texts),
        "health": summary.health,
        "model": summary.output,
    }
    print_table("Model", rows)


def _left_out(cut: int, longest: int | None, skipped: Mapping[str, int], texts: str = "texts") -> dict[str, str]:
    """Rows of a table, where there is something to tell."""
    rows = {"cut": f"{cut:,} {texts} longer than {longest} tokens"} if cut else {}
    return rows | ({"left out": ", ".join(f"{reason} {count:,}" for reason, count in skipped.items())} if skipped else {})


def _show_classes(summary: FinetuneSummary, part: str) -> None:
    """What is confused with what or, of many classes and of texts with several, the scores of each."""
    from tpulm.report.finetuning import class_rows

    best = summary.seeds[summary.best]
    of_seed = f", seed {best.seed}" if len(summary.seeds) > 1 else ""
    if best.confusion is not None and len(summary.labels) <= _MOST_CONFUSED:
        rows = [(name, *(f"{count:,}" for count in row)) for name, row in zip(summary.labels, best.confusion, strict=True)]
        print_table(f"Confusion on {part}{of_seed}: true labels down, predicted across", rows, header=("", *summary.labels))
    elif best.by_class:
        lines = class_rows(best.scores_by_class())
        more = f", the {_MOST_CLASSES} commonest of {len(lines)}" if len(lines) > _MOST_CLASSES else ""
        header = ("", "precision", "recall", "F1", "true")
        print_table(f"By class on {part}{of_seed}{more}", lines[:_MOST_CLASSES], header=header)


def _joined(text: str, pair: str | None) -> str:
    return text if pair is None else f"{text} | {pair}"


def classify(
    model: Annotated[PurePath, path_argument("A classifier: what 'tpulm finetune' made, or an import.", "MODEL")],
    options: TextOptions,
    output: Annotated[
        PurePath | None, path_option("Its rows, with label and score, go here (.jsonl, .csv or .tsv; .gz).", "--output", "-o")
    ] = None,
    context: Annotated[str | None, option("Context passage (models of --task qa).", metavar="TEXT")] = None,
    choice: Annotated[
        list[str] | None, option("An answer to choose (models of --task choice); repeated.", metavar="TEXT")
    ] = None,
    pair: Annotated[
        list[str] | None, option("The second text (models of pairs); as often as there are texts.", metavar="TEXT")
    ] = None,
    pair_column: PairColumn = None,
) -> None:
    """The label of each text, with its probability: tpulm classify sentiment "not bad at all" "never again"

    tpulm classify sentiment --input new.tsv --output labelled.tsv

    tpulm classify nli "A man eats." --pair "Nobody eats."

    tpulm classify answers "Where does it rain?" --context "In Seoul it rains in July."

    tpulm classify chooser "What falls from clouds?" --choice rain --choice stones

    A file is read and written as a stream, its rows in their order, with the columns "predicted" and "score" added; without
    --output they go to stdout as JSON lines. With --no-header what is written has no line of names either.
    """
    texts, input = options.texts, options.input
    if output is not None and input is None:
        raise ConfigError("--output is for a file given with --input; texts are answered on the screen (--json for a program)")
    if input is not None and wants_json():
        raise ConfigError(
            "--json is for texts given on the command line; a file's answers are JSON lines on stdout, or --output"
        )
    if input is not None and output is not None:
        from tpulm.labelled.records import check_form

        check_form(output)
        _check_apart(input, output)
    best = model / "finetuning" / "best"
    if exists(best / "config.json") and not exists(model / "config.json"):
        say_note(f"the fine-tuning in {model} has not ended; this is the best model so far")
        model = best
    loaded = load(model, reads=True)
    warn_of_unknown_text(loaded.tokenization, [*(texts or ()), *([context] if context else choice or pair or ())])
    for name, value, head, task in (("--context", context, "spans", "qa"), ("--choice", choice, "choice", "choice")):
        if value and (loaded.head != head or not texts):
            raise ConfigError(f"{name} goes with a question on the command line and a model of --task {task}")
        if texts and not value and loaded.head == head:
            raise ConfigError(f"a model of --task {task} needs {name} beside its question, or a file with --input")
    if pair and (loaded.head != "classification" or not texts):
        raise ConfigError("--pair goes with a text on the command line and a model that classifies pairs of texts")
    named = loaded.columns or {}
    if input is not None and not options.no_header:
        options = replace(options, text_column=options.text_column or named.get("text"))
        pair_column = pair_column or named.get("pair")
    columns = options.columns(pair=pair_column)
    if loaded.head in _HEADERS:
        pairs = [context or choice] * len(texts) if texts and (context or choice) else None
        _predict(loaded, options, columns, pairs, output)
    else:
        _classify(loaded, options, columns, pair or None, output)


def _classify(
    model: LoadedModel, options: TextOptions, columns: Columns, pairs: list[str] | None, output: PurePath | None
) -> None:
    """Labels or numbers."""
    from tpulm.predict.classify import ClassifierForUse

    classifier = ClassifierForUse(model)
    if texts := options.texts:
        answers = classifier(texts, pairs)
        both = list(zip(texts, pairs or [None] * len(texts), strict=True))
        lines = [(*_label_and_score(one), _joined(*texts)) for texts, one in zip(both, answers, strict=True)]
        print_table("", lines, header=("label", "score", "text"))
        _note_truncation(classifier.cut, classifier.max_length)
        keys = [{"text": text} | ({} if second is None else {"pair": second}) for text, second in both]
        values = [{name: of for name, of in one._asdict().items() if (name, of) != ("labels", None)} for one in answers]
        print_json([{**texts, **one} for texts, one in zip(keys, values, strict=True)])
        return

    def answered(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        pairs = None if columns.pair is None else [row.pair or "" for row in chunk]
        for answer in classifier([row.text for row in chunk], pairs):
            if answer.labels is not None:
                yield {"predicted": list(answer.labels), "score": [round(one, 6) for one in _scores(answer)]}
            elif answer.label is not None:
                yield {"predicted": answer.label, "score": round(answer.score, 6)}
            else:
                yield {"predicted": float(f"{answer.score:.7g}")}

    rows, skipped = _rows_of(options, model, columns)
    counted = _write_answers(rows, answered, options, output, title="Classifying")
    _show_written("classified", counted, _left_out(classifier.cut, classifier.max_length, skipped), output)


def _scores(answer: Classified) -> list[float]:
    """The probabilities of the labels, where a text may have several."""
    return [(answer.probabilities or {})[label] for label in answer.labels or ()]


def _label_and_score(answer: Classified) -> tuple[str, str]:
    if answer.labels is None:
        return answer.label or "", decimals(answer.score)
    return ", ".join(answer.labels) or "(none)", ", ".join(f"{score:.4f}" for score in _scores(answer))


def _predict(
    model: LoadedModel, options: TextOptions, columns: Columns, pairs: list[Any] | None, output: PurePath | None
) -> None:
    """Entities, answers to questions, or choices; of a file as JSON lines, each row with the answer's columns added."""
    from tpulm.finetuning import Classifier

    classifier = Classifier(model)
    task = classifier.task
    if texts := options.texts:
        answers = [_columns_of_answer(*both) for both in zip(texts, classifier.predict(texts, pairs), strict=True)]
        lines = [tuple(str(cell) for cell in line) for answer in answers for line in _lines(answer)]
        print_table("", lines, header=_HEADERS[model.head])
        _note_truncation(classifier.cut, task.longest, task.cut_texts)
        print_json([{"text": text, **answer} for text, answer in zip(texts, answers, strict=True)])
        return
    if output is not None and not output.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--output {output}: answers hold lists, which .jsonl can hold; name a .jsonl file")

    def answered(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        others = [row.pair for row in chunk]
        predictions = classifier.predict([row.text for row in chunk], None if others[0] is None else others)
        return (_columns_of_answer(row.text, answer) for row, answer in zip(chunk, predictions, strict=True))

    rows, skipped = _rows_of(options, model, columns.over(task.columns), fault=task.fault, adapt=task.adapt)
    counted = _write_answers(rows, answered, options, output, title="Answering")
    _show_written("answered", counted, _left_out(classifier.cut, task.longest, skipped, task.cut_texts), output)


def _columns_of_answer(text: str, answer: Any) -> dict[str, Any]:
    """What an answer of a task adds to a row."""
    if isinstance(answer, list):
        named = ("start", "end", "label")
        return {"entities": [{**dict(zip(named, one, strict=True)), "text": text[one[0] : one[1]]} for one in answer]}
    return {"predicted" if name in ("answer", "label") else name: value for name, value in answer.items()}


def _lines(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    if "entities" in answer:
        return [(one["label"], f"{one['start']}-{one['end']}", one["text"]) for one in answer["entities"]]
    probability = f"{answer['score']:.4f}"
    if "choice" in answer:
        return [(answer["choice"], answer["predicted"], probability)]
    return [(answer["predicted"] or "(none)", f"{answer['start']}-{answer['end']}", probability)]


def _check_apart(input: PurePath, output: PurePath) -> None:
    """Raises ConfigError where the output is (or links to, or is linked from) one of the files that are read."""
    from tpulm.corpus.paths import find_paths

    if any(same_file(path, output) for path in find_paths(str(input))):
        raise ConfigError(f"--output {output} is a file that --input reads, and would be overwritten; name another file")


def _rows_of(
    options: TextOptions, model: LoadedModel, columns: Columns, **reading: Any
) -> tuple[Iterator[TextRow], Counter[str]]:
    """The rows of a file, and a count of those left out until then; with a note if much of the first ones is unknown."""
    from tpulm.labelled import read_texts

    assert options.input is not None
    skipped: Counter[str] = Counter()
    rows = read_texts(options.input, columns, format=options.format, on_error=options.on_error, skipped=skipped, **reading)
    first = list(islice(rows, _TEXTS_AT_ONCE))
    pairs = ([row.pair] if isinstance(row.pair, str) else row.pair or [] for row in first)
    warn_of_unknown_text(model.tokenization, [*(row.text for row in first), *chain.from_iterable(pairs)], str(options.input))
    return chain(first, rows), skipped


def _write_answers(
    rows: Iterator[TextRow],
    answered: Callable[[list[TextRow]], Iterable[dict[str, Any]]],
    options: TextOptions,
    output: PurePath | None,
    *,
    title: str,
    what: str = "answer",
) -> int:
    """Write each row with the columns that answer it, to stdout where there is no output; how many rows there were.

    Raises ConfigError for a row that has a column of such a name.
    """
    from tpulm.labelled.records import RowWriter, writing_rows

    how: dict[str, Any] = {"header": not options.no_header, "like": options.input, "encoding": options.encoding}
    with nullcontext(RowWriter(sys.stdout, ".jsonl")) if output is None else writing_rows(output, **how) as writer:

        def write(chunk: list[TextRow]) -> None:
            for row, added in zip(chunk, answered(chunk), strict=True):
                if (clash := next((name for name in added if name in row.record.values), None)) is not None:
                    raise ConfigError(f"{options.input} has a column '{clash}' already, where the {what} would go; rename it")
                writer.write({**row.record.values, **added}, row.record.place)

        return _in_chunks(rows, write, title)


def _in_chunks(rows: Iterator[TextRow], work: Callable[[list[TextRow]], object], title: str) -> int:
    """Work on the rows, some thousand at a time; how many there were."""
    counted = 0
    with drawn_progress() as progress:
        progress.start(title, unit="text")
        while chunk := list(islice(rows, _TEXTS_AT_ONCE)):
            work(chunk)
            counted += len(chunk)
            progress.advance(len(chunk))
    return counted


def _note_truncation(cut: int, longest: int | None, texts: str = "texts") -> None:
    for note in _left_out(cut, longest, {}, texts).values():
        say_note(f"cut {note}")


def _show_written(done: str, counted: int, left_out: dict[str, str], output: PurePath | None) -> None:
    """The result is the file or, on stdout, the rows: beside those this is a note."""
    rows = {done: plural(counted, "text"), **left_out}
    print_table("", rows if output is None else rows | {"written to": str(output)}, to=console if output is None else None)


def embed(
    model: Annotated[PurePath, path_argument("What 'tpulm finetune --task embed' made, or any encoder.", "MODEL")],
    options: TextOptions,
    output: Annotated[
        PurePath | None,
        path_option(
            "Their vectors: .npy (float32, a row each), or .jsonl (rows with 'embedding' added; .gz).", "--output", "-o"
        ),
    ] = None,
) -> None:
    """How alike texts are, or a vector for each: tpulm embed sts "A man is eating." "Someone eats." "A plane lands."

    tpulm embed sts --input questions.tsv --text-column question --output questions.npy

    Vectors are of length 1, so that their products are cosines, but for models of sentence-transformers without Normalize. A
    pretrained encoder's are the mean of its hidden states.
    """
    texts, input = options.texts, options.input
    if input is not None and (output is None or wants_json()):
        raise ConfigError("the vectors of a file go into --output, a .npy or .jsonl; --json is for texts")
    if output is not None and not output.name.endswith((".npy", ".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--output {output}: vectors are written as .npy or .jsonl; give the file such a name")
    import numpy as np

    from tpulm import storage
    from tpulm.labelled.examples import TextRow
    from tpulm.labelled.records import Row
    from tpulm.predict.embed import Embedder

    loaded = load(model, reads=True)
    warn_of_unknown_text(loaded.tokenization, texts or [])
    embedder = Embedder(loaded)
    if not embedder.is_tuned:
        say_note("not fine-tuned for embeddings: the mean of its hidden states")
    if embedder.prompts:
        prompts = ", ".join(f"{name} {text!r}" for name, text in embedder.prompts.items())
        say_note(f"it has prompts that are yours to put before texts: {prompts}")
    known: dict[str, np.ndarray] | None = None
    if texts:
        vectors = embedder(texts)
        known = dict(zip(texts, vectors, strict=True))
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        lines = [(text, *(f"{cosine:.3f}" for cosine in row)) for text, row in zip(texts, units @ units.T, strict=True)]
        print_table("Cosines", lines, header=("", *(str(number) for number in range(1, len(texts) + 1))))
        print_json([{"text": text, "embedding": row} for text, row in zip(texts, vectors.tolist(), strict=True)])
    if output is None:
        return
    rows, skipped = iter([TextRow(Row({"text": text}, ""), text, None) for text in texts or ()]), Counter[str]()
    if input is not None:
        _check_apart(input, output)
        rows, skipped = _rows_of(options, loaded, options.columns())

    def vectors_of(chunk: list[TextRow]) -> np.ndarray:
        return embedder([row.text for row in chunk]) if known is None else np.stack([known[row.text] for row in chunk])

    def embedded(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        return ({"embedding": vector} for vector in vectors_of(chunk).tolist())

    if not output.name.endswith(".npy"):
        counted = _write_answers(rows, embedded, options, output, title="Embedding", what="vector")
    else:
        batches, memory = list[np.ndarray](), io.BytesIO()
        counted = _in_chunks(rows, lambda chunk: batches.append(vectors_of(chunk)), "Embedding")
        np.save(memory, np.concatenate(batches))
        storage.write_atomic(output, memory.getvalue())
    _show_written("embedded", counted, _left_out(embedder.cut, embedder.max_length, skipped), output)
