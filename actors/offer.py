"""What this server offers, and whether a request can have what it asks for.

Pure; used by admission. Every refusal is an InputError that names the field at fault.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ..spec.params import InputError, Method, SamplingParams
from .messages import Encoded


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

    def speculation(self, params: SamplingParams) -> tuple[Method | None, int]:
        """Method and draft length that a request gets."""
        asked = params.speculation
        if asked.method is not None and asked.method not in self.methods:
            offered = ", ".join(self.methods) or "none"
            raise InputError(
                f"this server does not draft with {asked.method!r}; it offers: {offered}",
                param="speculation.method",
            )
        method = asked.method or self.default_method
        if asked.mode == "force" and method is None:
            method = self.methods[0] if self.methods else None
            if method is None:
                raise InputError("this server cannot speculate", param="speculation.mode")
        if asked.mode == "off" or method is None:
            return None, 0
        return method, asked.k or self.k[method]

    def check_tokens(self, params: SamplingParams) -> None:
        """Refuse token ids that do not exist."""
        for token, _ in params.logit_bias:
            self._need_token(token, f"logit_bias.{token}")
        self._need_tokens(params.allowed_token_ids, "allowed_token_ids")
        self._need_tokens(params.stop_token_ids, "stop_token_ids")

    def check_exactness(self, params: SamplingParams) -> None:
        """Refuse what no answer can keep to.

        Everything else goes together: processors and limits act at each draft position as they
        would without a draft, and both rules of acceptance keep the distribution they leave.
        """
        method, _ = self.speculation(params)
        rejection = params.speculation.accept == "rejection"
        if rejection and method and params.seed is not None and not params.greedy:
            raise InputError(
                "with rejection sampling the text depends on the draft too, so a seed cannot "
                "promise the same text again: leave out the seed, or accept by the coupled rule",
                param="speculation.accept",
            )
        if params.grammar is not None and params.ignore_eos:
            raise InputError(
                "an output that must match a format ends where the format does, with an end "
                "token: ignore_eos cannot be true",
                param="ignore_eos",
            )

    def complete(self, params: SamplingParams, encoded: Encoded, field: str) -> SamplingParams:
        """The parameters of a request whose prompt came in `field`, with nothing left open."""
        room = self._room(encoded.ids, field)
        wanted = room if params.max_tokens is None else params.max_tokens
        if wanted > room or room < 1:
            what = "context" if self.length <= self.pool_tokens else "KV pool"
            bound = min(self.length, self.pool_tokens)
            raise InputError(
                f"{len(encoded.ids)} prompt tokens and {wanted} new ones exceed the {what} of "
                f"{bound} tokens",
                param="max_tokens" if params.max_tokens is not None else field,
                code="context_length_exceeded",
            )
        if params.min_tokens > wanted:
            raise InputError(
                f"min_tokens is {params.min_tokens}, but only {wanted} new tokens fit",
                param="min_tokens",
                code="context_length_exceeded",
            )
        return msgspec.structs.replace(
            params,
            max_tokens=wanted,
            bad_tokens=encoded.bad_tokens,
            seed=secrets.randbelow(2**31) if params.seed is None else params.seed,
        )

    def _room(self, prompt: tuple[int, ...], param: str) -> int:
        """How many tokens may follow the prompt."""
        if not prompt:
            raise InputError("the prompt is empty", param=param)
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise InputError(f"token ids must be between 0 and {self.vocab_size - 1}", param=param)
        if len(prompt) >= self.length:
            raise InputError(
                f"the prompt has {len(prompt)} tokens; this server takes fewer than {self.length}",
                param=param,
                code="context_length_exceeded",
            )
        return min(self.length, self.pool_tokens) - len(prompt)

    def _need_tokens(self, tokens: Iterable[int], param: str) -> None:
        for i, token in enumerate(tokens):
            self._need_token(token, f"{param}[{i}]")

    def _need_token(self, token: int, param: str) -> None:
        if not 0 <= token < self.vocab_size:
            raise InputError(
                f"{param}: token ids must be between 0 and {self.vocab_size - 1}, got {token}",
                param=param,
            )
