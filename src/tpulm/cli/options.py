"""What commands share: arguments and options, and that an option is given once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from tpulm.cli import terminal
from tpulm.storage import as_path

if TYPE_CHECKING:  # pydantic's models cost a fifth of a second, which --help need not pay
    from tpulm.config import RunConfig

RunFile = Annotated[
    str, typer.Argument(metavar="RUN", help="A run file (.toml), or a recipe's name such as bert-mini ('tpulm recipes').")
]
WorkDir = Annotated[
    PurePath,
    typer.Option(
        "--workdir",
        "-w",
        metavar="W",
        parser=as_path,
        help="The work folder, here or as gs://bucket/folder: made if absent, continued if not.",
    ),
]
Workfolder = Annotated[PurePath, typer.Argument(metavar="W", parser=as_path, help="The work folder of a run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, such as --set train.steps=1000. Repeatable."),
]
Init = Annotated[
    PurePath | None,
    typer.Option(
        "--init",
        metavar="DIR",
        parser=as_path,
        help="Go on from the model in DIR (an import, an export or a work folder): its settings, tokenizer and weights, and "
        "the optimizer's moments if they are there. Give it to every command of the run.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS:PORT",
        help="With several hosts: where the first one can be reached. A TPU slice finds this and the next two by itself.",
        rich_help_panel="Several hosts",
    ),
]
NumHosts = Annotated[int | None, typer.Option(help="With several hosts: how many.", rich_help_panel="Several hosts")]
HostIndex = Annotated[
    int | None, typer.Option(help="With several hosts: which one this is, from 0.", rich_help_panel="Several hosts")
]
AllowCpu = Annotated[
    bool,
    typer.Option("--allow-cpu", help="Go on with what JAX finds where a TPU (or GPU) is asked for, or is here, and not found."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Send what is logged to trackio, wandb or mlflow, too. Repeatable; keys come from the environment.",
        rich_help_panel="Trackers",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]


class Command(TyperCommand):
    """Refuses an option that is given twice; the parser would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            if isinstance(option, TyperOption) and count > 1 and not (option.multiple or option.count or option.is_eager):
                ctx.fail(f"{option.opts[0]} is given {count} times; give it once.")
        rest = super().parse_args(ctx, args)
        if empty := [name for name, value in ctx.params.items() if isinstance(value, PurePath) and values.get(name) == ""]:
            ctx.fail(f"{empty[0]} is an empty path: is a variable unset? The current folder is '.'")
        terminal.begin(as_json=bool(ctx.params.get("as_json")))
        return rest


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        return super().command(*arguments, **{"cls": Command, **settings})


def load_run(
    reference: str,
    overrides: list[str] | None,
    init: PurePath | None = None,
    *,
    allow_cpu: bool = False,
    track: list[str] | None = None,
) -> RunConfig:
    """The run's settings; `init` is a model to go on from."""
    from tpulm.config import load

    settings = [*(overrides or []), *(["hardware.platform=any"] if allow_cpu else []), *tracked(track)]
    if init is None:
        return load(reference, settings)
    from tpulm.convert.continuing import starting_point

    return load(reference, settings, start=starting_point(init))


def tracked(names: list[str] | None) -> list[str]:
    """The setting that `--track` stands for."""
    return [f"track.to={json.dumps(names)}"] if names else []


def vocabulary_of(config: RunConfig) -> dict[str, Any]:
    """The size of the tokenizer that the run has or will train, and its special tokens."""
    from tpulm import tokenization

    return tokenization.expected(config.tokenizer)._asdict()
