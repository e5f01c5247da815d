"""The pages of the reference, from the code: `python docs/generate.py` writes them.

Settings and recipes are tracked, so that they can be read without building the site; a test fails where they are out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

import tpulm
from tpulm import config
from tpulm.cli.app import app
from tpulm.cloud.settings import CloudSettings
from tpulm.config.reference import Group, groups_of

SETTINGS_HEAD = """# Settings

Everything a run file may set, made from `src/tpulm/config/schema.py`. A run file is TOML; `--set train.steps=1000` on the
command line overrides one value. An unknown name is an error that suggests the nearest. `"none"` unsets what may be none.
Whole numbers without another bound are at most 2,147,483,647.
`tpulm settings learning rate` finds settings by their names and meanings. Set fewer `train.steps` than the recipe has, and the
warm-up and the decay that come from there are shortened in proportion; a line says so.
"""
FINETUNE_HEAD = """
## Fine-tuning

The settings of [fine-tuning](fine-tuning.md), made from `src/tpulm/config/finetune.py`: `tpulm finetune --set patience=5`,
`tpulm.Classifier(model, patience=5)`. `checkpoint.…` and `hardware.…` are those of `[train.checkpoint]` and `[hardware]` above.
"""
CLOUD_HEAD = """
## cloud.toml

Where runs in [the cloud](cloud.md) take place, made from `src/tpulm/cloud/settings.py`.
"""
RECIPES_HEAD = """# Recipes

A recipe is a run file that comes with tpulm: `extends = "bert-mini"` in your own file, or `tpulm run bert-mini` with `--set`.
"""
COMMANDS_HEAD = """# Command line

<!-- nothing here is executed: examples of single commands -->

Every command, made from the code in `src/tpulm/cli`; `tpulm COMMAND --help` prints the same in the terminal. A path may be
`gs://bucket/folder` everywhere.
"""
PYTHON_HEAD = """# Python API

<!-- nothing here is executed: examples of single names -->

