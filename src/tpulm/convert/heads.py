"""The heads of models: which one a tree of parameters has, and the spec of an architecture with a head."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from tpulm.config import ModelConfig
from tpulm.models import bert, classifier, decoder, electra
from tpulm.nn.params import named_leaves

# masked: tokens for [MASK] (BERT, ELECTRA's generator); next_sentence: that and sentence pairs (BERT); detection: ELECTRA's
# discriminator; causal: the next token (decoder). Of fine-tuned models: classification: a label or a number per text; tokens:
# a label per token; spans: two logits per token, for an answer's first and last one, with the parameters of "tokens"; choice: a
# number per choice, with the parameters of "classification"; embedding: no head, a text's vector is pooled from hidden states
Head = Literal[
    "masked", "next_sentence", "detection", "causal", "classification", "tokens", "spans", "choice", "embedding"
]  # fmt: skip
FINE_TUNED: Final[tuple[Head, ...]] = ("classification", "tokens", "spans", "choice")  # with outputs of their own
DECODER_HEADS: Final[tuple[Head, ...]] = ("causal", "classification")
Model = (
    bert.Bert
    | electra.Generator
    | electra.Discriminator
    | decoder.Decoder
    | classifier.SequenceClassifier
    | classifier.TokenClassifier
    | classifier.TextEncoder
)


_HEADS: dict[type, Head] = {
    electra.Generator: "masked",
    electra.Discriminator: "detection",
    decoder.Decoder: "causal",
    classifier.SequenceClassifier: "classification",
    classifier.TokenClassifier: "tokens",
    classifier.TextEncoder: "embedding",
}


def head_of(params: Model) -> Head:
    """The head of these parameters; "spans" and "choice" cannot be told from "tokens" and "classification"."""
    if isinstance(params, bert.Bert):
        return "masked" if params.next_sentence is None else "next_sentence"
    return _HEADS[type(params)]


def spec_of(config: ModelConfig, head: Head, *, vocab_size: int, num_outputs: int = 0) -> Any:
    """The `ParamSpec` tree of one model; for ELECTRA that of one half, with the sizes in `config`."""
    if head in ("classification", "choice"):
        return classifier.spec(config, vocab_size=vocab_size, num_outputs=1 if head == "choice" else num_outputs)
    if head in ("tokens", "spans"):
        return classifier.token_spec(config, vocab_size=vocab_size, num_outputs=2 if head == "spans" else num_outputs)
    if head == "embedding":
        return classifier.text_encoder_spec(config, vocab_size=vocab_size)
    if config.architecture in ("bert", "modernbert"):
        return bert.spec(config, vocab_size=vocab_size, next_sentence=head == "next_sentence")
    if config.architecture == "decoder":
        return decoder.spec(config, vocab_size=vocab_size)
    make = electra.discriminator_spec if head == "detection" else electra.generator_spec
    return make(config, vocab_size=vocab_size)


_BY_TOKEN = ("embeddings/tokens", "masked_head/output", "masked_head/output_bias", "output")  # parameters with a row per token


def num_parameters(model: Any, config: ModelConfig, vocab_size: int) -> int:
    """How many parameters a model or its spec has in a file: without the rows that pad the vocabulary, and without the norm
    before the first attention of a ModernBERT, which is not computed."""

    def size(name: str, shape: tuple[int, ...]) -> int:
        rows, *rest = shape or (1,)
        if name in _BY_TOKEN:
            rows = vocab_size
        elif config.architecture == "modernbert" and "/attention_norm/" in name:  # of all layers
            rows -= 1
        return rows * math.prod(rest)

    return sum(size(name, leaf.shape) for name, leaf in named_leaves(model).items())
