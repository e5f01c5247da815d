"""What is read of the small JSON files beside a tokenizer that somebody else may have written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from tpulm import storage
from tpulm.config.validation import given

TOKENIZER_CONFIG = "tokenizer_config.json"
SETTINGS_FILES = ("special_tokens_map.json", TOKENIZER_CONFIG)  # the latter goes before the former


class _Given(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, defer_build=True)  # further keys are ignored


class GivenToken(_Given):
    content: str
    single_word: bool | None = None
    lstrip: bool | None = None
    rstrip: bool | None = None
    normalized: bool | None = None
    special: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_its_text(cls, value: Any) -> Any:
        if not isinstance(value, str | dict):
            raise ValueError("Input should be a token: its text, or an object with its content")
        return {"content": value} if isinstance(value, str) else value

    @property
    def flags(self) -> dict[str, bool]:
        return {name: bool(flag) for name, flag in self.model_dump(exclude={"content"}).items()}


class GivenSettings(_Given):
    """The keys of tokenizer_config.json and special_tokens_map.json, None where they are absent or null."""

    tokenizer_class: str | None = None
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    word_tokenizer_type: str = "basic"
    subword_tokenizer_type: str = "wordpiece"
    mecab_kwargs: dict[str, Any] | None = None
    model_max_length: Any = None
    add_prefix_space: bool | None = None
    add_bos_token: bool | None = None
    added_tokens_decoder: dict[str, GivenToken] = {}
    pad_token: GivenToken | None = None
    unk_token: GivenToken | None = None
    cls_token: GivenToken | None = None
    sep_token: GivenToken | None = None
    mask_token: GivenToken | None = None
    bos_token: GivenToken | None = None
    eos_token: GivenToken | None = None

    def token(self, key: str) -> str | None:
        """The text of the token that stands under a key."""
        found: GivenToken | None = getattr(self, key)
        return None if found is None else found.content


def read_settings(folder: PurePath, names: Iterable[str] = SETTINGS_FILES) -> GivenSettings:
    """Those of the files that are there. Raises DataError naming file and key for a value of another type."""
    values: dict[str, Any] = {}
    for name in names:
        if storage.exists(folder / name):
            found = storage.read_given_object(folder / name)
            given(GivenSettings, found, str(folder / name))
            values |= found
    return GivenSettings.model_validate(values)
