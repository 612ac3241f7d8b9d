"""The admission actor: owns open requests, their limits, and the encoding tokenizer.

A request is checked and encoded (in the text thread, with a tokenizer of its own) before anyone
else hears of it; then it becomes `n` sequences, admitted in one go, or one refusal that names the
field at fault. A request that is abandoned leaves by the way it came.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from ..spec.params import SEED_MAX, InputError, Method, SamplingParams, check
from .actor import Actor, Address, Post
from .messages import (
    Abandon,
    Admit,
    Cancel,
    ChatPrompt,
    Encoded,
    Message,
    Prompt,
    Refuse,
    SeqClosed,
    Submit,
    TextPrompt,
    TokenPrompt,
)

log = structlog.get_logger("paceline.admission")


class Encoder(Protocol):
    """The tokenizer as admission uses it, in the text thread. ValueError: the client's mistake."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, turns: Sequence[dict[str, Any]]) -> list[int]: ...


@dataclass(slots=True, frozen=True)
class AdmissionLimits:
    """What this server takes.

    open_requests: requests at once. length: positions of a sequence, by the model's context.
    pool_tokens: tokens of one sequence alone in the pool. vocab_size: token ids below it exist.
    methods: what can draft. default_method drafts when a request names none; k: draft tokens a
    step by method, when it names no number.
    """

    open_requests: int
    length: int
    pool_tokens: int
    vocab_size: int
    methods: tuple[Method, ...]
    default_method: Method | None
    k: dict[Method, int]


@dataclass(slots=True)
class _OpenRequest:
    submit: Submit
    ticket: int
    sequences: set[int] = field(default_factory=set)


