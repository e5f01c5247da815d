"""From text to token ids: training or loading a tokenizer, encoding in bulk, saving it as a Hugging Face folder.

`training` learns a vocabulary for a stock pipeline (`pipelines`); `files` saves and loads it, and also loads third-party
tokenizers with the help of `hf_files`, `sentencepiece_model` and `special`. Each way gives a `Tokenization`, which encodes in
bulk (`encode`) and with offsets (`offsets`), after a morphological analyser if it has one (`segmenter`, `analysers`). `report`
and `unknowns` measure how a vocabulary fits a text.
"""

from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import analysers
from tpulm.tokenization.causal import CausalTokenization, load_any, load_causal
from tpulm.tokenization.encode import Encoded
from tpulm.tokenization.files import (
    Vocabulary,
    dropped_characters,
    expected,
    load,
    load_manifest,
    load_vocabulary,
    normalization_warnings,
    save,
    vocab_size_of,
)
from tpulm.tokenization.offsets import Aligned
from tpulm.tokenization.report import TokenizerReport, compare
from tpulm.tokenization.tokenization import Tokenization
from tpulm.tokenization.training import train
from tpulm.tokenization.unknowns import UNKNOWN_REFUSED, UNKNOWN_WARNING, count_unknown, vocabulary_warnings

__all__ = [
    "UNKNOWN_REFUSED",
    "UNKNOWN_WARNING",
    "Aligned",
    "CausalTokenization",
    "Encoded",
    "SpecialTokens",
    "Tokenization",
    "TokenizerReport",
    "Vocabulary",
    "analysers",
    "compare",
    "count_unknown",
    "dropped_characters",
    "expected",
    "load",
    "load_any",
    "load_causal",
    "load_manifest",
    "load_vocabulary",
    "normalization_warnings",
    "save",
    "train",
    "vocab_size_of",
    "vocabulary_warnings",
]
