"""What the reports on quality share: how answers agree, and how rows are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from ..actors.settings import Settings

Row = TypeVar("Row")


def agreement(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def tell(
    own: dict[str, Any],
    settings: Settings,
    rows: Sequence[Row],
    table_of: Callable[[Sequence[Row], str], Table],
) -> None:
    """Print the table, or one JSON object. own: a command's flags, prompts, tokens and json."""
    if own["json"]:
        told = {"model": settings.public_name, "prompts": own["prompts"], "tokens": own["tokens"]}
        print(msgspec.json.encode(told | {"formats": rows}).decode())
        return
    title = f"{settings.public_name}, {own['prompts']} prompts, {own['tokens']} tokens at most"
    Console(width=100).print(table_of(rows, title))
