"""The suites' table, and which files it finds in folders such as the benchmarks' repositories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath

import pytest

from tpulm.config import FinetuneConfig, finetune_settings
from tpulm.config.finetune import METRICS
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning.suites import BenchTask, Suite, find_files, find_suite, mark_entities, read_parts, suites
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


def found(suite: str, task: str, names: str | Sequence[str]) -> tuple[dict[str, str], str, str]:
    listed = names.split() if isinstance(names, str) else list(names)
    one = find_files(find_suite(suite).tasks[task], PurePath("dir"), listed)
    return {part: path.relative_to("dir").as_posix() for part, path in one.files.items()}, one.missing, one.note


@pytest.mark.parametrize(("suite", "names"), [("klue", KLUE), ("jglue", JGLUE), ("glue", GLUE)])
def test_the_files_of_the_repositories_are_found(suite: str, names: str) -> None:
    for name, task in find_suite(suite).tasks.items():
        if not task.unsupported:
            files, missing, note = found(suite, name, names)
            assert set(files) == {"train", "dev", *task.also} and not missing and not note, name
            assert len(set(files.values())) == len(files)
            assert name != "jsts" or files["train"] == "datasets/jsts-v1.3/train-v1.3.json", "the newest version"


def test_the_newest_version_is_by_numbers_and_parts_are_of_one_folder() -> None:
    names = [f"ynat-v1.{version}_{part}.json" for version in (9, 10, 2) for part in ("train", "dev")]
    files, _, _ = found("klue", "ynat", names)
    assert files == {"train": "ynat-v1.10_train.json", "dev": "ynat-v1.10_dev.json"}
    names = [f"jsts-v1.{version}/{part}-v1.{version}.json" for version in (10, 9) for part in ("train", "valid")]
    files, _, _ = found("jglue", "jsts", names)
    assert files == {"train": "jsts-v1.10/train-v1.10.json", "dev": "jsts-v1.10/valid-v1.10.json"}
    files, _, _ = found("glue", "cola", "a/CoLA/train.tsv a/CoLA/dev.tsv old/CoLA/dev.tsv")
    assert files == {"train": "a/CoLA/train.tsv", "dev": "a/CoLA/dev.tsv"}
    files, _, _ = found("klue", "ynat", "b/ynat_train.json b/ynat_dev.json a/ynat-v1.1_train.json a/ynat-v1.1_dev.json")
    assert files["train"] == "a/ynat-v1.1_train.json", "the benchmark's own name comes first"
    files, _, _ = found("klue", "ynat", "train/ynat_train.json dev/ynat_dev.json")
    assert files == {"train": "train/ynat_train.json", "dev": "dev/ynat_dev.json"}


def test_files_may_lie_flat_and_be_compressed() -> None:
    files, _, note = found("jglue", "jsts", ["ja/jsts_train.json.gz", "ja/jsts_valid.json.gz"])
    assert files == {"train": "ja/jsts_train.json.gz", "dev": "ja/jsts_valid.json.gz"} and not note


def test_a_single_file_is_split_and_that_is_said() -> None:
    files, missing, note = found("klue", "nli", ["ko/klue_nli_2000.json.gz", "ko/klue_ner_4000.tsv.gz"])
    assert files == {"dev": "ko/klue_nli_2000.json.gz"} and not missing
    assert note.startswith("no klue-nli-v1*_train.json: 20% of klue_nli_2000.json.gz is reported on")


@pytest.mark.parametrize("names", [[], ["RTE/test.tsv"], ["RTE/train.tsv"], ["xRTE/dev.tsv"]])
def test_what_is_missing_is_named(names: list[str]) -> None:
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


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'klu'.*'klue'"):
        find_suite("klu")
    with pytest.raises(ConfigError, match="'nil'"):
        find_suite("klue").chosen_tasks(["sts", "nil"])


def test_labels_that_are_not_the_benchmarks_are_refused(tmp_path: PurePath) -> None:
    entry = find_suite("klue").tasks["nli"]
    rows = [{"premise": "a", "hypothesis": "b", "gold_label": label} for label in ("neutral", "entailment", "-")]
    path = tmp_path / "klue-nli-v1.1_train.json"
    path.write_text(json.dumps(rows))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match="NLI"):
        read_parts(entry, find_task(FinetuneConfig()), {"train": path, "dev": path})


def refused(entry: BenchTask, path: Path, message: str) -> None:
    """The file is refused, and no row of a benchmark can be skipped."""
    with pytest.raises(DataError, match=message) as failure:
        read_parts(entry, find_task(FinetuneConfig(task=entry.task)), {"train": path, "dev": path})
    assert "skip" not in str(failure.value)


def test_rows_are_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes("비\tB-PER\n".encode("cp949"))
    refused(find_suite("klue").tasks["ner"], path, "--encoding")
    path.write_text("a\t1\n")
    refused(find_suite("glue").tasks["cola"], path, "no column")


def test_files_in_a_named_encoding(tmp_path: Path) -> None:
    path, row = tmp_path / "dev.json", {"premise": "비가 온다", "hypothesis": "젖는다", "gold_label": "neutral"}
    path.write_text(json.dumps([row] * 10, ensure_ascii=False), encoding="cp949")
    refused(find_suite("klue").tasks["nli"], path, "--encoding")
    parts = read_parts(find_suite("klue").tasks["nli"], find_task(FinetuneConfig()), {"train": path, "dev": path}, "cp949")
    assert parts["dev"].texts[0] == "비가 온다"


def test_two_entities_are_marked_as_klue_marks_them() -> None:
    """The sentence and the marked one are of the comments of klue_baseline/data/klue_re.py @443c38b; a later subject, too."""
    row = {
        "sentence": "조지 해리슨이 쓰고 비틀즈가",
        "subject_entity": {"word": "비틀즈", "start_idx": 11, "end_idx": 13, "type": "ORG"},
        "object_entity": {"word": "조지 해리슨", "start_idx": 0, "end_idx": 5, "type": "PER"},
    }
    assert mark_entities(row)["sentence"] == "<obj>조지 해리슨</obj>이 쓰고 <subj>비틀즈</subj>가"
    turned = {**row, "subject_entity": row["object_entity"], "object_entity": row["subject_entity"]}
    assert mark_entities(turned)["sentence"] == "<subj>조지 해리슨</subj>이 쓰고 <obj>비틀즈</obj>가"


@pytest.mark.parametrize("changed", [{"subject_entity": None}, {"sentence": "조지"}, {"subject_entity": {"start_idx": 3}}])
def test_rows_without_two_entities_are_refused(changed: dict[str, object], tmp_path: PurePath) -> None:
    row = {
        "guid": "klue-re-v1_train_00000",
        "label": "no_relation",
        "sentence": "조지 해리슨이 쓰고 비틀즈가",
        "subject_entity": {"start_idx": 11, "end_idx": 13},
        "object_entity": {"start_idx": 0, "end_idx": 5},
    }
    path = tmp_path / "klue-re-v1.1_train.json"
    path.write_text(json.dumps([row, {**row, **changed}]))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DataError, match=r"train\.json"):
        read_parts(find_suite("klue").tasks["re"], find_task(FinetuneConfig()), {"train": path, "dev": path})
