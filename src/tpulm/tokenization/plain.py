"""A tokenizer to which special tokens' names are ordinary text.

Corpus text may speak of "[SEP]". The library's own switch for this, `encode_special_tokens`, stops the search for special
tokens in the text; but a model may still know the name as a word (Unigram and word-level vocabularies do). So in the copy made
here their names are changed into something no text contains, and merges that would make one are left out. Ids, scores and
everything else stay.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import byte_level, special
from tpulm.tokenization.pipelines import Specified, specified

_HIDING: Final = f"\U0010fffc{secrets.token_hex(8)}"  # another in each process, so that no text is made to have it


def without_special_names(tokenizer: Tokenizer, specials: SpecialTokens) -> Specified:
    """A copy that adds nothing, cuts nothing off, and finds no special token or [unusedN] slot by its name."""
    specification = specified(tokenizer).specification
    names = {tokenizer.id_to_token(index) for index in specials}
    names |= {token["content"] for token in specification["added_tokens"] if token["special"]}
    model = specification["model"]
    names |= special.slots_in(_tokens(model))
    if byte_level.writes_bytes(model):
        names -= set(byte_level.CHARACTERS)  # a byte that no token can write would be dropped without a word
    hidden = {name: f"{_HIDING}{name}{_HIDING}" for name in names if name is not None}

    if isinstance(model["vocab"], list):
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    else:
        model["vocab"] = {hidden.get(token, token): index for token, index in model["vocab"].items()}
    if model["type"] == "BPE":
        model["merges"] = _merges_without(hidden, model)
    if model.get("unk_token"):
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    for token in specification["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    specification["post_processor"] = specification["padding"] = specification["truncation"] = None
    copy = Tokenizer.from_str(json.dumps(specification))
    copy.encode_special_tokens = True
    return Specified(copy, specification)


def _merges_without(names: Collection[str], model: Mapping[str, Any]) -> list[list[str]]:
    """The merges of a BPE model that neither make one of these tokens nor go on from one."""
    cut = len(model["continuing_subword_prefix"] or "")  # from the second half, where the two are joined
    return [
        [first, second]
        for first, second in model["merges"]
        if not (first in names or second in names or first + second[cut:] in names)
    ]


def _tokens(model: dict[str, Any]) -> list[str]:
    vocabulary = model["vocab"]
    return [token for token, _ in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)


def without_surrogates(text: str) -> str:
    """The text with every lone surrogate, which UTF-8 cannot hold, replaced by U+FFFD; a pair is its character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