The public names of `tpulm`, made from the code. Each is imported when it is first used, so `import tpulm` itself costs nothing.
"""


def pages() -> dict[str, str]:
    return {"settings.md": settings_page(), "recipes.md": recipes_page()}


def untracked_pages() -> dict[str, str]:
    return {"command-line.md": commands_page(), "python.md": python_page()}


def settings_page() -> str:
    parts = [SETTINGS_HEAD, *map(_section, groups_of(config.RunConfig))]
    parts += [FINETUNE_HEAD, _list(next(groups_of(config.FinetuneConfig))), CLOUD_HEAD, _list(next(groups_of(CloudSettings)))]
    return "\n".join(parts) + "\n"


def recipes_page() -> str:
    recipes = [f"\n## {name}\n\n```toml\n{config.recipe_text(name).rstrip()}\n```" for name in config.list_recipes()]
    return "\n".join([RECIPES_HEAD.rstrip(), *recipes]) + "\n"


def commands_page() -> str:
    program = get_command(app)
    return "\n\n".join([COMMANDS_HEAD.rstrip(), _escaped(program.help or ""), *_commands(program, "tpulm")]) + "\n"


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        nested = hasattr(command, "commands")
        yield f"{'#' * (full.count(' ') + 1)} {full}"
        yield _fenced(command.help or "", "sh")
        if nested:
            yield from _commands(command, full)
            continue
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden and one.name != "help"]
        usage = [full, *(_optional(_metavar(one)) if not one.required else _metavar(one) for one in arguments)]
        usage += [f"{one.opts[0]} {_metavar(one)}" for one in options if one.required]
        yield f"```text\n{' '.join(usage)}{' [OPTIONS]' if options else ''}\n```"
        yield "\n".join(_parameter(one) for one in [*arguments, *options])


def _parameter(one: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
    flag = one.param_type_name == "option" and (one.is_flag or one.count)
    title = f"`{_metavar(one)}`" if one.param_type_name == "argument" else names if flag else f"{names} `{_metavar(one)}`"
    default = one.default if isinstance(one.default, str | int | float) and not flag and one.default != "" else None
    after = "; required" if one.required else "" if default is None else f"; default `{default}`"
    return f"- **{title}**{after}<br>{_escaped(' '.join((one.help or '').split()))}".removesuffix("<br>")


def _metavar(one: Any) -> str:
    annotation = one.type_descriptor.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    name = one.metavar or ("|".join(choices) if choices else {int: "NUMBER", float: "NUMBER"}.get(annotation, "TEXT"))
    name = (one.metavar or one.name.upper()) if one.param_type_name == "argument" else name
    return f"{name} ..." if one.nargs == -1 and name[-1] not in ".…" else name


def _optional(metavar: str) -> str:
    return metavar if metavar.startswith("[") else f"[{metavar}]"


def python_page() -> str:
    return "\n\n".join([PYTHON_HEAD.rstrip(), *(part for name in tpulm.__all__ for part in _documented(name))]) + "\n"


def _documented(name: str) -> Iterator[str]:
    thing = getattr(tpulm, name)
    yield f"## {name}"
    yield _signature(f"tpulm.{name}", thing)
    yield _docstring(thing)
    if inspect.isclass(thing):
        public = {key: value for key, value in vars(thing).items() if not key.startswith("_") and inspect.getdoc(value)}
        for key, value in public.items():
            if isinstance(value, property) or inspect.isfunction(value):
                yield f"### {name}.{key}"
                if inspect.isfunction(value):
                    yield _signature(key, value)
                yield _docstring(value)


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parts, keyword_only = [], False
    for one in (one for key, one in signature.parameters.items() if key != "self"):
        if one.kind == one.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        shown = one.replace(annotation=one.empty, default=one.empty)
        known = one.default is one.empty or not re.search(r"[<(]", repr(one.default))  # objects have no short form
        default = "" if one.default is one.empty else f" = {one.default!r}" if known else " = ..."
        parts.append(f"{shown}: {one.annotation}{default}")
    returns = signature.return_annotation
    end = ")" if inspect.isclass(thing) or returns is signature.empty else f") -> {returns}"
    text = f"{name}({', '.join(parts)}{end}"
    if len(text) > 100:
        text = "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])
    return f"```text\n{text}\n```"


def _docstring(thing: Any) -> str:
    return _fenced(inspect.getdoc(thing) or "", "python")


def _fenced(text: str, language: str) -> str:
    """Indented examples become fenced blocks."""
    parts = re.split(r"\n\n((?:    .*\n?|\n(?=    ))+)", inspect.cleandoc(text))
    parts[::2] = [_escaped(part.strip("\n")) for part in parts[::2]]
    parts[1::2] = [f"```{language}\n{inspect.cleandoc(part)}\n```" for part in parts[1::2]]
    return "\n\n".join(filter(None, parts))


def _section(group: Group) -> str:
    title = (f"`[[{group.name}]]`" if group.many else f"`[{group.name}]`") if group.name else "The run itself"
    return "\n".join(filter(None, [f"\n## {title}\n", group.meaning and f"{_escaped(group.meaning)}\n", _list(group)]))


def _list(group: Group) -> str:
    """A list, not a table: nothing of it is ever off the screen."""
    lines = []
    for one in group.settings:
        meaning = f"<br>{_escaped(one.meaning)}" if one.meaning else ""
        default = "required" if one.default == "required" else f"default `{one.default}`"
        lines.append(f"- **`{one.name}`**: {one.type}; {default}{meaning}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """What Markdown would take for a tag is shown as code."""
    return re.sub(r"<\w+>", r"`\g<0>`", text)


if __name__ == "__main__":
    for page, text in (pages() | untracked_pages()).items():
        (Path(__file__).parent / page).write_text(text)
