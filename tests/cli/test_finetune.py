"""`tpulm finetune`, `tpulm classify` and `tpulm bench` as a user runs them, and with everything typed wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tpulm
from command_line import Done, invoke
from encoders import build_encoder, built, hub_of, reviews, write_tsv, write_ynat
from tpulm.errors import ConfigError
from tpulm.finetuning.tasks import transformed
from tpulm.labelled.records import read_file, record_file

SETTINGS = ["--epochs", "3", "--batch-size", "16", "--learning-rate", "3e-3", "--max-length", "16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with encoders and files: reviews, also as KLUE's YNAT, questions about them, and choices between them."""
    folder = tmp_path_factory.mktemp("place")
    build_encoder("bert", folder)
    build_encoder("decoder", folder)
    write_tsv(folder / "train.tsv", reviews(320))
    write_tsv(folder / "test.tsv", reviews(64, seed=2))
    write_ynat(folder)
    for name, seed in (("train", 0), ("dev", 1)):
        texts = [(text, "good" if label == "pos" else "bad") for text, label in reviews(160, seed=seed)]
        asked = []
        for number, (text, word) in enumerate(texts):
            answers = [{"text": word, "answer_start": text.index(word)}]
            asked.append({"context": text, "qas": [{"id": f"{name}-{number}", "question": "was it", "answers": answers}]})
        (folder / f"qa_{name}.json").write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": asked}]}))
        rows = [{"question": "was it", "choices": ["the plot", text], "label": 1} for text, _ in texts]
        for row in rows[::2]:
            row["choices"], row["label"] = row["choices"][::-1], 0
        (folder / f"choice_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the current folder."""
    monkeypatch.chdir(folder)
    return folder


def finetune(*arguments: str, model: str = "bert", code: int = 0) -> Done:
    columns = () if {"--text-column", "--task"} & {*arguments} else ("--text-column", "document")
    options = zip(SETTINGS[::2], SETTINGS[1::2], strict=True)
    settings = (part for option in options if option[0] not in arguments for part in option)
    return invoke("finetune", model, *columns, *settings, *arguments, code=code)


@pytest.fixture
def classifier(place: Path) -> Path:
    """Trained by the command, once."""
    if not (place / "clf").exists():
        done = finetune("--train", "train.tsv", "--test", "test.tsv", "--output", "clf", "--json")
        values = json.loads(done.stdout)
        assert values["test_accuracy"] > 0.9 and values["examples"] == {"train": 288, "dev": 32, "test": 64}
        for said in ("Scores", "never on test", "Confusion", "accuracy"):
            assert said in done.stderr
    return place / "clf"


def test_texts_are_classified(classifier: Path) -> None:
    done = invoke("classify", "clf", "a very good film", "a very bad film", "--json")
    assert [one["label"] for one in json.loads(done.stdout)] == ["pos", "neg"]
    assert "pos" in done.stderr and "a very good film" in done.stderr


@pytest.mark.parametrize("output", ["out.tsv", "out.jsonl.gz", None])
def test_a_file_is_classified(classifier: Path, place: Path, output: str | None) -> None:
    done = invoke(
        "classify", "clf", "--input", "test.tsv", "--text-column", "document", *(("--output", output) if output else ())
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()] if output is None else []
    if output:
        rows = [record.values for record in read_file(record_file(str(place / output)), on_error="stop", skipped=Counter())]
    assert [row["document"] for row in rows] == [text for text, _ in reviews(64, seed=2)]
    assert sum(row["predicted"] == row["label"] for row in rows) > 58
    assert "64 texts" in (done.stderr if output is None else done.stdout)


def test_a_file_without_a_header_is_classified(classifier: Path, tmp_path: Path) -> None:
    lines = [f"{number}\t{text}" for number, (text, _) in enumerate(reviews(8, seed=2))]
    (tmp_path / "in.tsv").write_text("\n".join(lines), "utf-16")
    columns = ["--no-header", "--text-column", "2", "--encoding", "utf-16"]
    invoke("classify", classifier, "--input", tmp_path / "in.tsv", *columns, "-o", tmp_path / "out.tsv", code=0)
    found = (tmp_path / "out.tsv").read_text("utf-8-sig").splitlines()
    assert [line.rsplit("\t", 2)[0] for line in found] == lines
    assert {line.split("\t")[2] for line in found} == {"pos", "neg"}


def test_pairs_are_classified_as_they_were_learnt(classifier: Path, place: Path) -> None:
    """With the columns of fine-tuning, and never as single texts."""
    rows = [{"premise": "the film", "hypothesis": text, "label": label} for text, label in reviews(64)]
    (place / "nli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ("--text-column", "premise", "--pair-column", "hypothesis")
    done = finetune("--train", "nli.jsonl", *columns, "--output", "nli", "--epochs", "1")
    assert done.stdout.strip() and "\x1b" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("│") or line != line.rstrip()]
    single, paired = "on pairs", "on single texts"
    for given, message in (("nli film", single), ("nli film --pair a --pair b", "2 second"), ("clf film --pair plot", paired)):
        done = invoke("classify", *given.split())
        assert done.returncode in (2, 3) and message in done.stderr, done.stderr
    with pytest.raises(ConfigError, match=single):
        tpulm.classify("nli", ["film"])
    tuned: Any = tpulm.Classifier("nli")
    for use, texts in ((tuned.predict, ["film"]), (tuned.predict_proba, ["film"]), (tuned.evaluate, [("film", "pos")])):
        with pytest.raises(ConfigError, match=single):
            use(texts)
    from_file = json.loads(invoke("classify", "nli", "--input", "nli.jsonl").stdout.splitlines()[0])
    (typed,) = json.loads(invoke("classify", "nli", "the film", "--pair", rows[0]["hypothesis"], "--json").stdout)
    assert from_file["score"] == pytest.approx(max(typed["probabilities"].values()), abs=1e-4)


@pytest.mark.parametrize("command", ["classify clf", "embed bert"])
def test_a_file_without_texts_is_refused_and_one_of_unknown_text_noted(command: str, classifier: Path, tmp_path: Path) -> None:
    given, output = tmp_path / "in.tsv", tmp_path / "out.jsonl"
    for text, code, said in (
        ("", 3, "it has no examples"),
        ("document\tlabel\n", 3, "it has no examples"),
        ("document\nпогода хороша\nпогода плоха\n", 0, f"note: {given}: 100.0%"),
    ):
        given.write_text(text)
        done = invoke(*command.split(), "--input", given, "--text-column", "document", "--output", output, code=code)
        assert said in " ".join(done.stderr.split())
        assert output.exists() == (code == 0)


def test_the_file_that_is_read_is_never_written(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its own name, by another way to it, through links from either side, or as one of a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    read = write_tsv(tmp_path / "in" / "some.tsv", reviews(4))
    before = read.read_bytes()
    (tmp_path / "link.tsv").symlink_to(read)
    pairs = [("in/some.tsv", other) for other in ("in/some.tsv", "./in/../in/some.tsv", "link.tsv")]
    for source, target in (*pairs, ("link.tsv", "in/some.tsv"), ("in", "in/some.tsv")):
        done = invoke("classify", classifier, "--input", source, "--text-column", "document", "--output", target, code=2)
        assert "overwritten" in done.stderr
        assert read.read_bytes() == before


def test_wrong_input(place: Path) -> None:
    (place / "book.xlsx").touch()
    for arguments, code, message in (
        ("--text-column documnt", 3, "'document'"),
        ("--learning-rates 1e-4,3", 2, "--learning-rates 3"),
        ("--train book.xlsx", 2, "CSV UTF-8"),
        ("--no-header", 2, "numbers from 1"),
        ("--dev-column text=x", 2, "--dev-column"),
        ("--dev train.tsv --dev-column txt=x", 2, "'text'"),
        ("--test train.tsv --test-column label=lable", 3, "'label'"),
        ("--encoding utf8x", 2, "'utf8x'"),
        ("--set metric=f1", 2, "accuracy, macro_f1, matthews"),
        ("--set seed=1 --set max_length=24 --set seed=2", 2, "seed is set"),
    ):
        train = () if "--train" in arguments else ("--train", "train.tsv")
        done = finetune(*train, *arguments.split(), "--output", "wrong", code=code)
        assert message in " ".join(done.stderr.split()), done.stderr
        assert done.stderr.count("Input should be") <= 1
        assert not (place / "wrong" / "config.json").exists()


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_told_once(place: Path, user_environment: dict[str, str]) -> None:
    """As on a full disk; the writes that were under way fail after the save has, each with a traceback of its own."""
    columns = ["--train", "train.tsv", "--text-column", "document"]
    command = [sys.executable, "-m", "tpulm", "finetune", "bert", *columns, *SETTINGS]
    limited = ["sh", "-c", 'ulimit -f 32; exec "$@"', "sh", *command, "--output", "limited"]
    done = subprocess.run(limited, env=user_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "Event loop" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: cannot save a checkpoint")]


def test_wrong_models(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, named = ("--train", "train.tsv", "--output", "wrong"), "klue/bert-base"
    assert "causal" in finetune(*train, "--task", "choice", model="decoder", code=2).stderr
    assert "not a classifier" in invoke("classify", "bert", "a film", code=2).stderr
    assert "either texts, or a file" in invoke("classify", "clf", "a film", "--input", "test.tsv", code=2).stderr
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(built("bert"), place / "cache"))
    said = finetune(*train, "--max-length", "999", model=named, code=2).stderr
    assert "32 positions" in said  # of the model in the Hub's cache
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *name, **files: 1 / 0)
    assert "hf download klue/bert-base --local-dir bert-base" in finetune(*train, model=named, code=2).stderr
    (place / "klue").mkdir()
    said = finetune(*train, model=named, code=2).stderr  # rather a name typed wrongly
    assert "no such folder" in said and "hf download" not in said


def test_small_numbers_are_written_with_their_digits(tmp_path: Path) -> None:
    regression = tpulm.Classifier(built("bert"), task="regression", max_length=16)
    regression.params = transformed(regression.first_params(0), 1e-7)
    regression.save_pretrained(tmp_path / "out")
    (tmp_path / "new.tsv").write_text("text\tscore\nthe film was good\t4.5\n")  # its own score, as in files of STS
    row = json.loads(invoke("classify", str(tmp_path / "out"), "--input", str(tmp_path / "new.tsv")).stdout)
    [expected] = regression.predict(["the film was good"])
    assert row["predicted"] == pytest.approx(expected, rel=1e-6, abs=0) and expected != 0 and row["score"] == "4.5"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "suffix", "score"), [("qa", "json", "dev_f1"), ("choice", "jsonl", "dev_accuracy")])
