"""Fields that clients send and this server does not act on: taken at a value that asks for nothing,
refused by name at any other. Used wherever a client's JSON becomes a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec.params import InputError

Table = Mapping[str, tuple[object, ...]]

# Fields of OpenAI's schemas that this server does not act on, with the values that ask for
# nothing. null is always one of them.
NEUTRAL: Table = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "reasoning_effort": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
CHAT_NEUTRAL: Table = {**NEUTRAL, "echo": (False,)}
MESSAGE_NEUTRAL: Table = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
}


def without_neutral(fields: dict[str, Any], table: Table, path: str = "") -> dict[str, Any]:
    """`fields` without those of `table`. Raises InputError for one that is not neutral."""
    for name in table.keys() & fields.keys():
        value = fields[name]
        if value is not None and not any(_same(value, it) for it in table[name]):
            raise InputError(
                f"{path}{name} is not supported",
                param=f"{path}{name}",
                code="unsupported_field",
            )
    return {name: value for name, value in fields.items() if name not in table}


def _same(a: object, b: object) -> bool:
    # JSON tells true from 1, Python does not
    return a == b and isinstance(a, bool) == isinstance(b, bool)
