"""Special tokens: their names and ids, and how they are found in third-party vocabularies.

A vocabulary trained here begins like Google's later ones and those of the Korean BERT and ELECTRA: [PAD]=0, [UNK]=1, [CLS]=2,
[SEP]=3, [MASK]=4, then text. (Google's English ones have 99 slots for later tokens, [unusedN], between [PAD] and [UNK].)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tpulm.errors import DataError
from tpulm.special_tokens import SpecialTokens

PAD, UNKNOWN, CLS, SEP, MASK = TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Of all vocabularies trained here: a model can be compiled before its vocabulary exists.
TRAINED = SpecialTokens(pad=0, unknown=1, cls=2, sep=3, mask=4)

# role -> its usual names, ours first, and its key in Hugging Face's tokenizer_config.json
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
CONFIG_KEYS = {"pad": "pad_token", "unknown": "unk_token", "cls": "cls_token", "sep": "sep_token", "mask": "mask_token"}

_SLOT = re.compile(r"\[unused\d+\]")


def is_slot(token: str) -> bool:
    return _SLOT.fullmatch(token) is not None


def absent(vocabulary: Collection[str]) -> list[str]:
    """Our names for the roles that have no usual name in the vocabulary."""
    return [names[0] for names in _NAMES.values() if not any(name in vocabulary for name in names)]


def locate(vocabulary: Mapping[str, int], origin: str, declared: Mapping[str, str] | None = None) -> SpecialTokens:
    """Find every role's token by the name `declared` for it, else by the usual names.

    Raises DataError, listing what is missing and what there is instead.
    """
    declared = declared or {}
    ids: dict[str, int] = {}
    missing: list[str] = []
    for role, usual in _NAMES.items():
        names = (declared[role],) if role in declared else usual
        name = next((name for name in names if name in vocabulary), None)
        if name is None:
            missing.append(f"{role} ({' or '.join(names)})")
        else:
            ids[role] = vocabulary[name]
    if missing:
        candidates = [token for token in vocabulary if re.fullmatch(r"\[[A-Za-z]+\]|<\|?/?[a-z_]+\|?>", token)]
        raise DataError(
            f"an encoder's vocabulary needs five special tokens, and has none for: {', '.join(missing)}. "
            f"Tokens that look special: {', '.join(sorted(candidates)[:12]) or 'none'}. Add the missing ones to the vocabulary "
            "(in place of unused slots, if it has any), or train a new one by leaving tokenizer.path out.",
            location=origin,
        )
    if len(set(ids.values())) < len(ids):
        raise DataError(f"two special tokens share an id: {ids}; give each its own", location=origin)
    return SpecialTokens(**ids)
