"""`tpulm import`: weights in."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpulm.cli.options import AsJson
from tpulm.cli.terminal import console, print_json, print_table
from tpulm.storage import as_path

if TYPE_CHECKING:
    from tpulm.convert.importing import Imported

_TF1 = "A TF1 checkpoint"


def import_(
    source: Annotated[
        PurePath,
        typer.Argument(
            metavar="SOURCE",
            parser=as_path,
            help="A Hugging Face folder with model.safetensors (BERT, ELECTRA, GPT-2, Llama), or a TF1 checkpoint of google's "
            "BERT or ELECTRA: its prefix, as in bert_model.ckpt, its .index file or its folder.",
        ),
    ],
    to: Annotated[PurePath, typer.Option("--to", metavar="DIR", parser=as_path, help="The folder to make: empty or absent.")],
    vocab: Annotated[
        PurePath | None,
        typer.Option(metavar="FILE", parser=as_path, help="Its vocab.txt, if not beside it.", rich_help_panel=_TF1),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased",
            help="Whether it was trained on lower-case text without accents; by default, whether no token has capital letters.",
            rich_help_panel=_TF1,
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        Literal["bert", "electra"] | None,
        typer.Option(help="What it must be; by default, what its names say.", rich_help_panel=_TF1),
    ] = None,
    config: Annotated[
        PurePath | None,
        typer.Option(metavar="FILE", parser=as_path, help="Its bert_config.json, if not beside it.", rich_help_panel=_TF1),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Somebody else's weights as a model of ours, every name, shape and checksum verified; without TensorFlow or torch.

    tpulm import uncased_L-12_H-768_A-12/bert_model.ckpt --to bert

    tpulm fill-mask bert "The capital of Korea is [MASK]."
    """
    from tpulm.convert.importing import import_model

    imported = import_model(source, to, vocab=vocab, lowercase=lowercase, kind=kind, config=config)
    _show(imported)
    if as_json:
        print_json(imported._asdict())


def _show(imported: Imported) -> None:
    rows = {
        "architecture": imported.architecture,
        "parameters": f"{imported.parameters:,}",
        "vocabulary": f"{imported.vocab_size:,} tokens",
    }
    if imported.step is not None:
        rows["step"] = f"{imported.step:,}"
    if imported.source == "tf1":
        rows["optimiser"] = "moments in optimizer.safetensors" if imported.moments else "no moments"
    if imported.dropped:
        more = f" and {len(imported.dropped) - 4} more" if len(imported.dropped) > 4 else ""
        rows["left out"] = ", ".join(imported.dropped[:4]) + more
    print_table("Imported", rows)
    for note in imported.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if any("tokenizer was copied" in note for note in imported.notes):
        return
    use = 'generate {} "…"' if imported.architecture == "decoder" else 'fill-mask {} "… [MASK] …"'
    console.print(f"Try: tpulm {use.format(imported.folder)}", markup=False, soft_wrap=True)
