"""A WordPiece vocabulary of a few words, and tokenizers of which each token is given."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm import tokenization

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "old", "cat", "fox", "sees", "a", "house", "and", "is", "seen", "by", "it", ".", ",", "##s", "我", "爱", "你"]
VOCAB_SIZE = 60


def with_tokens(tokens: list[str], kind: str, folder: Path) -> tokenization.Tokenization:
    """A byte-level BPE or a Unigram vocabulary, through the file that any such tokenizer is kept in."""
    tokens = [*SPECIAL, *tokens]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], 1, "<0x00>" in tokens))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenization.load(folder)
