"""From text to token ids: training or loading a tokenizer, encoding in bulk, saving it as a Hugging Face folder."""

from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import analysers
from tpulm.tokenization.causal import CausalTokenization, load_causal
from tpulm.tokenization.comparison import Comparison, TextSample, compare, load_candidates
from tpulm.tokenization.encode import Encoded
from tpulm.tokenization.files import Vocabulary, doubts, expected, load, load_manifest, save, vocab_size_of
from tpulm.tokenization.offsets import Aligned
from tpulm.tokenization.report import (
    UNKNOWN_REFUSED,
    UNKNOWN_WARNING,
    TokenizerReport,
    Unknowns,
    count_unknown,
    report,
    vocabulary_doubts,
)
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import train

__all__ = [
    "UNKNOWN_REFUSED",
    "UNKNOWN_WARNING",
    "Aligned",
    "CausalTokenization",
    "Comparison",
    "Encoded",
    "SpecialTokens",
    "TextSample",
    "Tokenization",
    "TokenizerReport",
    "Unknowns",
    "Vocabulary",
    "analysers",
    "compare",
    "count_unknown",
    "doubts",
    "expected",
    "load",
    "load_candidates",
    "load_causal",
    "load_manifest",
    "report",
    "save",
    "train",
    "vocab_size_of",
    "vocabulary_doubts",
]
