"""Imports point one way, and what must start fast takes nothing heavy with it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
OURS = ("tpulm", "cloud_emulator")

# What each part of the package may import of the others; itself always. Lazy imports, inside functions, count like any other.
BASE = {"errors", "runtime", "workfolder", "config", "storage", "accelerators", "progress", "readable", "special_tokens"}
BASE |= {"protos"}
TEXT = {"corpus", "tokenization", "dataset", "labelled"}
MODEL = {"nn", "models", "objectives"}
PURE = BASE - {"storage", "runtime", "workfolder"}  # the model's side does no input or output
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "cloud_emulator": set(),  # a package of its own
    "rehearsal": BASE | {"cloud_emulator", "cloud", "train"},  # cloud_emulator.rehearsal, of a run of tpulm
    "cloud": BASE | {"pages"},
    "corpus": BASE,
    "pages": {"readable"},
    "tokenization": BASE | {"corpus", "pages"},
    "dataset": BASE | {"corpus", "tokenization"},
    "labelled": BASE | {"corpus", "tokenization"},
    "nn": PURE,
    "models": PURE | {"nn"},
    "objectives": PURE | {"nn", "models"},
    "train": BASE | TEXT | MODEL,
    "convert": BASE | TEXT | MODEL | {"train", "pages"},
    "plan": BASE | TEXT | MODEL | {"train"},
    "predict": BASE | TEXT | MODEL | {"train", "convert"},
    "notebook": BASE | {"pages"},
    "report": BASE | TEXT | {"train", "convert", "pages", "cloud"},
    "finetuning": BASE | TEXT | MODEL | {"train", "convert", "predict", "report", "notebook"},
    "pipeline": BASE | TEXT | MODEL | {"train", "convert", "plan", "predict", "finetuning", "report", "notebook"},
}
MAY_IMPORT["cli"] = MAY_IMPORT["pipeline"] | {"pipeline", "cloud_emulator", "rehearsal", "cloud"}
MAY_IMPORT["tpulm"] = MAY_IMPORT["cli"] | {"cli"}  # tpulm/__init__.py: the library's face
MAY_IMPORT["__main__"] = MAY_IMPORT["tpulm"]

JAX = {"jax", "jaxlib", "optax", "orbax", "flax", "chex"}
NEVER: dict[str, set[str]] = {part: {"torch", "tensorflow", "transformers"} for part in MAY_IMPORT}  # wherever it stands
for part in (*TEXT, "cloud_emulator", "cloud"):
    NEVER[part] |= JAX
HEAVY = JAX | {"numpy", "jaxtyping", "scipy", "grain", "tensorstore", "tokenizers", "pyarrow", "safetensors", "tensorboardX"}
HEAVY |= {"jinja2"}
LIGHT_AT_IMPORT = BASE | {"cli", "tpulm"}  # may load the heavy ones only inside functions


class Import(NamedTuple):
    module: str  # dotted and absolute
    line: int
    lazy: bool  # inside a function, or for the type checker alone


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """ "tpulm.nn.layers" -> "nn"; "tpulm" -> "tpulm"; "cloud_emulator.clock" -> "cloud_emulator"."""
    return module.split(".")[1] if module.startswith(("tpulm.", "cloud_emulator.rehearsal")) else module.split(".")[0]


def is_module(name: str) -> bool:
    path = SOURCE / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports(tree: ast.AST, module: str, package: str, lazy: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if base.split(".")[0] in OURS and is_module(inner) else base, node.lineno, lazy)
        else:
            deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, module, package, lazy or deferred or for_types)


@cache
def imports_of(file: Path) -> list[Import]:
    module = module_name(file)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return list(imports(ast.parse(file.read_text(encoding="utf-8"), str(file)), module, package))


def violations(part: str, found: Import) -> str | None:
    """The rule that an import breaks, in words, or None."""
    top = found.module.split(".")[0]
    if top in OURS:
        other = part_of(found.module)
        if other == part or other in MAY_IMPORT[part]:
            return None
        return f"'{part}' must not import '{other}'; it may import {', '.join(sorted(MAY_IMPORT[part] - {part}))}"
    if top in NEVER[part]:
        return f"'{part}' must not import '{top}', not even inside a function"
    if top in HEAVY and part in LIGHT_AT_IMPORT and not found.lazy:
        return f"'{part}' starts every command, so it must import '{top}' inside the function that needs it"
    return None


FILES = sorted(file for package in OURS for file in (SOURCE / package).rglob("*.py"))


def test_every_part_has_a_place_in_the_table():
    missing = {part_of(module_name(file)) for file in FILES} - set(MAY_IMPORT)
    assert not missing, f"say in tests/test_imports.py what these may import: {', '.join(sorted(missing))}"


def test_imports_point_one_way():
    broken = [
        f"{file.relative_to(SOURCE.parent)}:{found.line}: {rule}"
        for file in FILES
        for found in imports_of(file)
        if (rule := violations(part_of(module_name(file)), found))
    ]
    assert not broken, "\n".join(["imports against the layers (the table is in tests/test_imports.py):", *broken])


def test_no_module_imports_itself_in_a_circle():
    """`CycleError` shows it; what both need belongs below them."""
    graph = {
        module_name(file): {found.module for found in imports_of(file) if found.module.split(".")[0] in OURS} for file in FILES
    }
    TopologicalSorter(graph).prepare()


def test_the_rules_themselves():
    for part, source, expected in (
        ("nn", "import tpulm.dataset", "must not import 'dataset'"),
        ("nn", "def f():\n    from tpulm import storage", "must not import 'storage'"),
        ("corpus", "from ..tokenization import train", "must not import 'tokenization'"),
        ("corpus", "def f():\n    import jax.numpy as jnp", "not even inside a function"),
        ("storage", "import numpy as np", "inside the function that needs it"),
        ("cloud", "def f():\n    import cloud_emulator.recorded", "must not import 'cloud_emulator'"),
        ("train", "from tpulm import __version__", "must not import 'tpulm'"),
        ("storage", "def f():\n    import tensorstore\nif TYPE_CHECKING:\n    import numpy as np", None),
        ("models", "from tpulm.nn.params import ParamSpec\nimport jax", None),
    ):
        found = imports(ast.parse(source), f"tpulm.{part}.thing", f"tpulm.{part}")
        messages = [message for item in found if (message := violations(part, item))]
        assert (messages == []) if expected is None else (expected in messages[0]), source


HELP = """
from tpulm.cli.app import main
for arguments in (["--help"], ["run", "--help"], ["finetune", "--help"]):
    sys.argv = ["tpulm", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert stop.code in (0, None), stop.code
"""


BASE_AND_HELP = f"import {', '.join(f'tpulm.{module}' for module in sorted(BASE))}\n{HELP}"
TEXT_LAYERS = "import tpulm.corpus, tpulm.tokenization, tpulm.dataset, tpulm.labelled, tpulm.pipeline.preparation"


@pytest.mark.parametrize(
    ("code", "never"), [(BASE_AND_HELP, HEAVY), (TEXT_LAYERS, JAX | {"jinja2"})], ids=["base and --help", "the text layers"]
)
def test_what_starts_fast_loads_nothing_heavy(user_environment: dict[str, str], code: str, never: set[str]):
    script = f"import sys\n{code}\nprint('MODULES', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], env=user_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.rpartition("MODULES ")[2].split()) & never == set()


def test_what_is_offered_is_what_there_is():
    import tpulm

    assert set(tpulm.__all__) == set(tpulm._HOMES) <= set(dir(tpulm))  # pyright: ignore[reportPrivateUsage]
    assert all(name in tpulm.__all__ or name.startswith("__") for name in dir(tpulm))
