"""The notebook, from its first cell to its last, as a hosted runtime would execute it; and again after a recycled runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import compiled
from notebooks import execute, printed, shown
from toy_runs import SMALL, write_corpus

NOTEBOOK = Path(__file__).parents[2] / "examples" / "colab.ipynb"


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_no_outputs_are_stored_and_every_cell_parses() -> None:
    cells = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    for cell in cells.values():
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile(_source(cell), cell["id"], "exec")
    assert cells["parameters"]["metadata"]["tags"] == ["parameters"]


def _with_parameters(folder: Path, values: dict[str, Any]) -> Path:
    """The notebook with other values in the cell of parameters, which has to know each of them."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    (cell,) = [cell for cell in notebook["cells"] if cell["id"] == "parameters"]
    known: dict[str, Any] = {}
    exec(_source(cell), known)
    assert values.keys() <= known.keys()
    cell["source"] = "\n".join([_source(cell), *(f"{name} = {value!r}" for name, value in values.items())])
    (folder / "notebook.ipynb").write_text(json.dumps(notebook))
    return folder / "notebook.ipynb"


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, Any]:
    """A model of one layer, six steps, and Python's documentation to classify."""
    return {
        "CORPUS": str(write_corpus(tmp_path / "corpus.txt.gz")),
        "MAX_DOCUMENTS": 300,
        "STEPS": 6,
        "SETTINGS": {**SMALL, "train.evaluate_every_steps": 3},
        "WORKDIR": "w",
        "PROMPTS": ["the [MASK] sat on a mat"],
        "FINETUNE_SETTINGS": {"epochs": 2, "batch_size": 64, "max_length": 16},
    }


@pytest.mark.slow
def test_the_whole_notebook_and_again(toy: dict[str, Any], tmp_path: Path, user_environment: dict[str, str]) -> None:
    notebook = _with_parameters(tmp_path, toy)
    first = execute(notebook, user_environment)
    assert "1 CPU device" in printed(first["device"])
    assert "Change runtime type" in printed(first["device"])
    assert "w can be written to" in printed(first["login"])
    [progress], [page] = shown(first["pretrain"], "text/html"), shown(first["report"], "text/html")
    assert "<span>Training</span>" in progress and "6/6 steps" in progress and printed(first["pretrain"]).count("\n") == 6
    assert page.startswith("<iframe srcdoc=") and "Done after 6 steps." in page
    assert "corpus done, tokenizer done, dataset done, train done, evaluate done, export done" in printed(first["pretrain"])
    assert printed(first["masks"]).count("%") == 5
    assert "kept: epoch " in printed(first["finetune"])
    assert "random weights: 0." in printed(first["scratch"])
    assert printed(first["predict"]).count("%") == 3
    assert [len(shown(first[name], "image/png")) for name in ("curves", "scores")] == [1, 1]

    again = execute(notebook, user_environment)
    assert "train skipped, evaluate skipped, export skipped" in printed(again["pretrain"])
    assert "trained before, with the same inputs" in printed(again["finetune"])
    for name in ("masks", "scratch", "predict"):
        assert printed(again[name]) == printed(first[name])
    assert [len(shown(again[name], "image/png")) for name in ("curves", "scores")] == [1, 1]


@pytest.mark.slow
def test_the_notebook_in_a_bucket_with_labelled_text_of_ones_own_on_two_devices(
    gcs: Any, toy: dict[str, Any], labelled: Path, tmp_path: Path, user_environment: dict[str, str]
) -> None:
    files = {"TRAIN_FILE": str(labelled / "train.tsv"), "TEXT_COLUMN": "document", "LABEL_COLUMN": "animal"}
    notebook = _with_parameters(tmp_path, {**toy, **files, "WORKDIR": "gs://runs/notebook", "COMPARE_WITH_SCRATCH": False})
    environment = {**user_environment, "XLA_FLAGS": compiled.flags(2)}
    cells = execute(notebook, environment)
    assert "2 CPU devices" in printed(cells["device"])
    assert "gcloud auth application-default login" in printed(cells["login"])
    assert "gs://runs/notebook can be written to" in printed(cells["login"])
    assert "the classifier: gs://runs/notebook/classifier" in printed(cells["finetune"])
    assert not (tmp_path / "w").exists()
