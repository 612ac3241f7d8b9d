"""Types of request fields, and a reader for the one that types cannot describe."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ..spec.params import MAX_LOGPROBS, InputError

INT32_MAX = 2**31 - 1
MAX_CHOICES = 128
MAX_PRIORITY = 100

TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
ChoiceCount = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
TopK = Annotated[int, Meta(ge=-1, le=INT32_MAX)]


def read_bias(bias: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """The field `logit_bias`: token ids, which JSON spells as strings, and numbers. Raises
    InputError naming the entry at fault; what range a bias may have is not checked here."""
    read = []
    for key, value in bias.items():
        param = f"logit_bias.{key}"
        if not _is_token(key):
            raise InputError(f"{param}: a token id is expected, in decimal digits", param=param)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{param}: expected a number", param=param)
        try:
            read.append((int(key), float(value)))
        except OverflowError:
            raise InputError(f"{param}: this number is out of range", param=param) from None
    return tuple(read)


def _is_token(key: str) -> bool:
    """Whether it is a token id as it is written by everyone, which rules out doubles."""
    digits = key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX))
    return digits and str(int(key)) == key and int(key) <= INT32_MAX
