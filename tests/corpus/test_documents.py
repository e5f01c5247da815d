from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from command_line import invoke
from tpulm import dataset
from tpulm.config import RunConfig
from tpulm.corpus.documents import Samples, merge_samples
from tpulm.pipeline import preparation
from tpulm.runtime.workers import run_here

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def test_a_few_of_each_and_short():
    samples = Samples()
    samples.add("long", ["x" * 5_000, "  a\n b ", *map(str, range(10))])
    samples.add("none", [])
    assert samples.wants("other") and not samples.wants("long")
    assert samples.removed() == {"long": ("x" * 200 + "…", "a b", "0")}


def test_of_many_pieces_the_first_of_each_come_first():
    pieces = [{"a": ["1", "2"], "b": ["x"]}, {"a": ["3"]}, {"a": ["1", "4"]}]
    assert merge_samples(pieces) == {"a": ("1", "3", "2", "4"), "b": ("x",)}
    assert len(merge_samples({"a": [str(number)]} for number in range(100))["a"]) == 20


def test_everything_that_was_removed_is_shown(tmp_path: Path):
    workdir = tmp_path / "w"
    same, numbers = f"{' '.join(WORDS)} number {{}} of them all, and more.", (*range(60), *range(5))
    others = [" ".join(f"{word}{number}" for word in WORDS) for number in range(40)]
    marked = ["short", "write to someone@example.com please, or ring 010-1234-5678", "y" * 900, json.dumps({"no": "text"})]
    lines = [*map(same.format, numbers), *others, *marked]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "more.jsonl").write_text('{"text": "a line that is fine and long"}\n{"nothing": 1}\n', encoding="utf-8")
    sources = [str(tmp_path / "text.txt"), {"path": str(tmp_path / "more.jsonl"), "on_error": "skip"}]
    cleaning: dict[str, Any] = {"min_characters": 10, "max_characters": 500, "replace": ["email", "phone"]}
    run = RunConfig.model_validate({
        "corpus": {"sources": sources, "cleaning": cleaning, "near_duplicates": 0.5, "holdout_fraction": 0.1},
        "tokenizer": {"vocab_size": 90}, "data": {"sequence_length": 32, "part_bytes": 10_000},
    })  # fmt: skip
    preparation.prepare_data(run, workdir, runner=run_here)
    found = {item.reason: item for item in dataset.removed(workdir)}
    of_the_rest = {reason: item.times for reason, item in found.items() if not reason.endswith("duplicates")}
    assert of_the_rest == dict.fromkeys(("too_short", "too_long", "no_field", "email", "phone"), 1)
    assert found["too_short"].samples == ("short",) and found["too_long"].samples == ("y" * 200 + "…",)
    assert found["email"].samples == ("write to [someone@example.com] please, or ring 010-1234-5678",)
    assert found["phone"].samples == ("write to <email> please, or ring [010-1234-5678]",)
    assert "line 2" in found["no_field"].samples[0] and "more.jsonl" in found["no_field"].samples[0]
    counts = [dataset.load_split(workdir / "dataset" / split).counts for split in ("train", "holdout")]
    assert found["duplicates"].times == 5 and found["near_duplicates"].times > 30
    assert sum(found[f"{near}duplicates"].times for near in ("", "near_")) + sum(item.documents for item in counts) == 108
    assert all(text.startswith("one two") for text in found["near_duplicates"].samples)

    shown = invoke("dataset", "inspect", workdir, "--removed", "--json", code=0)
    assert "one two three" in shown.stdout + shown.stderr
    printed = json.loads(shown.stdout.splitlines()[-1])
    assert [(reason, item["times"]) for reason, item in printed.items()] == sorted(
        ((reason, item.times) for reason, item in found.items()), key=lambda pair: (-pair[1], pair[0])
    )
