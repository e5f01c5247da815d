"""From text to token ids: training a tokenizer or taking one, encoding in bulk, keeping it as a Hugging Face folder."""

from tpulm.tokenization import analysers
from tpulm.tokenization.causal import CausalTokenization, load_causal
from tpulm.tokenization.encoded import Encoded
from tpulm.tokenization.loading import Vocabulary, expected, load, vocab_size_of
from tpulm.tokenization.report import TokenizerReport, report
from tpulm.tokenization.saving import load_manifest, save
from tpulm.tokenization.special import TRAINED_SPECIAL_IDS, SpecialTokens
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import train

__all__ = [
    "TRAINED_SPECIAL_IDS",
    "CausalTokenization",
    "Encoded",
    "SpecialTokens",
    "Tokenization",
    "TokenizerReport",
    "Vocabulary",
    "analysers",
    "expected",
    "load",
    "load_causal",
    "load_manifest",
    "report",
    "save",
    "train",
    "vocab_size_of",
]
