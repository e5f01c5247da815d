"""Names of google's BERT and ELECTRA in their TF1 checkpoints: two-column tables as in names.py.

Their kernels are [in, out], as ours. ELECTRA's two halves are tables of their own; what the generator shares is in both.
"""

from __future__ import annotations

from tpulm.config import ModelConfig
from tpulm.convert.heads import Head
from tpulm.convert.names import Name

_LAYER = "bert/encoder/layer_{layer}/"
_BODY = (
    Name("embeddings/tokens", "bert/embeddings/word_embeddings"),
    Name("embeddings/positions", "bert/embeddings/position_embeddings"),
    Name("embeddings/types", "bert/embeddings/token_type_embeddings"),
    Name("embeddings/norm/scale", "bert/embeddings/LayerNorm/gamma"),
    Name("embeddings/norm/bias", "bert/embeddings/LayerNorm/beta"),
    Name("layers/attention/query/kernel", _LAYER + "attention/self/query/kernel", "conv"),
    Name("layers/attention/query/bias", _LAYER + "attention/self/query/bias", "flat"),
    Name("layers/attention/key/kernel", _LAYER + "attention/self/key/kernel", "conv"),
    Name("layers/attention/key/bias", _LAYER + "attention/self/key/bias", "flat"),
    Name("layers/attention/value/kernel", _LAYER + "attention/self/value/kernel", "conv"),
    Name("layers/attention/value/bias", _LAYER + "attention/self/value/bias", "flat"),
    Name("layers/attention/output/kernel", _LAYER + "attention/output/dense/kernel", "conv merge"),
    Name("layers/attention/output/bias", _LAYER + "attention/output/dense/bias"),
    Name("layers/attention_norm/scale", _LAYER + "attention/output/LayerNorm/gamma"),
    Name("layers/attention_norm/bias", _LAYER + "attention/output/LayerNorm/beta"),
    Name("layers/up/kernel", _LAYER + "intermediate/dense/kernel"),
    Name("layers/up/bias", _LAYER + "intermediate/dense/bias"),
    Name("layers/down/kernel", _LAYER + "output/dense/kernel"),
    Name("layers/down/bias", _LAYER + "output/dense/bias"),
    Name("layers/feed_forward_norm/scale", _LAYER + "output/LayerNorm/gamma"),
    Name("layers/feed_forward_norm/bias", _LAYER + "output/LayerNorm/beta"),
)
_PROJECTION = (
    Name("projection/kernel", "bert/embeddings_project/kernel"),
    Name("projection/bias", "bert/embeddings_project/bias"),
)
_MASKED_HEAD = (
    Name("masked_head/dense/kernel", "cls/predictions/transform/dense/kernel"),
    Name("masked_head/dense/bias", "cls/predictions/transform/dense/bias"),
    Name("masked_head/norm/scale", "cls/predictions/transform/LayerNorm/gamma"),
    Name("masked_head/norm/bias", "cls/predictions/transform/LayerNorm/beta"),
    Name("masked_head/output_bias", "cls/predictions/output_bias"),
)
_NEXT_SENTENCE = (
    Name("next_sentence/pooler/kernel", "bert/pooler/dense/kernel"),
    Name("next_sentence/pooler/bias", "bert/pooler/dense/bias"),
    Name("next_sentence/output/kernel", "cls/seq_relationship/output_weights", "dense"),  # the one that is [out, in]
    Name("next_sentence/output/bias", "cls/seq_relationship/output_bias"),
)
_GENERATOR = (
    Name("masked_head/dense/kernel", "generator_predictions/dense/kernel"),
    Name("masked_head/dense/bias", "generator_predictions/dense/bias"),
    Name("masked_head/norm/scale", "generator_predictions/LayerNorm/gamma"),
    Name("masked_head/norm/bias", "generator_predictions/LayerNorm/beta"),
    Name("masked_head/output_bias", "generator_predictions/output_bias"),
)
_DISCRIMINATOR = (
    Name("detection_head/dense/kernel", "discriminator_predictions/dense/kernel"),
    Name("detection_head/dense/bias", "discriminator_predictions/dense/bias"),
    Name("detection_head/output/kernel", "discriminator_predictions/dense_1/kernel"),
    Name("detection_head/output/bias", "discriminator_predictions/dense_1/bias"),
)
NEXT_SENTENCE = "cls/seq_relationship/output_weights"  # without it nothing reads the pooler
POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
# Theirs that are no weights of the model, as patterns; None: dropped on purpose.
EXTRAS: tuple[tuple[str | None, str], ...] = (
    ("step", "global_step"),
    ("adam_m", "*/adam_m"),  # the optimiser's means of gradients
    ("adam_v", "*/adam_v"),  # and of their squares
    (None, "*/Adam"),  # the same two of tf.train.AdamOptimizer, which corrects their bias apart
    (None, "*/Adam_1"),
    (None, "beta1_power"),
    (None, "beta2_power"),
)


def bert_names(head: Head) -> tuple[Name, ...]:
    return (*_BODY, *_MASKED_HEAD, *(_NEXT_SENTENCE if head == "next_sentence" else ()))


def electra_names(config: ModelConfig, head: Head, *, body: str, embeddings: str) -> tuple[Name, ...]:
    """Of one half; `body` and `embeddings` are the scopes ("electra" or "generator") in which it has these two."""
    projected = config.embedding_size not in (None, config.hidden_size)
    rows = (*_BODY, *(_PROJECTION if projected else ()))

    def renamed(theirs: str) -> str:
        scope = embeddings if theirs.startswith("bert/embeddings/") else body
        return scope + theirs.removeprefix("bert")

    heads = _DISCRIMINATOR if head == "detection" else _GENERATOR
    return (*(row._replace(theirs=renamed(row.theirs)) for row in rows), *heads)
