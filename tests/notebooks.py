"""Executes notebooks as a hosted runtime would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    NotebookClient(notebook, km=manager, timeout=240, coalesce_streams=True).execute()
finally:
    nbformat.write(notebook, target)
"""


def execute(notebook: Path, environment: dict[str, str]) -> dict[str, dict[str, Any]]:
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


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def shown(cell: dict[str, Any], kind: str) -> list[str]:
    """What it shows of a kind, such as "text/html"."""
    found = [output["data"] for output in cell["outputs"] if kind in output.get("data", {})]
    return ["".join(data[kind]) for data in found]
