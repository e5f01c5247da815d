"""`tpulm fill-mask`: use a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpulm.cli.options import AsJson
from tpulm.cli.terminal import print_json, print_table


def fill_mask(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An export, or a work folder that has one.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Text with [MASK] in it.")],
    top: Annotated[int, typer.Option(min=1, help="How many answers for each [MASK].")] = 5,
    as_json: AsJson = False,
) -> None:
    """What the model would write in place of [MASK]: tpulm fill-mask W "Seoul is the [MASK] of Korea." --top 5"""
    from tpulm.convert.huggingface import load_model
    from tpulm.predict.fill_mask import fill_mask as fill

    answers = fill(load_model(model), texts, top=top)
    for text, predictions in zip(texts, answers, strict=True):
        masks = sorted({p.mask for p in predictions})
        for mask in masks:
            title = text if len(masks) == 1 else f"{text}   (mask {mask + 1} of {len(masks)})"
            rows = [(f"{p.score:.1%}", p.token, p.text) for p in predictions if p.mask == mask]
            print_table(title, rows, header=("probability", "token", "text"))
    if as_json:
        print_json({text: [p._asdict() for p in predictions] for text, predictions in zip(texts, answers, strict=True)})
