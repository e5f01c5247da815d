"""Tokenizers of third-party causal models, which lack [CLS], [SEP] and [MASK] and begin texts in their own way.

tokenizer.json says what precedes a prompt (GPT-2: nothing; Llama: a beginning-of-text token); where there is only vocab.json,
`add_bos_token` in tokenizer_config.json says so, as in transformers 5.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tpulm import storage
from tpulm.config import TokenizerConfig
from tpulm.errors import ConfigError, DataError, brief
from tpulm.progress import SILENT, Progress
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization.files import TOKENIZER, load, read_tokenizer
from tpulm.tokenization.hf_files import TOKEN_KEYS, HfSettings, add_hf_tokens, check_usable, guarded, read_ids, read_settings
from tpulm.tokenization.pipelines import frame_causal
from tpulm.tokenization.tokenization import Tokenization

_MODEL = ("generation_config.json", "config.json")  # the former takes precedence
GPT2_VOCABULARY, GPT2_MERGES = "vocab.json", "merges.txt"
_VERSION = "#version"  # how the first line of merges.txt begins
_USUAL = "<|endoftext|>"


class CausalTokenization(Tokenization):
    """For generation only: the first end-of-text token fills the roles of all special tokens, but for a model's unknown one.

    `begin` is the id that starts a text without a prompt, `ends` are the ids that end one.
    """

    def __init__(self, tokenizer: Tokenizer, *, begin: int, ends: Iterable[int]):
        self._begin, self._ends = begin, tuple(ends)
        end, name = self._ends[0], getattr(tokenizer.model, "unk_token", None)
        unknown = tokenizer.token_to_id(name) if name else None
        if isinstance(tokenizer.model, models.Unigram):
            unknown = json.loads(tokenizer.to_str())["model"]["unk_id"]
        unknown = end if unknown is None else unknown
        super().__init__(tokenizer, SpecialTokens(pad=end, unknown=unknown, cls=end, sep=end, mask=end))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CausalTokenization, begin=self._begin, ends=self._ends), (self._tokenizer,)

    @property
    def ends(self) -> frozenset[int]:
        return frozenset(self._ends)

    def encode_one(self, text: str, special_tokens: bool = True) -> list[int]:
        """The ids of a prompt with the special tokens its file adds; an empty one has at least the token that begins a text."""
        return super().encode_one(text, special_tokens) or ([self._begin] if special_tokens else [])

    def causal(self) -> Tokenization:
        return self


_UNCASED = ":uncased"


def load_any(name: str, *, progress: Progress = SILENT) -> Tokenization:
    """The tokenizer of a work folder, a model's folder or a file, also a causal one.

    "PATH:uncased" reads a vocab.txt, which does not say how text is normalized, as Google's lower-case ones. Raises as `load`.
    """
    uncased = name.endswith(_UNCASED) and not storage.exists(name)
    path = storage.as_path(name.removesuffix(_UNCASED) if uncased else name)
    path = path / "tokenizer" if storage.is_folder(path / "tokenizer") else path
    folder = storage.is_folder(path)
    says_itself = storage.exists(path / TOKENIZER) if folder else path.suffix in (".json", ".model")
    if uncased and says_itself:
        raise ConfigError(f"'{name}': {path} itself says how text is normalized; leave out {_UNCASED}")
    if folder and not says_itself and storage.exists(path / GPT2_VOCABULARY):
        return load_causal(path)
    try:
        return load(path, TokenizerConfig(lowercase=uncased, strip_accents=uncased), progress=progress)
    except DataError:
        if not folder or not says_itself:
            raise
        return load_causal(path)  # a causal model's, without [CLS] and [MASK]


def load_causal(folder: str | os.PathLike[str], config: TokenizerConfig | None = None) -> Tokenization:
    """The tokenizer in a causal model's folder: as `load` reads it if it begins and ends texts as ours do, else as it is.

    Reads tokenizer.json, vocab.json with merges.txt, or a vocab.txt (to which `config` applies, as in `load`). Raises as `load`
    does, and DataError if no token ends a text.
    """
    source = storage.as_path(folder)
    settings = read_settings(source)
    if storage.exists(source / TOKENIZER):
        tokenizer = read_tokenizer(source / TOKENIZER)
    elif storage.exists(source / GPT2_VOCABULARY):
        tokenizer = _read_gpt2_files(source, settings)
    else:
        return load(source, config)
    files = [storage.read_given_object(source / name) for name in _MODEL if storage.exists(source / name)]
    ends = _ids("eos_token", tokenizer, files, settings, source)
    framed = tokenizer.encode("", add_special_tokens=True).ids
    if framed and set(ends) <= {framed[-1]}:  # as [SEP] in ours
        try:
            return load(source, config)
        except DataError:  # it lacks some of our special tokens
            pass
    if not ends:
        raise DataError(
            "no token is known to end a text: neither generation_config.json nor config.json has an eos_token_id, and "
            "tokenizer_config.json no eos_token. Write its id into config.json",
            location=str(source),
        )
    begin = next(iter(_ids("bos_token", tokenizer, files, settings, source)), ends[0])
    if settings.add_bos_token and not storage.exists(source / TOKENIZER):
        frame_causal(tokenizer, begin)
    return CausalTokenization(tokenizer, begin=begin, ends=ends)


def _ids(
    key: str, tokenizer: Tokenizer, entries: Iterable[Mapping[str, Any]], settings: HfSettings, folder: PurePath
) -> list[int]:
    """The ids stated as "…_id" in the model's files, else the id of the token named in the tokenizer's files."""
    stated = next((values[f"{key}_id"] for values in entries if values.get(f"{key}_id") is not None), None)
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


# -- GPT-2's two files, vocab.json and merges.txt --


def _read_gpt2_files(folder: PurePath, settings: HfSettings) -> Tokenizer:
    """Byte-level BPE as transformers' GPT2Tokenizer builds it; `settings` are those of tokenizer_config.json.

    Raises DataError if the files contradict each other.
    """
    vocabulary = read_ids(folder / GPT2_VOCABULARY)
    if not vocabulary or len(set(vocabulary.values())) < len(vocabulary):
        wrong = "two tokens of the vocabulary share an id" if vocabulary else "the vocabulary is empty"
        raise DataError(wrong, location=str(folder / GPT2_VOCABULARY))
    if not storage.exists(folder / GPT2_MERGES):
        raise DataError(
            f"{GPT2_MERGES} is missing beside {GPT2_VOCABULARY}; copy both, or tokenizer.json", location=str(folder)
        )
    merges = _read_merges(folder / GPT2_MERGES)
    with guarded(str(folder), f"{GPT2_MERGES} does not go with {GPT2_VOCABULARY} (copy both again)"):
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.add_prefix_space))
    tokenizer.decoder = decoders.ByteLevel()
    add_hf_tokens(tokenizer, folder / GPT2_VOCABULARY, settings)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for name in (*map(settings.token, TOKEN_KEYS), _USUAL):
        if name is not None and name not in known and tokenizer.token_to_id(name) is not None:
            tokenizer.add_special_tokens([AddedToken(name, normalized=False)])
    check_usable(tokenizer, str(folder / GPT2_VOCABULARY))
    return tokenizer


def _read_merges(path: PurePath) -> list[tuple[str, str]]:
    """The merges, one pair per line, the most important first."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(storage.read_text(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith(_VERSION):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise DataError(f"a line has two tokens and a space between them, not {line!r}", location=f"{path}:{number}")
        merges.append((left, right))
    return merges
