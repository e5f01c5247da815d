"""Pages made from the code when the site is built: every setting with its type, default and comment, and every recipe."""

from __future__ import annotations

import ast
import inspect
import json
import re
from typing import Any, Literal, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from tpulm import config
from tpulm.config import FinetuneConfig, schema

SETTINGS_HEAD = """# Settings

Everything a run file may set, made from `src/tpulm/config/schema.py`. A run file is TOML; `--set train.steps=1000` on the
command line overrides one value. An unknown name is an error that suggests the nearest. `"none"` unsets what may be `None`.
"""
FINETUNE_HEAD = """
## Fine-tuning

The settings of [fine-tuning](fine-tuning.md), made from `src/tpulm/config/finetune.py`: `tpulm finetune --set patience=5`,
`tpulm.Classifier(model, patience=5)`. `checkpoint.…` and `hardware.…` are those of `[train.checkpoint]` and `[hardware]` above.
"""
RECIPES_HEAD = """# Recipes

A recipe is a run file that comes with tpulm: `extends = "bert-mini"` in your own file, or `tpulm run bert-mini` with `--set`.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages (mkdocs calls this)."""
    for name, text in (("settings.md", settings_page()), ("recipes.md", recipes_page())):
        files.append(File.generated(config, name, content=text))
    return files


def settings_page() -> str:
    return "\n".join([SETTINGS_HEAD, *_sections("", schema.RunConfig), FINETUNE_HEAD, *_table(FinetuneConfig)])


def recipes_page() -> str:
    parts = [RECIPES_HEAD]
    for name in config.list_recipes():
        parts.append(f"## {name}\n\n```ini\n{config.recipe_text(name).rstrip()}\n```\n")
    return "\n".join(parts)


def _sections(prefix: str, model: type[BaseModel], *, many: bool = False) -> list[str]:
    """A heading and a table for the model's own fields, then the same for each group of settings below it."""
    annotations = _annotations(model)
    below = []
    for name, field in model.model_fields.items():
        group = _group(field.annotation)
        if group is not None:
            below += _sections(f"{prefix}{name}.", group, many=annotations[name].startswith("tuple"))
    table_name = prefix.rstrip(".")
    title = (f"`[[{table_name}]]`" if many else f"`[{table_name}]`") if prefix else "The run itself"
    text = inspect.cleandoc(model.__doc__ or "") if "__doc__" in vars(model) and model.__doc__ else ""
    return [f"\n## {title}\n", text, "", *_table(model), *below]


def _table(model: type[BaseModel]) -> list[str]:
    """Of the model's own fields, without the groups below it."""
    comments, annotations = _comments(model), _annotations(model)
    rows = []
    for name, field in model.model_fields.items():
        if _group(field.annotation) is None or annotations[name].startswith("tuple"):
            cells = (f"`{name}`", f"`{annotations[name]}`", f"`{_shown(field)}`", comments.get(name, ""))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return ["| setting | type | default | |", "|---|---|---|---|", *rows] if rows else []


def _group(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((group for item in getattr(annotation, "__args__", ()) if (group := _group(item))), None)


def _shown(field: Any) -> str:
    value = field.get_default()
    return str(value) if value is None or value == () else json.dumps(value, ensure_ascii=False)


def _annotations(model: type[BaseModel]) -> dict[str, str]:
    """Types as a reader wants them: "Positive" spelled out as int, bounds left to the error message."""
    found = {}
    for statement in _body(model):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ast.unparse(statement.annotation)
            text = re.sub(r"Annotated\[(\w+), Field\(.*?\)\]", r"\1", text)
            text = re.sub(r"\b[A-Z]\w+\b", lambda match: _spelled_out(match.group(), model), text)
            text = re.sub(r"Literal\[(.*)\]", lambda match: match.group(1).replace(", ", " | "), text)
            text = re.sub(r"\b(Positive|NonNegative|Seed)\b", "int", text)
            found[statement.target.id] = re.sub(r"\b(PositiveFloat|Fraction)\b", "float", text)
    return found


def _spelled_out(name: str, model: type[BaseModel]) -> str:
    """The choices behind a name that the model's module gives to a Literal; any other name as it is."""
    choices = getattr(inspect.getmodule(model), name, None)
    return " | ".join(map(repr, get_args(choices))) if get_origin(choices) is Literal else name


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The comment at the end of each field's line, or on the lines above it."""
    found, above = {}, []
    for line in inspect.getsource(model).splitlines():
        if comment := re.match(r"    # (.+)$", line):
            above.append(comment.group(1))
        elif field := re.match(r"    (\w+): .*?(?:  # (.+))?$", line):
            found[field.group(1)] = " ".join(filter(None, [*above, field.group(2)]))
            above = []
        else:
            above = []
    return found


def _body(model: type[BaseModel]) -> list[ast.stmt]:
    definition = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(definition, ast.ClassDef)
    return definition.body
