"""Identifies a tree of parameters: an architecture with one of its heads."""

from __future__ import annotations

from typing import Any, Final, Literal

from tpulm.config import ModelConfig
from tpulm.models import bert, classifier, decoder, electra, embedding

# masked: words for [MASK] (BERT, ELECTRA's generator); next_sentence: that and pairs (BERT); detection: ELECTRA's discriminator
# causal: the next token (decoder); and of fine-tuned encoders classification: a label or a number for a text; tokens: one for
# each token; spans: two for each, an answer's first and last token, with the parameters of "tokens"; choice: a number for a
# question with one of its choices, with those of "classification"; embedding: none, a text's vector is pooled of hidden states
Head = Literal[
    "masked", "next_sentence", "detection", "causal", "classification", "tokens", "spans", "choice", "embedding"
]  # fmt: skip
FINE_TUNED: Final[tuple[Head, ...]] = (
    "classification",
    "tokens",
    "spans",
    "choice",
)  # with parameters and answers of their own
Model = (
    bert.Bert
    | electra.Generator
    | electra.Discriminator
    | decoder.Decoder
    | classifier.SequenceClassifier
    | classifier.TokenClassifier
    | embedding.TextEncoder
)


def head_of(params: Model) -> Head:
    """The head whose parameters these are; the heads "spans" and "choice" look like others."""
    if isinstance(params, classifier.SequenceClassifier):
        return "classification"
    if isinstance(params, classifier.TokenClassifier):
        return "tokens"
    if isinstance(params, embedding.TextEncoder):
        return "embedding"
    if isinstance(params, electra.Discriminator):
        return "detection"
    if isinstance(params, decoder.Decoder):
        return "causal"
    return "next_sentence" if isinstance(params, bert.Bert) and params.next_sentence is not None else "masked"


def spec_of(config: ModelConfig, head: Head, *, vocab_size: int, num_outputs: int = 0) -> Any:
    """The tree of `ParamSpec` of one model; of ELECTRA that is one half, with the sizes of `config`."""
    if head in ("classification", "choice"):
        return classifier.spec(config, vocab_size=vocab_size, num_outputs=1 if head == "choice" else num_outputs)
    if head in ("tokens", "spans"):
        return classifier.token_spec(config, vocab_size=vocab_size, num_outputs=2 if head == "spans" else num_outputs)
    if head == "embedding":
        return embedding.spec(config, vocab_size=vocab_size)
    if config.architecture in ("bert", "modernbert"):
        return bert.spec(config, vocab_size=vocab_size, next_sentence=head == "next_sentence")
    if config.architecture == "decoder":
        return decoder.spec(config, vocab_size=vocab_size)
    make = electra.discriminator_spec if head == "detection" else electra.generator_spec
    return make(config, vocab_size=vocab_size)
