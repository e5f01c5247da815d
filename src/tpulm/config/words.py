"""Which settings of words go together: what whole-word masking reads, and who says where words begin."""

from __future__ import annotations


def check_words(*, architecture: str, rows: str, whole_words: bool, word_boundaries: str, morphemes: str) -> None:
    """Raises ValueError, which says what to change."""
    if whole_words and architecture == "decoder":
        raise ValueError("train.objective.whole_words is for masked models; a decoder predicts every token, so leave it out")
    if word_boundaries != "none" and rows == "causal":
        raise ValueError("data.word_boundaries are for masking whole words, which causal rows do not; leave it out")
    if word_boundaries != "none" and not whole_words:
        raise ValueError(
            f"data.word_boundaries = '{word_boundaries}' is read only where whole words are masked: set "
            "train.objective.whole_words = true, or leave it out"
        )
    if word_boundaries != "none" and morphemes != "none":
        raise ValueError("with tokenizer.morphemes the tokenizer's words are morphemes already; leave data.word_boundaries out")
    if morphemes != "none" and architecture == "decoder":
        raise ValueError("tokenizer.morphemes is for encoders: a decoder would write its text with a space between morphemes")
