"""The record of one request: when things happened and what came of them.

Kept beside its outbox, fed with the same events, and turned into one canonical log line and the
request metrics when the last of its sequences has ended, whether anyone still listens or not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from .messages import Accepted, Delta, Ended, Event, Refused, Usage
from .metrics import Metrics

log = structlog.get_logger("paceline.request")


@dataclass(slots=True)
class RequestRecord:
    """Times are monotonic seconds; `sequences` is how many ends the request has."""

    request: str
    sequences: int
    metrics: Metrics
    submitted: float = field(default_factory=time.monotonic)
    accepted: float | None = None
    first_text: float | None = None
    last_text: float | None = None
    prompt_tokens: int = 0
    ended: list[Ended] = field(default_factory=list)
    refused: Refused | None = None

    @property
    def over(self) -> bool:
        return self.refused is not None or len(self.ended) == self.sequences

    @property
    def usage(self) -> Usage:
        """What is known of the usage before a sequence has ended."""
        return Usage(prompt_tokens=self.prompt_tokens)

    def note(self, event: Event) -> None:
        """Take an event that goes to the client; the last one closes the record."""
        now = time.monotonic()
        match event:
            case Delta():
                self._note_tokens(now, len(event.tokens))
                return
            case Ended():
                self.ended.append(event)
            case Accepted():
                self.accepted = now
                self.prompt_tokens = event.prompt_tokens
            case Refused():
                self.refused = event
        if self.over:
            self._close(now)

    def _note_tokens(self, now: float, tokens: int) -> None:
        if not tokens:
            return
        if self.last_text is None:
            self.first_text = now
            self.metrics.time_to_first_token.observe(now - self.submitted)
        else:
            self.metrics.inter_token_latency.observe(now - self.last_text)
        self.last_text = now

    def _close(self, now: float) -> None:
        if self.refused is not None:
            self._log_refusal(now, self.refused)
            return
        generated = sum(e.usage.completion_tokens for e in self.ended)
        speculation = [e.usage.speculation for e in self.ended]
        self.metrics.observe_request(
            reasons=[e.reason for e in self.ended],
            prompt_tokens=self.prompt_tokens,
            completion_tokens=generated,
            seconds=now - self.submitted,
        )
        errors = [e.error for e in self.ended if e.error]
        (log.error if errors else log.info)(
            "request",
            id=self.request,
            finish=",".join(e.reason for e in self.ended),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=min(e.usage.cached_tokens for e in self.ended),
            completion_tokens=generated,
            method=speculation[0].method,
            drafted=sum(s.drafted for s in speculation),
            accepted=sum(s.accepted for s in speculation),
            steps=sum(s.steps for s in speculation),
            encode_ms=self._ms(self.submitted, self.accepted),
            first_token_ms=self._ms(self.submitted, self.first_text),
            total_ms=self._ms(self.submitted, now),
            **({"error": errors[0]} if errors else {}),
        )

    def _log_refusal(self, now: float, refused: Refused) -> None:
        self.metrics.rejections.inc(1, refused.code or "invalid")
        log.info(
            "request",
            id=self.request,
            finish="refused",
            status=refused.status,
            param=refused.param,
            error=refused.message,
            total_ms=self._ms(self.submitted, now),
        )

    @staticmethod
    def _ms(start: float, end: float | None) -> float | None:
        return None if end is None else round((end - start) * 1000, 1)
