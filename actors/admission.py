"""The admission actor: owns open requests and the tools that prepare them.

A request is checked and prepared (encoded, its grammar compiled, in threads) before anyone else
hears of it; then it becomes `n` sequences, admitted in one go, or one refusal that names the field
at fault. A request that is abandoned leaves by the way it came.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from ..spec.params import SEED_MAX, InputError, SamplingParams, check
from .actor import Actor, Address, Post
from .messages import Abandon, Admit, Cancel, Encoded, Message, Refuse, SeqClosed, Submit
from .offer import AdmissionLimits
from .workshop import Encoder, Grammars, Jobs, Workshop, prompt_field

__all__ = ["Admission", "AdmissionLimits", "Encoder", "Grammars"]


@dataclass(slots=True)
class _OpenRequest:
    submit: Submit
    ticket: int
    sequences: set[int] = dataclasses.field(default_factory=set)


class Admission(Actor):
    """Messages in: Submit, Encoded, Abandon, SeqClosed. Out: Admit, Refuse, Cancel."""

    name: Address = "admission"

    def __init__(self, post: Post, workshop: Workshop, limits: AdmissionLimits) -> None:
        super().__init__(post)
        self._jobs = Jobs(workshop, self.send)
        self._limits = limits
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

    def close(self) -> None:
        self._jobs.close()

    # --- arriving ----------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        try:
            self._check(submit)
        except InputError as error:
            self._refuse(submit.request, error)
            return
        ticket = self._next_ticket
        self._next_ticket += 1
        self._open[submit.request] = _OpenRequest(submit, ticket)
        self._jobs.start(submit, ticket)

    def _check(self, submit: Submit) -> None:
        """Everything that can be known before the prompt's tokens are."""
        if len(self._open) >= self._limits.open_requests:
            raise InputError(
                f"the server already holds {len(self._open)} requests, its limit",
                status=429,
                code="too_many_requests",
                retry_after=1,
            )
        check(submit.params)
        self._limits.check_tokens(submit.params)
        self._limits.check_exactness(submit.params)

    def _encoded(self, encoded: Encoded) -> None:
        opened = self._open.get(encoded.request)
        if opened is None or opened.ticket != encoded.ticket:
            return  # abandoned while it was being prepared
        try:
            if encoded.error is not None:
                raise InputError(encoded.error, param=encoded.param)
            field = prompt_field(opened.submit.prompt)
            params = self._limits.complete(opened.submit.params, encoded, field)
        except InputError as error:
            del self._open[encoded.request]
            self._refuse(encoded.request, error)
            return
        self._admit(opened, encoded.ids, params)

    def _admit(self, opened: _OpenRequest, ids: tuple[int, ...], params: SamplingParams) -> None:
        submit = opened.submit
        method, k = self._limits.speculation(params)
        assert params.seed is not None
        for index in range(submit.n):
            seq = self._next_seq
            self._next_seq += 1
            opened.sequences.add(seq)
            self._owner[seq] = submit.request
            seed = (params.seed + index) % (SEED_MAX + 1)
            admit = Admit(
                seq=seq,
                request=submit.request,
                index=index,
                prompt=ids,
                params=msgspec.structs.replace(params, seed=seed),
                method=method,
                k=k,
                granularity=submit.granularity,
                priority=submit.priority,
            )
            for actor in ("sampler", "streamer", "scheduler"):
                self._post.send(actor, admit)

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
        self._jobs.drop(opened.ticket)
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
