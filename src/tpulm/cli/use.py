"""`tpulm import`, `fill-mask` and `generate`: take a model from elsewhere, and use one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal

from tpulm.cli.options import Lowercase, StripAccents, argument, option, path_argument, path_option
from tpulm.cli.terminal import drawn_progress, print_json, print_table, say, say_note, write
from tpulm.errors import some_of
from tpulm.storage import exists

if TYPE_CHECKING:
    from tpulm.convert.huggingface import LoadedModel
    from tpulm.predict.generate import GenerationChunk
    from tpulm.tokenization import Tokenization


Model = Annotated[
    PurePath,
    path_argument(
        "An export, an import, a Hugging Face folder, or a work folder: its export or, if newer, its last checkpoint.", "MODEL"
    ),
]


def load(model: PurePath, *, reads: bool = False) -> LoadedModel:
    """A model, or that of a work folder as it is now; of ELECTRA's two the one that fills masks, or that `reads`."""
    from tpulm.convert.huggingface import FILLS_MASKS, READS, load_model

    preferred = READS if reads else FILLS_MASKS
    if not exists(model / "run.json"):
        return load_model(model, preferred=preferred)
    from tpulm import pipeline

    with drawn_progress() as progress:
        return pipeline.current_model(model, preferred=preferred, progress=progress)


def warn_of_unknown_text(tokenization: Tokenization, texts: list[str], name: str = "the texts given") -> None:
    """A note if much of the texts is unknown to the vocabulary."""
    from tpulm.tokenization import vocabulary_warnings

    for doubt in vocabulary_warnings(tokenization.reading_added, texts, name):
        say_note(doubt)


def fill_mask(
    model: Model,
    texts: Annotated[list[str], argument("Text with [MASK] in it.", "TEXT...")],
    top: Annotated[int, option("How many answers for each [MASK].", min=1)] = 5,
) -> None:
    """What the model would write in place of [MASK]: tpulm fill-mask W "Seoul is the [MASK] of Korea." --top 5"""
    from tpulm.predict.fill_mask import fill_mask as fill

    loaded = load(model)
    mask = loaded.tokenization.token(loaded.tokenization.special.mask)
    warn_of_unknown_text(loaded.tokenization, [text.replace(mask, " ") for text in texts])
    answers = fill(loaded, texts, top=top)
    for text, predictions in zip(texts, answers, strict=True):
        masks = sorted({p.mask for p in predictions})
        for mask in masks:
            title = text if len(masks) == 1 else f"{text}   (mask {mask + 1} of {len(masks)})"
            rows = [(f"{p.score:.1%}", p.token, p.text) for p in predictions if p.mask == mask]
            print_table(title, rows, header=("probability", "token", "text"))
    print_json({text: [p._asdict() for p in predictions] for text, predictions in zip(texts, answers, strict=True)})


