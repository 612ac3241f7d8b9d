"""Prompts to ask a model, or conversations to learn from: built-in ones, or those of a file.

A file is plain text, one prompt a line, or JSON lines: `{"prompt": "…"}` or `{"messages": [{"role":
"user", "content": "…"}, …]}`. It is read as JSON lines when its name ends so (.jsonl, .json) or its
first line begins with a brace. Empty lines are skipped; other fields are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..actors.flags import UsageError
from ..actors.messages import ChatPrompt
from .prompts import PROMPTS

BUILT_IN = "built-in"
JSON_NAMES = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and where it stands for whoever has to correct it. Its last turn may be the
    assistant's where it is not to be asked."""

    where: str
    prompt: ChatPrompt


class _Turn(msgspec.Struct):
    role: str
    content: str


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Turn] | None = None


def built_in() -> list[Question]:
    """The prompts that are asked when no file is given."""
    return [Question(f"{BUILT_IN} {i}", _said(text)) for i, text in enumerate(PROMPTS, 1)]


def read(path: Path) -> list[Question]:
    """The prompts of a file, in its order. Raises UsageError naming file and line."""
    try:
        lines = path.expanduser().read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    questions = list(_questions(path, lines))
    if not questions:
        raise UsageError(f"{path} has no prompts")
    return questions


def _questions(path: Path, lines: list[bytes]) -> Iterator[Question]:
    parse: Callable[[bytes], ChatPrompt] | None = None
    for number, raw in enumerate(lines, 1):
        if not (line := raw.strip()):
            continue
        if parse is None:
            json = path.suffix.lower() in JSON_NAMES or line.startswith(b"{")
            parse = _from_json if json else _from_text
        where = f"{path}:{number}"
        try:
            yield Question(where, parse(line))
        except UnicodeDecodeError:
            raise UsageError(f"{where}: this is not UTF-8") from None
        except ValueError as error:  # msgspec's errors are such
            raise UsageError(f"{where}: {error}") from None


def _from_text(line: bytes) -> ChatPrompt:
    return _said(line.decode())


def _from_json(line: bytes) -> ChatPrompt:
    line.decode()  # in JSON too, complain of the encoding first
    told = msgspec.json.decode(line, type=_Line)
    if (told.prompt is None) == (told.messages is None):
        raise ValueError('a line has either a "prompt" or "messages"')
    if told.prompt is not None:
        if not told.prompt.strip():
            raise ValueError("the prompt is empty")
        return _said(told.prompt)
    if not told.messages:
        raise ValueError("the list of messages is empty")
    return ChatPrompt(tuple({"role": it.role, "content": it.content} for it in told.messages))


def _said(text: str) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": text},))