class Admission(Actor):
    """Messages in: Submit, Encoded, Abandon, SeqClosed. Out: Admit, Refuse, Cancel."""

    name: Address = "admission"

    def __init__(
        self, post: Post, encoder: Encoder, thread: ThreadPoolExecutor, limits: AdmissionLimits
    ) -> None:
        super().__init__(post)
        self._encoder = encoder
        self._thread = thread
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, _OpenRequest] = {}
        self._owner: dict[int, str] = {}
        self._next_seq = 0
        self._next_ticket = 0

    def receive(self, message: Message) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Encoded():
                self._encoded(message)
            case Abandon():
                self._abandon(message)
            case SeqClosed():
                self._closed(message.seq)
            case _:
                raise TypeError(f"admission has no use for {type(message).__name__}")

    # --- arriving ----------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        try:
            if len(self._open) >= self._limits.open_requests:
                raise InputError(
                    f"the server already holds {len(self._open)} requests, its limit",
                    status=429,
                    code="too_many_requests",
                    retry_after=1,
                )
            check(submit.params)
            self._speculation(submit.params)
        except InputError as error:
            self._refuse(submit.request, error)
            return
        ticket = self._next_ticket
        self._next_ticket += 1
        self._open[submit.request] = _OpenRequest(submit, ticket)
        encoding = self._thread.submit(_encode, self._encoder, submit.prompt)
        encoding.add_done_callback(partial(self._report, submit.request, ticket))

    def _report(self, request: str, ticket: int, encoding: Future[list[int]]) -> None:
        """Runs in the text thread: turn the encoding's outcome into a message."""
        error = encoding.exception()
        if error is None:
            message = Encoded(request, ticket, tuple(encoding.result()))
        elif isinstance(error, ValueError):
            message = Encoded(request, ticket, error=str(error))
        else:
            log.error("encoding failed", request=request, exc_info=error)
            message = Encoded(request, ticket, error="the prompt could not be encoded")
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.send, message)

    def _encoded(self, encoded: Encoded) -> None:
        opened = self._open.get(encoded.request)
        if opened is None or opened.ticket != encoded.ticket:
            return  # abandoned while it was being encoded
        try:
            params = self._resolve(opened.submit, encoded)
        except InputError as error:
            del self._open[encoded.request]
            self._refuse(encoded.request, error)
            return
        self._admit(opened, encoded.ids, params)

    def _admit(self, opened: _OpenRequest, ids: tuple[int, ...], params: SamplingParams) -> None:
        method, k = self._speculation(params)
        assert params.seed is not None
        for index in range(opened.submit.n):
            seq = self._next_seq
            self._next_seq += 1
            opened.sequences.add(seq)
            self._owner[seq] = opened.submit.request
            seed = (params.seed + index) % (SEED_MAX + 1)
            admit = Admit(
                seq=seq,
                request=opened.submit.request,
                index=index,
                prompt=ids,
                params=msgspec.structs.replace(params, seed=seed),
                method=method,
                k=k,
            )
            for actor in ("sampler", "streamer", "scheduler"):
                self._post.send(actor, admit)

    # --- checks ------------------------------------------------------------------------------

    def _resolve(self, submit: Submit, encoded: Encoded) -> SamplingParams:
        """The request's parameters, complete; InputError when it cannot be served as asked."""
        field_name = "messages" if isinstance(submit.prompt, ChatPrompt) else "prompt"
        if encoded.error is not None:
            raise InputError(encoded.error, param=field_name)
        size, params, limits = len(encoded.ids), submit.params, self._limits
        if size == 0:
            raise InputError("the prompt is empty", param=field_name)
        if max(encoded.ids) >= limits.vocab_size or min(encoded.ids) < 0:
            raise InputError(
                f"token ids must be between 0 and {limits.vocab_size - 1}", param=field_name
            )
        if size >= limits.length:
            raise InputError(
                f"the prompt has {size} tokens; this server takes fewer than {limits.length}",
                param=field_name,
                code="context_length_exceeded",
            )
        room = min(limits.length, limits.pool_tokens) - size
        wanted = params.max_tokens if params.max_tokens is not None else room
        if wanted > room or room < 1:
            what = "context" if limits.length <= limits.pool_tokens else "KV pool"
            bound = min(limits.length, limits.pool_tokens)
            raise InputError(
                f"{size} prompt tokens and {wanted} new ones exceed the {what} of {bound} tokens",
                param="max_tokens" if params.max_tokens is not None else field_name,
                code="context_length_exceeded",
            )
        seed = params.seed if params.seed is not None else secrets.randbelow(2**31)
        return msgspec.structs.replace(params, max_tokens=wanted, seed=seed)

    def _speculation(self, params: SamplingParams) -> tuple[Method | None, int]:
        """Method and draft length that the request gets."""
        asked, limits = params.speculation, self._limits
        if asked.method is not None and asked.method not in limits.methods:
            offered = ", ".join(limits.methods) or "none"
            raise InputError(
                f"this server does not draft with {asked.method!r}; it offers: {offered}",
                param="speculation.method",
            )
        method = asked.method or limits.default_method
        if asked.mode == "force" and method is None:
            method = limits.methods[0] if limits.methods else None
            if method is None:
                raise InputError("this server cannot speculate", param="speculation.mode")
        if asked.mode == "off" or method is None:
            return None, 0
        return method, asked.k or limits.k[method]

    # --- leaving -----------------------------------------------------------------------------

    def _abandon(self, abandon: Abandon) -> None:
        opened = self._open.get(abandon.request)
        if opened is None:
            return
        if opened.sequences:
            for seq in opened.sequences:
                self._post.send("scheduler", Cancel(seq, "cancelled"))
            return
        del self._open[abandon.request]
        reason = InputError(
            f"cancelled before it was admitted ({abandon.reason})", status=499, code="cancelled"
        )
        self._refuse(abandon.request, reason)

    def _closed(self, seq: int) -> None:
        request = self._owner.pop(seq)
        sequences = self._open[request].sequences
        sequences.discard(seq)
        if not sequences:
            del self._open[request]

    def _refuse(self, request: str, error: InputError) -> None:
        refusal = Refuse(
            request, error.message, error.param, error.status, error.code, error.retry_after
        )
        self._post.send("streamer", refusal)


def _encode(encoder: Encoder, prompt: Prompt) -> list[int]:
    match prompt:
        case ChatPrompt():
            return encoder.encode_chat(prompt.turns)
        case TextPrompt():
            return encoder.encode(prompt.text)
        case TokenPrompt():
            return list(prompt.ids)
