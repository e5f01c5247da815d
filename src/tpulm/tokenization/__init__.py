"""From text to token ids: training or loading a tokenizer, encoding in bulk, saving it as a Hugging Face folder.

`training` learns a vocabulary for a stock pipeline (`pipelines`); `files` saves and loads it, and also loads third-party
tokenizers with the help of `hf_files`, `sentencepiece_model` and `special`. Each way gives a `Tokenization`, which encodes in
bulk (`encode`) and with offsets (`offsets`), after a morphological analyser if it has one (`segmenter`, `analysers`). `causal`
frames texts for causal models. `report` and `unknowns` measure how a vocabulary fits a text, `forms` compares tokens of
different vocabularies.
"""

from tpulm.special_tokens import SpecialTokens as SpecialTokens
from tpulm.tokenization import analysers as analysers
from tpulm.tokenization.causal import CausalTokenization as CausalTokenization, load_any as load_any, load_causal as load_causal
from tpulm.tokenization.encode import Encoded as Encoded
from tpulm.tokenization.files import (
    Vocabulary as Vocabulary,
    dropped_characters as dropped_characters,
    expected as expected,
    load as load,
    load_manifest as load_manifest,
    load_vocabulary as load_vocabulary,
    normalization_warnings as normalization_warnings,
    save as save,
    vocab_size_of as vocab_size_of,
)
from tpulm.tokenization.offsets import Aligned as Aligned
from tpulm.tokenization.report import TokenizerReport as TokenizerReport, compare as compare
from tpulm.tokenization.tokenization import Tokenization as Tokenization
from tpulm.tokenization.training import train as train
from tpulm.tokenization.unknowns import (
    UNKNOWN_REFUSED as UNKNOWN_REFUSED,
    UNKNOWN_WARNING as UNKNOWN_WARNING,
    count_unknown as count_unknown,
    vocabulary_warnings as vocabulary_warnings,
)
