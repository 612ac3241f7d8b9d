"""What a request needs before it can be admitted, done off the event loop.

Owned by admission. Prompts and bad words are encoded in the text thread, with a tokenizer of its
own; grammars are compiled elsewhere, because that may take long and must hold up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from ..spec.params import Grammar, InputError
from .messages import ChatPrompt, Encoded, Prompt, Submit, TextPrompt, TokenPrompt

log = structlog.get_logger("paceline.admission")

Tokens = tuple[int, ...]


class Encoder(Protocol):
    """The tokenizer as admission uses it, in the text thread. ValueError: the client's mistake."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, turns: Sequence[dict[str, Any]]) -> list[int]: ...

    def encode_part(self, text: str) -> list[int]:
        """Ids of a text that stands within another: without any mark of a beginning or end."""
        ...


class Grammars(Protocol):
    """What makes grammars fit to be followed, and keeps them."""

    def compile(self, grammar: Grammar, count: int = 1) -> object:
        """Make it ready for `count` sequences of the model pair, unless it is. ValueError: no such
        grammar can be followed, in a sentence for the client. Called in any of several threads."""
        ...

    def close(self) -> None:
        """No more grammars: end what still works on one."""
        ...


class NoGrammars:
    """For a tokenizer that no grammar can be compiled for."""

    def compile(self, grammar: Grammar, count: int = 1) -> object:
        raise ValueError("this server cannot hold an output to a format")

    def close(self) -> None:
        """Nothing works here."""


@dataclass(slots=True, frozen=True)
class Workshop:
    """The tools and the threads they are used in."""

    encoder: Encoder
    grammars: Grammars
    text: ThreadPoolExecutor
    compiling: ThreadPoolExecutor

    async def prepare(self, submit: Submit, ticket: int) -> Encoded:
        """Everything that the request needs, or why it cannot be had. Cancelling it drops what has
        not begun."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            ids, bad = await run(self.text, _encode, self.encoder, submit)
            if submit.params.grammar is not None:
                await run(self.compiling, _compile, self.grammars, submit)
        except InputError as error:
            return Encoded(submit.request, ticket, error=error.message, param=error.param)
        return Encoded(submit.request, ticket, ids, bad)


class Jobs:
    """Requests being prepared, by ticket."""

    def __init__(self, workshop: Workshop, deliver: Callable[[Encoded], None]) -> None:
        self._workshop = workshop
        self._deliver = deliver
        self._tasks: dict[int, asyncio.Task[Encoded]] = {}

    def start(self, submit: Submit, ticket: int) -> None:
        """Prepare a request; the outcome is delivered on the event loop, unless it is dropped."""
        task = asyncio.create_task(self._workshop.prepare(submit, ticket))
        self._tasks[ticket] = task
        task.add_done_callback(lambda done: self._done(ticket, done))

    def drop(self, ticket: int) -> None:
        """Nobody waits for it any more. Harmless when it is done."""
        if task := self._tasks.get(ticket):
            task.cancel()

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _done(self, ticket: int, task: asyncio.Task[Encoded]) -> None:
        del self._tasks[ticket]
        if not task.cancelled():
            self._deliver(task.result())


def prompt_field(prompt: Prompt) -> str:
    """The name of the field that a prompt comes in."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _encode(encoder: Encoder, submit: Submit) -> tuple[Tokens, tuple[Tokens, ...]]:
    """In the text thread: the prompt and the bad words as tokens."""
    with _blaming(prompt_field(submit.prompt), submit.request):
        ids = _prompt(encoder, submit.prompt)
    with _blaming("bad_words", submit.request):
        return ids, words(encoder, submit.params.bad_words)


def _compile(grammars: Grammars, submit: Submit) -> None:
    """In a compiling thread: the grammar, for all of the request's sequences."""
    assert submit.params.grammar is not None
    with _blaming("response_format", submit.request):
        grammars.compile(submit.params.grammar, submit.n)


@contextmanager
def _blaming(param: str, request: str) -> Iterator[None]:
    """Whatever goes wrong becomes an InputError for a field of the request."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error), param=param) from error
    except BaseException as error:  # libraries in other languages raise more than Exceptions
        log.exception("a request cannot be prepared", request=request, param=param)
        raise InputError(f"the server failed to read {param}", param=param) from error


def _prompt(encoder: Encoder, prompt: Prompt) -> Tokens:
    match prompt:
        case ChatPrompt():
            return tuple(encoder.encode_chat(prompt.turns))
        case TextPrompt():
            return tuple(encoder.encode(prompt.text))
        case TokenPrompt():
            return prompt.ids


def words(encoder: Encoder, texts: Sequence[str]) -> tuple[Tokens, ...]:
    """The ways in which words come as tokens: at the start of a text or within a word, and behind
    a space. Each once, in order."""
    found: dict[Tokens, None] = {}
    for text in texts:
        bare = text.lstrip(" ") or text
        for spelled in (bare, " " + bare):
            found[tuple(encoder.encode_part(spelled))] = None
    found.pop((), None)
    return tuple(found)
