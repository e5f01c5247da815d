"""Predictions of a model for a few held-out texts: masks filled, or texts continued."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from tpulm import dataset
from tpulm.config import ModelConfig
from tpulm.convert.heads import head_of
from tpulm.convert.huggingface import LoadedModel
from tpulm.dataset.manifest import SplitManifest
from tpulm.models.decoder import Decoder
from tpulm.models.electra import Electra, generator_config, halves
from tpulm.predict.fill_mask import fill_mask, readable
from tpulm.predict.generate import generate
from tpulm.tokenization import Tokenization

_TEXTS, _BEST = 8, 3
_SHORTEST, _LONGEST = 6, 40  # tokens of a text
_PROMPT, _WRITTEN = 8, 40  # tokens given, and generated


def samples(params: Any, config: ModelConfig, tokenization: Tokenization, split: SplitManifest, *, step: int) -> dict[str, Any]:
    """JSON: "masked", a list of {"text", "truth", "answers": [[token, probability], …]}, or "written", of {"prompt", "text"}.

    The texts are the first of `split`; the masked token begins a word and is drawn with a fixed seed. For an ELECTRA the
    generator is used.
    """
    if isinstance(params, Electra):
        params, config = halves(params).generator, generator_config(config)
    if isinstance(params, Decoder):
        tokenization = tokenization.causal()
    model = LoadedModel(params, config, tokenization.vocab_size, tokenization, head_of(params))
    length = min(_LONGEST, config.max_positions // 2)
    texts = [ids[:length] for ids in islice(_texts(split, tokenization), _TEXTS)]
    if isinstance(params, Decoder):
        prompts = [tokenization.decode(ids[:_PROMPT]) for ids in texts]
        prompts = [prompt for prompt in prompts if len(tokenization.encode_one(prompt)) < config.max_positions]
        written = generate(model, prompts, max_tokens=_WRITTEN) if prompts else []
        return {"step": step, "written": [{"prompt": one.prompt, "text": one.text} for one in written]}
    return {"step": step, "masked": _filled(model, texts)}


def _filled(model: LoadedModel, texts: list[list[int]]) -> list[dict[str, Any]]:
    tokenization, draw = model.tokenization, np.random.default_rng(0)
    starts, mask = tokenization.word_starts(), tokenization.special.mask
    masked, truths = list[str](), list[int]()
    for ids in texts:
        places = [
            place for place in range(1, len(ids)) if starts[ids[place]] and tokenization.decode([ids[place]]).strip().isalnum()
        ]
        if not places:
            continue
        place = int(draw.choice(places))
        text = tokenization.decode([*ids[:place], mask, *ids[place + 1 :]], special_tokens=True)
        fits = len(tokenization.encode_one(text)) <= model.config.max_positions  # what was one token may be read as several
        if fits and text.count(tokenization.token(mask)) == 1:
            masked.append(text)
            truths.append(ids[place])
    answers = fill_mask(model, masked, top=_BEST) if masked else []
    return [
        {"text": text, "truth": readable(tokenization, truth), "answers": [[one.token, round(one.score, 4)] for one in best]}
        for text, truth, best in zip(masked, truths, answers, strict=True)
    ]


def _texts(split: SplitManifest, tokenization: Tokenization) -> Iterator[list[int]]:
    """The beginnings of texts, as ids without special tokens."""
    special = np.array(list(tokenization.special))
    for batch in dataset.evaluation_batches(split, batch_size=_TEXTS, max_rows=4 * _TEXTS):
        for row in batch["tokens"]:
            pieces = np.split(row, np.flatnonzero(np.isin(row, special)))
            texts = (piece[~np.isin(piece, special)] for piece in pieces)
            first = next((text for text in texts if len(text) >= _SHORTEST), None)
            if first is not None:
                yield first.tolist()
