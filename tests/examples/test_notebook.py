"""The notebook, from its first cell to its last, as a hosted runtime would execute it; and again after a recycled runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toy_runs import write_corpus

NOTEBOOK = Path(__file__).parents[2] / "examples" / "colab.ipynb"

# In a process of its own: the client of the kernel leaves sockets and event loops to the garbage collector.
EXECUTE = """
import sys
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

source, target, kernels = sys.argv[1:]
manager = AsyncKernelManager(
    kernel_name="tests", kernel_spec_manager=KernelSpecManager(kernel_dirs=[kernels]), ip="127.0.0.1"
)
notebook = nbformat.read(source, 4)
try:
    NotebookClient(notebook, km=manager, timeout=240).execute()
finally:
    nbformat.write(notebook, target)
"""


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _cells() -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}


def _printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def _figures(cell: dict[str, Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def test_no_outputs_are_stored_and_every_cell_parses() -> None:
    for cell in _cells().values():
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile(_source(cell), cell["id"], "exec")
    assert _cells()["parameters"]["metadata"]["tags"] == ["parameters"]


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


def _execute(notebook: Path, environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Its cells with their outputs, none of which is an error."""
    folder = notebook.parent
    kernel = folder / "kernels" / "tests"
    kernel.mkdir(parents=True, exist_ok=True)
    start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": start, "display_name": "tests", "language": "python"}))
    own = {
        name: str(folder / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR")
    }
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook), str(folder / "executed.ipynb"), str(folder / "kernels")],
        cwd=folder,
        env={**environment, **own},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((folder / "executed.ipynb").read_text(encoding="utf-8"))["cells"]
    kinds = {output["output_type"] for cell in cells for output in cell.get("outputs", ())}
    assert "error" not in kinds
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    return {cell["id"]: cell for cell in cells}


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, Any]:
    """A model of one layer, six steps, and Python's documentation to classify."""
    return {
        "CORPUS": str(write_corpus(tmp_path / "corpus.txt.gz")),
        "MAX_DOCUMENTS": 300,
        "STEPS": 6,
        "SETTINGS": {
            "corpus.holdout_fraction": 0.1,
            "tokenizer.vocab_size": 60,
            "data.sequence_length": 32,
            "model.num_layers": 1,
            "model.hidden_size": 32,
            "model.intermediate_size": 64,
            "model.max_positions": 32,
            "train.batch_size": 8,
            "train.log_every_steps": 2,
            "train.evaluate_every_steps": 3,
            "train.optimizer.warmup_steps": 2,
        },
        "WORKDIR": "w",
        "PROMPTS": ["the [MASK] sat on a mat"],
        "FINETUNE_SETTINGS": {"epochs": 2, "batch_size": 64, "max_length": 16},
    }


@pytest.mark.slow
def test_the_whole_notebook_and_again_after_a_recycled_runtime(
    toy: dict[str, Any], tmp_path: Path, user_environment: dict[str, str]
) -> None:
    notebook = _with_parameters(tmp_path, toy)
    first = _execute(notebook, user_environment)
    assert "1 CPU device" in _printed(first["device"])
    assert "Change runtime type" in _printed(first["device"])
    assert "w can be written to" in _printed(first["login"])
    assert "corpus done, tokenizer done, dataset done, train done, evaluate done, export done" in _printed(first["pretrain"])
    assert _printed(first["masks"]).count("%") == 5
    assert "kept: epoch " in _printed(first["finetune"])
    assert "random weights: 0." in _printed(first["scratch"])
    assert _printed(first["predict"]).count("%") == 3
    assert (_figures(first["curves"]), _figures(first["scores"])) == (1, 1)

    again = _execute(notebook, user_environment)
    assert "train skipped, evaluate skipped, export skipped" in _printed(again["pretrain"])
    assert "trained before, with the same inputs" in _printed(again["finetune"])
    for name in ("masks", "scratch", "predict"):
        assert _printed(again[name]) == _printed(first[name])
    assert (_figures(again["curves"]), _figures(again["scores"])) == (1, 1)


@pytest.mark.slow
def test_the_notebook_in_a_bucket_with_labelled_text_of_ones_own_on_eight_devices(
    gcs: Any, toy: dict[str, Any], labelled: Path, tmp_path: Path, user_environment: dict[str, str]
) -> None:
    files = {"TRAIN_FILE": str(labelled / "train.tsv"), "TEXT_COLUMN": "document", "LABEL_COLUMN": "animal"}
    notebook = _with_parameters(tmp_path, {**toy, **files, "WORKDIR": "gs://runs/notebook", "COMPARE_WITH_SCRATCH": False})
    environment = {**user_environment, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    cells = _execute(notebook, environment)
    assert "8 CPU devices" in _printed(cells["device"])
    assert "gcloud auth application-default login" in _printed(cells["login"])
    assert "gs://runs/notebook can be written to" in _printed(cells["login"])
    assert "the classifier: gs://runs/notebook/classifier" in _printed(cells["finetune"])
    assert not (tmp_path / "w").exists()
