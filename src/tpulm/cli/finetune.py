"""`tpulm finetune` and `tpulm classify`: a classifier from labelled text, and its use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tpulm.cli.options import AsJson, Coordinator, HostIndex, NumHosts, Track, tracked
from tpulm.cli.terminal import console, drawn_progress, print_json, print_table, say, say_note
from tpulm.cli.use import load, say_doubts
from tpulm.errors import ConfigError, suggest
from tpulm.storage import as_path, exists, same_file

if TYPE_CHECKING:
    from tpulm.convert.huggingface import LoadedModel
    from tpulm.finetuning import FinetuneSummary
    from tpulm.labelled import Columns
    from tpulm.labelled.examples import TextRow
    from tpulm.labelled.records import RowFormat
    from tpulm.predict.classify import Classified, ClassifierForUse

_SHOWN_MISTAKES, _MOST_CONFUSED, _MOST_CLASSES = 8, 12, 40
_TEXTS_AT_ONCE = 4_096
_COLUMNS, _TRAINING = "Columns", "Training"
_ROLES = ("text", "label", "pair", "negative")
_PREDICTING = ("tokens", "spans", "choice")  # heads whose answers are more than a label of a text
_TASKS = {"classify": "classification", "regress": "regression"}  # shorter names


def _column(help: str, metavar: str = "NAME") -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=_COLUMNS)


def _training(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=_TRAINING)


def _file(help: str, *names: str, metavar: str = "F") -> Any:
    return typer.Option(*names, metavar=metavar, parser=as_path, help=help)


TextColumn = Annotated[str, _column("The column of the text.")]
PairColumn = Annotated[str | None, _column("The column of the second text, where examples are pairs.")]
NoHeader = Annotated[
    bool,
    typer.Option(
        "--no-header",
        help="The tsv or csv has no line of names; columns are numbers from 1: --text-column 2.",
        rich_help_panel=_COLUMNS,
    ),
]
ColumnsOfFile = Annotated[
    list[str] | None, _column("Of this file alone, such as text=review, label=stars or pair=…; repeatable.", "ROLE=NAME")
]
Format = Annotated[
    Literal["auto", "tsv", "csv", "jsonl", "parquet", "squad"], typer.Option(help="Of the files; auto goes by their names.")
]
Encoding = Annotated[str, typer.Option(metavar="NAME", help="Of the files' text: cp949, shift_jis, utf-16, cp1252, …")]
OnError = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="Rows that cannot be used (no text, no label, bad bytes): an error, or left out and counted."),
]


def finetune(
    model: Annotated[
        PurePath, typer.Argument(metavar="MODEL", parser=as_path, help="A work folder, an export, or an imported model.")
    ],
    train: Annotated[PurePath, _file("Labelled texts: tsv, csv, jsonl or parquet, compressed or not; gs:// too.")],
    output: Annotated[PurePath, _file("Where the classifier goes; continued if begun.", "--output", "-o", metavar="DIR")],
    dev: Annotated[PurePath | None, _file("Chooses the best epoch. By default a part of the training file is kept.")] = None,
    test: Annotated[PurePath | None, _file("Scored at the end; nothing is chosen by it.")] = None,
    text_column: TextColumn = "text",
    label_column: Annotated[str, _column("The column of the label.")] = "label",
    pair_column: PairColumn = None,
    negative_column: Annotated[
        str | None, _column("Of --task retrieve: the column of a text that does not belong to the first one.")
    ] = None,
    label_separator: Annotated[
        str | None, _column("Of --task multilabel: what separates the labels of a text, such as ';'.", "TEXT")
    ] = None,
    dev_column: ColumnsOfFile = None,
    test_column: ColumnsOfFile = None,
    no_header: NoHeader = False,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="classification (the default), regression, multilabel (any number of labels a text), tag (the entities in "
            "each text), qa (the part of a text that answers a question), choice (one of several answers to a question), embed "
            "(vectors of texts, from pairs with scores) or retrieve (vectors, from texts that belong together).",
        ),
    ] = None,
    regression: Annotated[bool, typer.Option("--regression", help="Labels are numbers to be predicted, not classes.")] = False,
    epochs: Annotated[int | None, _training("At most so many; 3 by default.")] = None,
    batch_size: Annotated[int | None, _training("Rows of a step; 32 by default.")] = None,
    learning_rate: Annotated[
        float | None, _training("By default 5e-5 for BERT, 1e-4 for ELECTRA; small models want more.")
    ] = None,
    max_length: Annotated[int | None, _training("Tokens of a text, 128 by default; longer ones are cut, and counted.")] = None,
    seed: Annotated[int | None, _training("0 by default.")] = None,
    seeds: Annotated[int | None, _training("Train so many times, and give mean and deviation.")] = None,
    track: Track = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as --set patience=5 (docs/fine-tuning)."),
    ] = None,
    format: Format = "auto",
    encoding: Encoding = "utf-8",
    on_error: OnError = "stop",
    coordinator: Coordinator = None,
    num_hosts: NumHosts = None,
    host_index: HostIndex = None,
    as_json: AsJson = False,
) -> None:
    """Train a text classifier from a pretrained encoder and labelled texts; --regression for numbers, --pair-column for pairs.

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

    given = {
        "task": "regression" if regression else _TASKS.get(task or "", task),
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "seed": seed,
        "seeds": seeds,
    }
    if regression and task is not None:
        raise ConfigError(f"--regression is short for --task regression, and --task is {task}; give one of them")
    if label_separator is not None and task != "multilabel":
        raise ConfigError("--label-separator is for --task multilabel, whose texts have several labels")
    if negative_column is not None and task != "retrieve":
        raise ConfigError("--negative-column is for --task retrieve")
    settings = [*(overrides or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    config = load_finetune([*settings, *tracked(track)])
    from tpulm.finetuning import finetune as run
    from tpulm.labelled import Columns
    from tpulm.runtime import hosts

    member = hosts.membership(coordinator, num_hosts, host_index)
    columns = Columns(text_column, label_column, pair_column, not no_header, negative_column, label_separator, encoding)
    others = {"dev": (dev, dev_column), "test": (test, test_column)}
    of_files = {part: _columns_of(part, path, given or [], columns) for part, (path, given) in others.items()}
    with drawn_progress() as progress:
        summary = run(
            model,
            train,
            output,
            dev=dev,
            test=test,
            columns={"train": columns, **of_files},
            config=config,
            format=format,
            on_error=on_error,
            member=member,
            progress=progress,
        )
    if member is not None and member.index > 0:  # the first host says it
        return
    _show(summary)
    if as_json:
        print_json(summary.values())


def _columns_of(part: str, path: PurePath | None, given: list[str], usual: Columns) -> Columns:
    """Those of all files, but for what `--dev-column` or `--test-column` says of this one."""
    import dataclasses

    if given and path is None:
        raise ConfigError(f"--{part}-column is of the file --{part}, and there is none; give it, or leave the column out")
    found: dict[str, str] = {}
    for item in given:
        role, _, name = item.partition("=")
        if role not in _ROLES or not name:
            hint = suggest(role, _ROLES)
            raise ConfigError(f"--{part}-column {item}: write it as {' or '.join(f'{role}=NAME' for role in _ROLES)}.{hint}")
        if role in found:
            raise ConfigError(f"--{part}-column {role} is given twice, as '{found[role]}' and as '{name}'; give it once")
        found[role] = name
    if "pair" in found and usual.pair is None:
        raise ConfigError(f"--{part}-column {found['pair']}: examples are pairs in all files or in none; give --pair-column")
    return dataclasses.replace(usual, **found)


def _show(summary: FinetuneSummary) -> None:
    from tpulm.finetuning import read_mistakes
    from tpulm.finetuning.tasks import find_task

    if summary.nothing_to_do:
        say("nothing left to do: this was trained before, with the same inputs")
    seeds = summary.seeds
    best = seeds[summary.best]
    parts = summary.scored

    title = f"Scores of {len(seeds)} seeds, mean ± deviation" if len(seeds) > 1 else "Scores"
    lines = [(name.replace("_", " "), *(summary.shown(part, name) for part in parts)) for name in best.dev]
    lines.append(("examples", *(f"{summary.examples[part]:,}" for part in parts)))
    print_table(title, lines, header=("", *parts))
    _show_classes(summary, parts[-1])
    wrong = read_mistakes(summary.output)
    if wrong:
        kind, first = find_task(summary.settings).mistakes_are
        shown = [
            (f"{m.confidence:.2f}", _said(m.label), _said(m.predicted), _shortened(m.text, m.pair))
            for m in wrong[:_SHOWN_MISTAKES]
        ]
        print_table(
            f"{kind} on dev ({len(wrong):,}, all in mistakes.jsonl)", shown, header=(first, "label", "predicted", "text")
        )
    chosen = f"epoch {best.best_epoch} of {best.epochs}" + (f" of seed {best.seed}" if len(seeds) > 1 else "")
    rows = {
        "chosen": f"{chosen}, by {summary.settings.chosen_by.replace('_', ' ')} on dev, never on test",
        "trained on": f"{summary.examples['train']:,} examples",
        **_left_out(summary.cut, summary.settings.max_length, summary.skipped),
        "health": summary.health,
        "model": summary.output,
    }
    print_table("Model", rows)


def _left_out(cut: int, max_length: int | None, skipped: Mapping[str, int]) -> dict[str, str]:
    """Rows of a table, where there is something to tell."""
    rows = {"cut": f"{cut:,} texts longer than {max_length} tokens"} if cut else {}
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
        print_table(
            f"By class on {part}{of_seed}{more}", lines[:_MOST_CLASSES], header=("", "precision", "recall", "F1", "true")
        )


def _said(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _shortened(text: str, pair: str | None) -> str:
    whole = " ".join((text if pair is None else f"{text} | {pair}").split())
    return whole if len(whole) <= 80 else f"{whole[:79]}…"


def classify(
    model: Annotated[
        PurePath,
        typer.Argument(metavar="MODEL", parser=as_path, help="A classifier: what 'tpulm finetune' made, or an import."),
    ],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to classify.")] = None,
    input: Annotated[PurePath | None, _file("A file of texts instead: tsv, csv, jsonl or parquet, compressed or not.")] = None,
    output: Annotated[
        PurePath | None,
        _file("Its rows, with label and score, go here (.jsonl, .csv or .tsv; .gz).", "--output", "-o", metavar="G"),
    ] = None,
    text_column: TextColumn = "text",
    context: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Of a model of --task qa: the text that answers the questions.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Of a model of --task choice: an answer to choose; repeated.")
    ] = None,
    pair_column: PairColumn = None,
    no_header: NoHeader = False,
    format: Format = "auto",
    encoding: Encoding = "utf-8",
    on_error: OnError = "stop",
    as_json: AsJson = False,
) -> None:
    """The label of each text, with its probability: tpulm classify sentiment "not bad at all" "never again"

    tpulm classify sentiment --input new.tsv --text-column document --output labelled.tsv

    tpulm classify answers "Where does it rain?" --context "In Seoul it rains in July."

    tpulm classify chooser "What falls from clouds?" --choice rain --choice stones

    A file is read and written as a stream, its rows in their order, with the columns "predicted" and "score" added; without
    --output they go to stdout as JSON lines. With --no-header what is written has no line of names either.
    """
    if (input is None) == (not texts):
        raise ConfigError("give either texts, or a file with --input")
    if output is not None and input is None:
        raise ConfigError("--output is for a file given with --input; texts are answered on the screen (--json for a program)")
    if input is not None and as_json:
        raise ConfigError(
            "--json is for texts given on the command line; a file's answers are JSON lines on stdout, or --output"
        )
    if output is not None:
        from tpulm.labelled.records import check_form

        check_form(output)
        assert input is not None
        _check_apart(input, output)
    from tpulm.labelled import Columns
    from tpulm.predict.classify import ClassifierForUse

    best = model / "finetuning" / "best"
    if exists(best / "config.json") and not exists(model / "config.json"):
        say_note(f"the fine-tuning in {model} has not ended; this is the best model so far")
        model = best
    loaded = load(model, reads=True)
    say_doubts(loaded.tokenization, [*(texts or ()), *([context] if context else choice or ())])
    columns = Columns(text=text_column, pair=pair_column, header=not no_header, encoding=encoding)
    for option, value, head, task in (("--context", context, "spans", "qa"), ("--choice", choice, "choice", "choice")):
        if value and (loaded.head != head or not texts):
            raise ConfigError(f"{option} goes with a question on the command line and a model of --task {task}")
        if texts and not value and loaded.head == head:
            raise ConfigError(f"a model of --task {task} needs {option} beside its question, or a file with --input")
    if loaded.head in _PREDICTING:
        pairs = [context or choice] * len(texts) if texts and (context or choice) else None
        _predict(loaded, texts, pairs, input, output, columns, format, on_error, as_json)
        return
    classifier = ClassifierForUse(loaded)
    if texts:
        answers = classifier(texts)
        lines = [(*_answer(one), text) for text, one in zip(texts, answers, strict=True)]
        print_table("", lines, header=("label", "score", "text"))
        _say_cut(classifier.cut, classifier.max_length)
        if as_json:
            print_json([{"text": text, **_values(one)} for text, one in zip(texts, answers, strict=True)])
        return
    assert input is not None
    _classify_file(classifier, loaded, input, output, columns, format, on_error)


def _scores(answer: Classified) -> list[float]:
    """The probabilities of the labels, where a text may have several."""
    return [(answer.probabilities or {})[label] for label in answer.labels or ()]


def _values(answer: Classified) -> dict[str, Any]:
    """For --json: `labels` stands there only where a text may have several."""
    values = answer._asdict()
    return values if answer.labels is not None else {name: value for name, value in values.items() if name != "labels"}


def _answer(answer: Classified) -> tuple[str, str]:
    if answer.labels is None:
        return answer.label or "", f"{answer.score:.4f}"
    return ", ".join(answer.labels) or "(none)", ", ".join(f"{score:.4f}" for score in _scores(answer))


def _predict(
    model: LoadedModel,
    texts: list[str] | None,
    pairs: list[Any] | None,
    input: PurePath | None,
    output: PurePath | None,
    columns: Columns,
    format: RowFormat | Literal["auto"],
    on_error: Literal["stop", "skip"],
    as_json: bool,
) -> None:
    """Entities, answers to questions, or choices; of a file as JSON lines, each row with the answer's columns added."""
    from collections import Counter

    from tpulm.finetuning import Classifier

    classifier = Classifier(model)
    task, max_length = classifier.task, classifier.config.max_length
    if texts:
        answers = [_columns_of_answer(*both) for both in zip(texts, classifier.predict(texts, pairs), strict=True)]
        lines = [tuple(str(cell) for cell in line) for answer in answers for line in _lines(answer)]
        print_table("", lines, header=_HEADERS[model.head])
        _say_cut(classifier.cut, max_length)
        if as_json:
            print_json([{"text": text, **answer} for text, answer in zip(texts, answers, strict=True)])
        return
    assert input is not None
    if output is not None and not any(output.name.endswith(end) for end in (".jsonl", ".jsonl.gz")):
        raise ConfigError(f"--output {output}: answers hold lists, which .jsonl can hold; name a .jsonl file")
    skipped: Counter[str] = Counter()
    reading: dict[str, Any] = {"format": format, "on_error": on_error, "fault": task.fault, "adapt": task.adapt}
    rows = _rows_of(input, model, task.columns_of(columns), skipped=skipped, **reading)

    def answered(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        given = [row.pair for row in chunk]
        found = classifier.predict([row.text for row in chunk], None if given[0] is None else given)
        return (_columns_of_answer(row.text, answer) for row, answer in zip(chunk, found, strict=True))

    counted = _write_answers(rows, answered, input, output, title="Answering")
    lines = {"answered": f"{counted:,} texts", **_left_out(classifier.cut, max_length, skipped)}
    _tell_written(lines, output)


_HEADERS = {
    "tokens": ("entity", "characters", "text"),
    "spans": ("answer", "characters", "probability"),
    "choice": ("choice", "number", "probability"),
}


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

    for path in find_paths(str(input)):
        if same_file(path, output):
            raise ConfigError(f"--output {output} is a file that --input reads, and would be overwritten; name another file")


def _rows_of(input: PurePath, model: LoadedModel, columns: Columns, **reading: Any) -> Iterator[TextRow]:
    """The rows of a file, after a note if much of the first ones is unknown to the vocabulary."""
    from tpulm.labelled import read_texts

    rows = read_texts(input, columns, **reading)
    first = list(islice(rows, _TEXTS_AT_ONCE))
    pairs = ([row.pair] if isinstance(row.pair, str) else row.pair or [] for row in first)
    say_doubts(model.tokenization, [*(row.text for row in first), *chain.from_iterable(pairs)], str(input))
    return chain(first, rows)


def _write_answers(
    rows: Iterator[TextRow],
    answered: Callable[[list[TextRow]], Iterable[dict[str, Any]]],
    input: PurePath | None,
    output: PurePath | None,
    *,
    title: str,
    header: bool = True,
    taken: Sequence[str] = (),
    what: str = "answer",
) -> int:
    """Write each row with the columns that answer it, to stdout where there is no output; how many rows there were.

    Raises ConfigError for a row that has a column of such a name, or of those that are `taken`.
    """
    import sys
    from contextlib import nullcontext

    from tpulm.labelled.records import RowWriter, writing_rows

    to = nullcontext(RowWriter(sys.stdout, ".jsonl")) if output is None else writing_rows(output, header=header)
    counted = 0
    with drawn_progress() as progress, to as writer:
        progress.start(title, unit="text")
        while chunk := list(islice(rows, _TEXTS_AT_ONCE)):
            for row, added in zip(chunk, answered(chunk), strict=True):
                if (clash := next((name for name in taken or added if name in row.record.values), None)) is not None:
                    raise ConfigError(f"{input} has a column '{clash}' already, where the {what} would go; rename it")
                writer.write({**row.record.values, **added}, row.record.place)
            counted += len(chunk)
            progress.advance(len(chunk))
    return counted


def _classify_file(
    classifier: ClassifierForUse,
    model: LoadedModel,
    input: PurePath,
    output: PurePath | None,
    columns: Columns,
    format: RowFormat | Literal["auto"],
    on_error: Literal["stop", "skip"],
) -> None:
    from collections import Counter

    skipped: Counter[str] = Counter()
    rows = _rows_of(input, model, columns, format=format, on_error=on_error, skipped=skipped)

    def answered(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        pairs = None if columns.pair is None else [row.pair or "" for row in chunk]
        for answer in classifier([row.text for row in chunk], pairs):
            if answer.labels is not None:
                yield {"predicted": list(answer.labels), "score": [round(one, 6) for one in _scores(answer)]}
            elif answer.label is not None:
                yield {"predicted": answer.label, "score": round(answer.score, 6)}
            else:
                yield {"predicted": round(answer.score, 6)}

    taken = ("predicted", "score")
    counted = _write_answers(rows, answered, input, output, title="Classifying", header=columns.header, taken=taken)
    lines = {"classified": f"{counted:,} texts", **_left_out(classifier.cut, classifier.max_length, skipped)}
    _tell_written(lines, output)


def _say_cut(cut: int, max_length: int | None) -> None:
    for note in _left_out(cut, max_length, {}).values():
        say_note(f"cut {note}")


def _tell_written(lines: dict[str, str], output: PurePath | None) -> None:
    """The result is the file or, on stdout, the rows: beside those this is a note."""
    to = {} if output is None else {"written to": str(output)}
    print_table("", lines | to, to=None if to else console)


def embed(
    model: Annotated[
        PurePath,
        typer.Argument(metavar="MODEL", parser=as_path, help="What 'tpulm finetune --task embed' made, or any encoder."),
    ],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to compare.")] = None,
    input: Annotated[PurePath | None, _file("A file of texts instead: tsv, csv, jsonl or parquet, compressed or not.")] = None,
    output: Annotated[
        PurePath | None,
        _file("Their vectors: .npy (float32, a row each), or .jsonl (rows with 'embedding' added; .gz).", "--output", "-o"),
    ] = None,
    text_column: TextColumn = "text",
    no_header: NoHeader = False,
    format: Format = "auto",
    encoding: Encoding = "utf-8",
    on_error: OnError = "stop",
    as_json: AsJson = False,
) -> None:
    """How alike texts are, or a vector for each: tpulm embed sts "A man is eating." "Someone eats." "A plane lands."

    tpulm embed sts --input questions.tsv --text-column question --output questions.npy

    Vectors are of length 1, so that their products are cosines, but for models of sentence-transformers without Normalize. A
    pretrained encoder's are the mean of its hidden states.
    """
    if (input is None) == (not texts):
        raise ConfigError("give either texts, or a file with --input")
    if input is not None and (output is None or as_json):
        raise ConfigError("the vectors of a file go into --output, a .npy or .jsonl; --json is for texts")
    suffix = "" if output is None else output.name.removesuffix(".gz")[-6:]
    if output is not None and not (output.name.endswith(".npy") or suffix == ".jsonl"):
        raise ConfigError(f"--output {output}: vectors are written as .npy or .jsonl; give the file such a name")
    import numpy as np

    from tpulm.predict.embed import Embedder

    loaded = load(model, reads=True)
    say_doubts(loaded.tokenization, texts or [])
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
        if as_json:
            print_json([{"text": text, "embedding": row} for text, row in zip(texts, vectors.tolist(), strict=True)])
        if output is None:
            return
    from collections import Counter

    from tpulm import storage
    from tpulm.labelled import Columns
    from tpulm.labelled.examples import TextRow
    from tpulm.labelled.records import Row

    assert output is not None
    skipped = Counter[str]()
    if input is not None:
        _check_apart(input, output)
        columns = Columns(text=text_column, header=not no_header, encoding=encoding)
        rows = _rows_of(input, loaded, columns, format=format, on_error=on_error, skipped=skipped)
    else:
        rows = (TextRow(Row({"text": text}, ""), text, None) for text in texts or ())

    def vectors_of(chunk: list[TextRow]) -> np.ndarray:
        return embedder([row.text for row in chunk]) if known is None else np.stack([known[row.text] for row in chunk])

    def embedded(chunk: list[TextRow]) -> Iterator[dict[str, Any]]:
        return ({"embedding": vector} for vector in vectors_of(chunk).tolist())

    if suffix == ".jsonl":
        counted = _write_answers(rows, embedded, input, output, title="Embedding", what="vector")
    else:
        import io

        found, memory = list[np.ndarray](), io.BytesIO()
        with drawn_progress() as progress:
            progress.start("Embedding", unit="text")
            while chunk := list(islice(rows, _TEXTS_AT_ONCE)):
                found.append(vectors_of(chunk))
                progress.advance(len(chunk))
        counted = sum(map(len, found))
        np.save(memory, np.concatenate(found))
        storage.write_atomic(output, memory.getvalue())
    lines = {"embedded": f"{counted:,} texts", **_left_out(embedder.cut, embedder.max_length, skipped)}
    _tell_written(lines, output)