def test_it_answers(place: Path, task: str, suffix: str, score: str) -> None:
    files = ["--train", f"{task}_train.{suffix}", "--dev", f"{task}_dev.{suffix}", "--output", task, "--json"]
    settings = ["--epochs", "2", "--learning-rate", "1e-2", "--max-length", "24", "--set", "dropout=0.0"]
    tuned = finetune("--task", task, *files, *settings)
    assert json.loads(tuned.stdout)[score] > 0.9
    text, word = reviews(1)[0][0], "bad"
    if task == "qa":
        done = invoke("classify", "qa", "was it", "--context", text, "--json")
        (found,) = json.loads(done.stdout)
        assert (found["predicted"], text[found["start"] : found["end"]]) == (word, word)
        done = invoke("classify", "qa", "--input", "qa_dev.json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["id"] for row in rows] == [f"dev-{n}" for n in range(160)]
        assert all(row["predicted"] == row["context"][row["start"] : row["end"]] for row in rows)
        assert sum(row["predicted"] == row["answers"][0]["text"] for row in rows) > 144
    else:
        done = invoke("classify", "choice", "was it", "--choice", "the plot", "--choice", text, "--json")
        (found,) = json.loads(done.stdout)
        assert (found["predicted"], found["choice"]) == (1, text)
        done = invoke("classify", "choice", "--input", "choice_dev.jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert sum(row["predicted"] == row["label"] for row in rows) > 144
    said = invoke("classify", task, "was it", code=2).stderr
    assert f"a model of --task {task} needs --" in " ".join(said.split())


@pytest.mark.slow
def test_a_benchmark_is_shown_as_a_table_and_as_json(place: Path) -> None:
    settings = (f"--set={one}" for one in ("epochs=2", "max_length=16", "batch_size=16"))
    command = ["bench", "klue", ".", "--model", "bert", "--seeds", 2, "--learning-rates", "5e-3", *settings, "--workdir", "w"]
    table, again = invoke(*command, code=0), invoke(*command, "--json", code=0)
    assert "YNAT" in table.stdout and not table.stdout.startswith("{")
    for said in ("YNAT, macro F1", "85.73", "not supported", "missing", "Epochs and learning rates are chosen on a part"):
        assert said in again.stderr
    assert "ynat" in json.loads(again.stdout)["tasks"]


def test_what_cannot_be_benchmarked(place: Path) -> None:
    for arguments, message in (
        ("klue . --tasks nil", "'nli'"),
        ("klue . --learning-rates 5e5", "--learning-rates 5e5"),
        ("klue . --set epoch=1", "'epoch'"),
        ("klue . --set learning_rate=1e-4", "--learning-rates"),
        ("klue . --set seeds=1", "--seeds"),
        ("klue . --set task=regression", "--tasks"),
        ("klue . --set dev_fraction=0.2 --select dev", "leave it out"),
        ("klue . --encoding cp94", "'cp949'"),
        ("pairs . --seeds 1 --set epochs=1", "--seeds"),
        ("klue nowhere", "nowhere"),
    ):
        done = invoke("bench", *arguments.split(), "--model", "bert", "--workdir", "not-made", code=2)
        assert message in done.stderr and not (place / "not-made").exists()
