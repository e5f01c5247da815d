"""What all commands share: an option is given once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class Command(TyperCommand):
    """Refuses an option that is given twice, of which the parser would take the last without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            if isinstance(option, TyperOption) and count > 1 and not (option.multiple or option.count or option.is_eager):
                ctx.fail(f"{option.opts[0]} is given {count} times; give it once.")
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        return super().command(*arguments, **{"cls": Command, **settings})
