"""Text that a user has for a draft to learn from: questions, or whole conversations.

JSON lines hold {"messages": [{"role", "content"}, …]} or {"prompt": "…"}; any other file is read as
one question a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..models.errors import ModelError

Turn = dict[str, str]
Given = tuple[Turn, ...]
"""The turns of one conversation. If the last is the user's, the target answers it; if it is the
assistant's, the conversation is learnt from as it stands."""


def read_given(files: Iterable[Path]) -> Iterator[Given]:
    """Everything in the files, in order. Raises ModelError naming file and line."""
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _turns(line, f"{path}:{number}")


def _turns(line: str, where: str) -> Given:
    if not line.lstrip().startswith("{"):
        return ({"role": "user", "content": line.strip()},)
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise ModelError(f"{where} is not JSON: {error}") from error
    if isinstance(record.get("prompt"), str):
        return ({"role": "user", "content": record["prompt"]},)
    turns = record.get("messages")
    good = isinstance(turns, list) and turns and all(_is_turn(turn) for turn in turns)
    if not good:
        raise ModelError(f'{where} has neither a "prompt" nor "messages" of role and content')
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and all(isinstance(turn.get(k), str) for k in ("role", "content"))
