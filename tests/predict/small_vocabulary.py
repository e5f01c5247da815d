"""A WordPiece vocabulary of a few words."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "old", "cat", "fox", "sees", "a", "house", "and", "is", "seen", "by", "it", ".", ",", "##s", "我", "爱", "你"]
VOCAB_SIZE = 60