def generate(
    model: Model,
    prompts: Annotated[list[str] | None, argument("Beginnings of texts; none: a new text.", "[PROMPT]...")] = None,
    max_tokens: Annotated[int, option("Maximum number of new tokens per prompt.")] = 100,
    temperature: Annotated[float, option("0: greedy; 1: the model's own distribution.")] = 0.8,
    top_k: Annotated[int | None, option("Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[float, option("Nucleus sampling: from the likeliest tokens with this total probability.")] = 0.95,
    seed: Annotated[int, option("The same seed and prompts give the same texts.")] = 0,
) -> None:
    """What a causal language model writes after each prompt: tpulm generate W "吾輩は猫である。" --max-tokens 200"""
    from tpulm.convert.huggingface import local_or_hub
    from tpulm.predict.generate import Sampling, collect, settings_not_applied, stream

    prompts = prompts or [""]
    source = local_or_hub(model)
    loaded = load(source)
    if ignored := settings_not_applied(source):
        asked = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ignored.items())
        say_note(f"generation_config.json asks for {asked}; that is not done here, so transformers writes other texts")
    warn_of_unknown_text(loaded.tokenization, prompts)
    pieces = stream(loaded, prompts, max_tokens=max_tokens, sampling=Sampling(temperature, top_k, top_p, seed))
    generations = collect(prompts, _shown(prompts, pieces))
    print_json([one._asdict() for one in generations])


def _shown(prompts: list[str], pieces: Iterable[GenerationChunk]) -> Iterator[GenerationChunk]:
    """The pieces; each text is written to stdout as it comes, and those whose turn is later wait."""
    waiting: list[deque[GenerationChunk]] = [deque() for _ in prompts]
    turn, begun = 0, False
    for piece in pieces:
        waiting[piece.prompt].append(piece)
        while turn < len(prompts) and waiting[turn]:
            if not begun:
                write(("\n" if turn else "") + prompts[turn], style="bold")
            shown = waiting[turn].popleft()
            write(shown.text + ("" if shown.ending is None else "\n"))
            begun = shown.ending is None
            if shown.ending is not None:
                say(f"({shown.ending})", style="dim")
                turn += 1
        yield piece


_TF1 = "A TF1 checkpoint"


_USES = {  # of an imported model, by its head
    "masked": 'fill-mask {} "… [MASK] …"',
    "next_sentence": 'fill-mask {} "… [MASK] …"',
    "causal": 'generate {} "…"',
    "embedding": 'embed {} "…" "…"',
    "classification": 'classify {} "…"',
    "tokens": 'classify {} "…"',
    "spans": 'classify {} "…?" --context "…"',
    "choice": 'classify {} "…?" --choice "…" --choice "…"',
}
_FINETUNE = "finetune {} --train train.tsv --output classifier"  # of a discriminator, and an encoder without a head


def import_(
    source: Annotated[
        PurePath,
        path_argument(
            "A Hugging Face folder with model.safetensors (BERT, ModernBERT, ELECTRA, EuroBERT, GPT-2, Llama), or a TF1 "
            "checkpoint of Google's BERT or ELECTRA: its prefix, as in bert_model.ckpt, its .index file or its folder.",
            "SOURCE",
        ),
    ],
    to: Annotated[PurePath, path_option("The folder to make: empty or absent.", metavar="DIR")],
    vocab: Annotated[PurePath | None, path_option("Its vocab.txt, if not beside it.", panel=_TF1)] = None,
    lowercase: Lowercase = None,
    strip_accents: StripAccents = None,
    kind: Annotated[
        Literal["bert", "electra"] | None,
        option("What it must be; by default, what its names say.", panel=_TF1, show_default=False),
    ] = None,
    config: Annotated[PurePath | None, path_option("Its bert_config.json, if not beside it.", panel=_TF1)] = None,
) -> None:
    """Somebody else's weights as a model of ours, every name, shape and checksum verified; without TensorFlow or torch.

    tpulm import uncased_L-12_H-768_A-12/bert_model.ckpt --to bert

    tpulm fill-mask bert "The capital of Korea is [MASK]."
    """
    from tpulm.convert.importing import import_model

    imported = import_model(source, to, vocab=vocab, lowercase=lowercase, strip_accents=strip_accents, kind=kind, config=config)
    rows = {
        "architecture": imported.architecture,
        "parameters": f"{imported.parameters:,}",
        "vocabulary": f"{imported.vocab_size:,} tokens",
    }
    if imported.step is not None:
        rows["step"] = f"{imported.step:,}"
    if imported.source == "tf1":
        rows["optimizer"] = "moments in optimizer.safetensors" if imported.moments else "no moments"
    if imported.dropped:
        rows["left out"] = some_of(imported.dropped, 4)
    print_table("Imported", rows)
    for note in imported.notes:
        say(f"note: {note}")
    if not any("tokenizer was copied" in note for note in imported.notes):
        say(f"Try: tpulm {_USES.get(imported.head or '', _FINETUNE).format(imported.folder)}")
    print_json(imported._asdict())
