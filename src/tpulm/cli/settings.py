"""`tpulm settings`: what a run file, fine-tuning and cloud.toml may say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.padding import Padding

from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, print_json
from tpulm.errors import ConfigError, suggest

if TYPE_CHECKING:
    from tpulm.config.reference import Setting


def settings(
    word: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="Only those with this in the name or the meaning.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every setting with its type, default and meaning: of a run file, of fine-tuning and of cloud.toml.

    'tpulm settings warmup' finds those that have to do with warm-up. 'none' is written "none" in a file.
    """
    from tpulm.cloud.settings import CloudSettings
    from tpulm.config import FinetuneConfig, RunConfig
    from tpulm.config.reference import groups_of

    found = {
        title: [
            setting._replace(name=f"{group.name}.{setting.name}".lstrip("."))
            for group in groups_of(model)
            for setting in group.settings
            if not (model is FinetuneConfig and group.name)  # those of a run file again
        ]
        for title, model in (
            ("A run file, or --set NAME=VALUE", RunConfig),
            ("Fine-tuning: tpulm finetune --set NAME=VALUE", FinetuneConfig),
            ("cloud.toml", CloudSettings),
        )
    }
    chosen = {title: [one for one in some if _matches(one, word)] for title, some in found.items()}
    if not any(chosen.values()):
        names = [one.name for some in found.values() for one in some]
        parts = {part for name in names for part in (name, *re.split(r"[._]", name))}
        raise ConfigError(f"no setting has '{word}' in its name or meaning.{suggest(word or '', sorted(parts))}")
    for title, some in chosen.items():
        if some:
            console.print(f"\n[bold underline]{title}[/]")
        for one in some:
            console.print(f"[bold]{one.name}[/]")
            for text in (f"[cyan]{escape(one.type)}[/]; {escape(one.default_words)}", escape(one.meaning)):
                if text:
                    console.print(Padding(text, (0, 0, 0, 4)))
    if as_json:
        print_json({"settings": [{"of": title, **one._asdict()} for title, some in chosen.items() for one in some]})


def _matches(setting: Setting, word: str | None) -> bool:
    return word is None or word.casefold() in f"{setting.name} {setting.meaning}".casefold()
