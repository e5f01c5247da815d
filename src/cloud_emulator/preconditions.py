"""`ifGenerationMatch` and its kin: whether a request may go ahead, given the object that is there now."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_emulator.answers import ApiError, condition_not_met, invalid, not_modified
from cloud_emulator.calls import Call


@dataclass(frozen=True)
class Preconditions:
    generation: int | None = None  # 0: there must be no object
    not_generation: int | None = None  # 0: there must be one
    metageneration: int | None = None
    not_metageneration: int | None = None

    def check(self, generation: int | None, metageneration: int | None, *, reading: bool = False) -> None:
        """Raise 412, or 304 where a read finds what the client already has. Both numbers are None where nothing is there."""
        if self.generation is not None and self.generation != (generation or 0):
            raise condition_not_met()
        if self.metageneration is not None and self.metageneration != metageneration:
            raise condition_not_met()
        unchanged: ApiError = not_modified() if reading else condition_not_met()
        if self.not_generation is not None and self.not_generation == (generation or 0):
            raise unchanged
        if self.not_metageneration is not None and self.not_metageneration == metageneration:
            raise unchanged


NONE = Preconditions()


def from_call(call: Call, infix: str = "") -> Preconditions:
    """Of the query; `infix` "Source" reads those on the source of a copy."""
    return Preconditions(
        call.whole_number(f"if{infix}GenerationMatch"),
        call.whole_number(f"if{infix}GenerationNotMatch"),
        call.whole_number(f"if{infix}MetagenerationMatch"),
        call.whole_number(f"if{infix}MetagenerationNotMatch"),
    )


def from_generation(value: object) -> Preconditions:
    """Of one source of a compose request."""
    if value is None:
        return NONE
    try:
        return Preconditions(generation=int(str(value)))
    except ValueError:
        raise invalid(f"Invalid value for ifGenerationMatch: '{value}' is not a whole number.") from None
