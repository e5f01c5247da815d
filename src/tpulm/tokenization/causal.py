"""Somebody else's causal model has somebody else's tokenizer: no [CLS], [SEP] or [MASK], and a beginning of its own.

What comes before a prompt the tokenizer's own file says (GPT-2: nothing; Llama: a token that begins a text), unless
tokenizer_config.json has `add_bos_token`, which goes before it in transformers too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from tokenizers import Tokenizer, processors

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.errors import DataError, brief
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization.given import GivenSettings, read_settings
from tpulm.tokenization.gpt2_files import VOCABULARY, read_gpt2_files
from tpulm.tokenization.loading import load, read_tokenizer
from tpulm.tokenization.tokenization import Tokenization

TOKENIZER = "tokenizer.json"
_MODEL = ("generation_config.json", "config.json")  # the former goes before the latter


class CausalTokenization(Tokenization):
    """For generation alone: the first of the tokens that end a text stands for all special ones.

    `begin` is what a text without a prompt begins with, `ends` are the ids that end one.
    """

    def __init__(self, tokenizer: Tokenizer, *, begin: int, ends: Iterable[int]):
        self._begin, self._ends = begin, tuple(ends)
        end = self._ends[0]
        super().__init__(tokenizer, SpecialTokens(pad=end, unknown=end, cls=end, sep=end, mask=end))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "begin": self._begin, "ends": self._ends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin, self._ends = state["begin"], state["ends"]

    @property
    def ends(self) -> frozenset[int]:
        return frozenset(self._ends)

    def encode_one(self, text: str, special_tokens: bool = True) -> list[int]:
        """The ids of a prompt with what its file puts around it; of an empty one at least the token that begins a text."""
        return super().encode_one(text, special_tokens) or ([self._begin] if special_tokens else [])

    def causal(self) -> Tokenization:
        return self


def load_causal(folder: str | os.PathLike[str], config: TokenizerConfig | None = None) -> Tokenization:
    """The tokenizer in the folder of a causal model: ours where it ends and begins texts as ours do, else theirs.

    Read are tokenizer.json, vocab.json with merges.txt, or a vocab.txt (for which `config` is, as in `load`). Raises as `load`
    does, and DataError where no token ends a text.
    """
    source = storage.as_path(folder)
    settings = read_settings(source)
    if storage.exists(source / TOKENIZER):
        tokenizer = read_tokenizer(source / TOKENIZER)
    elif storage.exists(source / VOCABULARY):
        tokenizer = read_gpt2_files(source, settings)
    else:
        return load(source, config)
    found = [_read_object(source / name) for name in _MODEL]
    ends = _ids("eos_token", tokenizer, found, settings, source)
    framed = tokenizer.encode("", add_special_tokens=True).ids
    if framed and set(ends) <= {framed[-1]}:  # as [SEP] in ours
        try:
            return load(source, config)
        except DataError:  # it has not all of our special tokens
            pass
    if not ends:
        raise DataError(
            "no token is known to end a text: neither generation_config.json nor config.json has an eos_token_id, and "
            "tokenizer_config.json no eos_token. Write its id into config.json",
            location=str(source),
        )
    begin = next(iter(_ids("bos_token", tokenizer, found, settings, source)), ends[0])
    if settings.add_bos_token is not None:
        _frame(tokenizer, begin if settings.add_bos_token else None)
    return CausalTokenization(tokenizer, begin=begin, ends=ends)


def _read_object(path: PurePath) -> dict[str, Any]:
    return storage.read_given_object(path) if storage.exists(path) else {}


def _ids(
    key: str, tokenizer: Tokenizer, found: Iterable[Mapping[str, Any]], settings: GivenSettings, folder: PurePath
) -> list[int]:
    """Those the model's files state under "…_id", else the one that the tokenizer's name."""
    stated = next((values[f"{key}_id"] for values in found if values.get(f"{key}_id") is not None), None)
    if stated is None:
        name = settings.token(key)
        index = None if name is None else tokenizer.token_to_id(name)
        return [] if index is None else [index]
    ids = stated if isinstance(stated, list) else [stated]
    for index in ids:
        if type(index) is not int or not 0 <= index < 1 << 32 or tokenizer.id_to_token(index) is None:
            raise DataError(
                f"{key}_id is {brief(stated)}, and the tokenizer has no token {brief(index)}: the two belong to different "
                "models, or the id in config.json (or generation_config.json) is wrong",
                location=str(folder),
            )
    return list(dict.fromkeys(ids))


def _frame(tokenizer: Tokenizer, begin: int | None) -> None:
    if begin is None:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        return
    name = tokenizer.id_to_token(begin)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, begin)]
    )
