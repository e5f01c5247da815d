"""What all settings have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator

from tpulm.errors import suggest


class Names:
    """What a setting may be; code that registers another one adds its name."""

    def __init__(self, *names: str):
        self._names = dict.fromkeys(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        self._names[name] = None

    def discard(self, name: str) -> None:
        self._names.pop(name, None)

    def check(self, name: str) -> str:
        if name not in self._names:
            raise ValueError(f"'{name}' is not one of {', '.join(self._names)}.{suggest(name, self._names)}")
        return name


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, values: Any) -> Any:
        """TOML has no null: "none" unsets a setting that may be unset."""
        if not isinstance(values, dict):
            return values
        may_be_unset = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {name: None if value == "none" and name in may_be_unset else value for name, value in values.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1."""
        if isinstance(value, bool):
            kinds = str(cls.model_fields[info.field_name or ""].annotation)
            if "bool" not in kinds and ("int" in kinds or "float" in kinds):
                raise ValueError("a number is expected, not true or false")
        return value
