"""The suites' table, and which files it finds in folders such as the benchmarks' repositories."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any

import pytest

from tpulm.config import FinetuneConfig, finetune_settings
from tpulm.config.finetune import METRICS
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning.suites import Suite, find_files, find_suite, mark_entities, read_parts, suites
from tpulm.finetuning.tasks import find_task

# As their repositories have them: KLUE-benchmark/KLUE, yahoojapan/JGLUE, and what GLUE's download script unpacks.
KLUE = """klue_benchmark/ynat-v1.1/ynat-v1.1_train.json klue_benchmark/ynat-v1.1/ynat-v1.1_dev.json
klue_benchmark/klue-sts-v1.1/klue-sts-v1.1_train.json klue_benchmark/klue-sts-v1.1/klue-sts-v1.1_dev.json
klue_benchmark/klue-nli-v1.1/klue-nli-v1.1_train.json klue_benchmark/klue-nli-v1.1/klue-nli-v1.1_dev.json
klue_benchmark/klue-ner-v1.1/klue-ner-v1.1_train.tsv klue_benchmark/klue-ner-v1.1/klue-ner-v1.1_dev.tsv
klue_benchmark/klue-re-v1.1/klue-re-v1.1_train.json klue_benchmark/klue-re-v1.1/klue-re-v1.1_dev.json
klue_benchmark/klue-mrc-v1.1/klue-mrc-v1.1_train.json klue_benchmark/klue-mrc-v1.1/klue-mrc-v1.1_dev.json README.md"""
JGLUE = """datasets/jsts-v1.1/train-v1.1.json datasets/jsts-v1.3/train-v1.3.json datasets/jsts-v1.3/valid-v1.3.json
datasets/jsts-v1.3/test-v1.3.json datasets/jnli-v1.3/train-v1.3.json datasets/jnli-v1.3/valid-v1.3.json
datasets/marc_ja-v1.0/train-v1.0.json datasets/marc_ja-v1.0/valid-v1.0.json
datasets/jsquad-v1.3/train-v1.3.json.gz datasets/jsquad-v1.3/valid-v1.3.json.gz
datasets/jcommonsenseqa-v1.3/train-v1.3.json datasets/jcommonsenseqa-v1.3/valid-v1.3.json"""
GLUE = "MNLI/train.tsv MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv MNLI/test_matched.tsv " + " ".join(
    f"{task}/{part}.tsv"
    for task in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "QNLI", "RTE")
    for part in ("train", "dev", "test")
)


def found(suite: str, task: str, names: str) -> tuple[dict[str, str], str, str]:
    one = find_files(find_suite(suite).tasks[task], PurePath("dir"), names.split())
    return {part: path.relative_to("dir").as_posix() for part, path in one.files.items()}, one.missing, one.note


@pytest.mark.parametrize(("suite", "names"), [("klue", KLUE), ("jglue", JGLUE), ("glue", GLUE)])
def test_the_files_of_the_repositories_are_found(suite: str, names: str) -> None:
    for name, task in find_suite(suite).tasks.items():
        if not task.unsupported:
            files, missing, note = found(suite, name, names)
            assert set(files) == {"train", "dev", *task.also} and not missing and not note, name
            assert len(set(files.values())) == len(files)
            assert name != "jsts" or files["train"] == "datasets/jsts-v1.3/train-v1.3.json", "the newest version"


YNAT = "ynat-v1.9_train.json ynat-v1.9_dev.json ynat-v1.10_train.json ynat-v1.10_dev.json ynat-v1.2_train.json"
JSTS = "jsts-v1.10/train-v1.10.json jsts-v1.10/valid-v1.10.json jsts-v1.9/train-v1.9.json jsts-v1.9/valid-v1.9.json"


@pytest.mark.parametrize(
    ("suite", "task", "names", "train", "dev"),
    [
        ("klue", "ynat", YNAT, "ynat-v1.10_train.json", "ynat-v1.10_dev.json"),  # the newest version is by numbers
        ("jglue", "jsts", JSTS, "jsts-v1.10/train-v1.10.json", "jsts-v1.10/valid-v1.10.json"),
        ("glue", "cola", "a/CoLA/train.tsv a/CoLA/dev.tsv old/CoLA/dev.tsv", "a/CoLA/train.tsv", "a/CoLA/dev.tsv"),
        # the benchmark's own names come first
        ("klue", "ynat", "b/ynat_train.json b/ynat_dev.json a/ynat-v1_train.json a/ynat-v1_dev.json", "a/ynat-v1_train.json",
         "a/ynat-v1_dev.json"),
        ("klue", "ynat", "train/ynat_train.json dev/ynat_dev.json", "train/ynat_train.json", "dev/ynat_dev.json"),
        ("jglue", "jsts", "ja/jsts_train.json.gz ja/jsts_valid.json.gz", "ja/jsts_train.json.gz", "ja/jsts_valid.json.gz"),
    ],
)  # fmt: skip
def test_both_files_are_of_one_version_and_one_folder(suite: str, task: str, names: str, train: str, dev: str) -> None:
    assert found(suite, task, names) == ({"train": train, "dev": dev}, "", "")


def test_a_single_file_is_split_and_that_is_said() -> None:
    files, missing, note = found("klue", "nli", "ko/klue_nli_2000.json.gz ko/klue_ner_4000.tsv.gz")
    assert files == {"dev": "ko/klue_nli_2000.json.gz"} and not missing
    assert note.startswith("no klue-nli-v1*_train.json: 20% of klue_nli_2000.json.gz is reported on")


@pytest.mark.parametrize("names", ["", "RTE/test.tsv", "RTE/train.tsv", "xRTE/dev.tsv"])
def test_what_is_missing_is_named(names: str) -> None:
    files, missing, _ = found("glue", "rte", names)
    assert not files and "no RTE/dev.tsv" in missing
    assert ("no RTE/train.tsv" in missing) == ("RTE/train.tsv" not in names)


@pytest.mark.parametrize("name", ["klue", "jglue", "glue"])
def test_entries_fit_the_tasks_of_fine_tuning(name: str) -> None:
    suite: Suite = suites()[name]
    for one in suite.baselines:
        assert set(one.scores) <= set(suite.tasks) and one.source
        assert all(0 < score < 100 for scores in one.scores.values() for score in scores)
        assert all(len(scores) <= max(2, len(suite.tasks[task].metrics)) for task, scores in one.scores.items())
    for task in suite.tasks.values():
        if not task.why_not:
            settings = {"metric": task.metrics[0], **task.settings, "task": task.task}
            assert bool(task.negative) == ("micro_f1" in task.metrics)
            config: FinetuneConfig = finetune_settings(None, settings)
            assert config.chosen_by in METRICS[task.task]
            assert bool(task.positive) == ("f1" in task.metrics and task.task == "classification")
            assert not task.positive or task.positive in task.labels


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'klu'.*'klue'"):
        find_suite("klu")


NLI = {"premise": "비가 온다", "hypothesis": "젖는다", "gold_label": "neutral"}
RE = {
    "guid": "klue-re-v1_train_00000",
    "label": "no_relation",
    "sentence": "조지 해리슨이 쓰고 비틀즈가",
    "subject_entity": {"word": "비틀즈", "start_idx": 11, "end_idx": 13, "type": "ORG"},
    "object_entity": {"word": "조지 해리슨", "start_idx": 0, "end_idx": 5, "type": "PER"},
}


def in_json(row: dict[str, Any], **changes: Any) -> bytes:
    """A file of twenty rows, of which the last is changed, in an encoding of Windows."""
    return json.dumps([row] * 19 + [row | changes], ensure_ascii=False).encode("cp949")


@pytest.mark.parametrize(
    ("name", "content", "encoding", "message"),
    [
        ("nli", in_json(NLI, gold_label="-"), "cp949", "NLI"),
        ("nli", in_json(NLI), "utf-8", "--encoding"),
        ("ner", "비\tB-PER\n".encode("cp949"), "utf-8", "--encoding"),
        ("cola", b"a\t1\n", "utf-8", "no column"),
        ("re", in_json(RE, subject_entity=None), "cp949", "dev"),
        ("re", in_json(RE, sentence="조지"), "cp949", "dev"),
        ("re", in_json(RE, subject_entity={"start_idx": 3}), "cp949", "dev"),
    ],
)
def test_files_with_other_rows_are_refused(name: str, content: bytes, encoding: str, message: str, tmp_path: Path) -> None:
    """And no row of a benchmark can be skipped."""
    path = tmp_path / ("dev.tsv" if name in ("ner", "cola") else "dev.json")
    path.write_bytes(content)
    task = find_suite("glue" if name == "cola" else "klue").tasks[name]
    with pytest.raises(DataError, match=message) as failure:
        read_parts(task, find_task(FinetuneConfig(task=task.task)), {"train": path, "dev": path}, encoding)
    assert "skip" not in str(failure.value)


def test_two_entities_are_marked_as_klue_marks_them() -> None:
    """The sentence and the marked one are of the comments of klue_baseline/data/klue_re.py @443c38b; a later subject, too."""
    assert mark_entities(RE)["sentence"] == "<obj>조지 해리슨</obj>이 쓰고 <subj>비틀즈</subj>가"
    turned = {**RE, "subject_entity": RE["object_entity"], "object_entity": RE["subject_entity"]}
    assert mark_entities(turned)["sentence"] == "<subj>조지 해리슨</subj>이 쓰고 <obj>비틀즈</obj>가"
