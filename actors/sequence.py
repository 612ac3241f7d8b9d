"""A sequence as the scheduler sees it: counts, its lease, and its rows in the air."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..kv.prefix import Chain
from ..spec.params import Method, SamplingParams
from ..spec.plan import Opening, Row, RowVerdict
from .messages import Admit, SpeculationUsage, Usage


@dataclass(slots=True, eq=False)
class Sequence:
    """One stream of tokens.

    tokens: all known ones, prompt first. arrived: when it came, in the planner's time.
    computed: how many have KV, by landed rows alone.
    air: rows that have been launched and not judged, oldest first.
    delivered: how many of the lease's blocks the pair has been told of; None until its slot is
    opened there.
    reported: how many were computed before a preemption: what is told of them has been told.
    suspect: a step that held this sequence failed; it is tried alone until one succeeds.
    chain: keys of its full blocks; None until it is asked for them. published: how many of its
    blocks have been offered to others, or come from them.
    cached: prompt tokens that its first admission found computed; None before that. awaits: key of
    the block for which it was last passed over.
    """

    seq: int
    request: str
    tokens: list[int]
    prompt_tokens: int
    params: SamplingParams
    method: Method | None
    priority: int = 0
    arrived: float = 0.0
    next_draft: int = 0
    computed: int = 0
    delivered: int | None = None
    reported: int = 0
    suspect: bool = False
    preemptions: int = 0
    chain: Chain | None = None
    published: int = 0
    cached: int | None = None
    awaits: bytes | None = None
    air: deque[Row] = field(default_factory=deque)
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, admit: Admit, now: float = 0.0) -> Sequence:
        return cls(
            seq=admit.seq,
            request=admit.request,
            tokens=list(admit.prompt),
            prompt_tokens=len(admit.prompt),
            params=admit.params,
            method=admit.method,
            priority=admit.priority,
            arrived=now,
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Before whom it comes: the lower goes first, and the higher gives way."""
        return self.priority, self.seq

    @property
    def unplanned(self) -> int:
        """Known tokens left to compute once everything in the air has landed.

        A row that samples leaves exactly one, however many draft tokens it will have accepted:
        that is what makes planning ahead of its result possible.
        """
        if self.air and self.air[-1].sample:
            return 1
        return len(self.tokens) - self.computed - sum(row.count for row in self.air)

    @property
    def ceiling(self) -> int:
        """Positions that have KV once everything in the air has landed, at most."""
        return self.computed + sum(row.count + row.draft for row in self.air)

    @property
    def pending(self) -> list[bytes]:
        """Keys of the blocks that it fills and has not published."""
        return self.chain.keys[self.published :] if self.chain else []

    def opening(self, slot: int) -> Opening:
        return Opening(
            seq=self.seq,
            slot=slot,
            tokens=tuple(self.tokens),
            params=self.params,
            method=self.method,
            prompt=self.prompt_tokens,
            reported=self.reported,
            cached=self.computed,
        )

    def start(self, cached: int, blocks: int) -> None:
        """Admitted, with KV of the first `cached` tokens in as many shared blocks."""
        self.computed, self.published = cached, blocks
        if self.cached is None:
            self.cached = cached

    def land(self, verdict: RowVerdict) -> None:
        """Take the result of the oldest row in the air."""
        row = self.air.popleft()
        self.computed += row.count + verdict.accepted
        self.tokens.extend(verdict.tokens)
        self.suspect = False
        if row.sample:
            self.next_draft = verdict.next_draft
            self.steps += 1
            self.drafted += verdict.drafted
            self.accepted += verdict.accepted

    def preempt(self) -> None:
        """Back to nothing computed; every token stays known."""
        assert not self.air, "a sequence in the air cannot be preempted"
        self.reported = max(self.reported, self.computed)
        self.computed = 0
        self.delivered = None
        self.preemptions += 1

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.tokens) - self.prompt_tokens,
            cached_tokens=self.cached or 0,
            speculation=SpeculationUsage(self.method, self.steps, self.drafted, self.accepted),
        )
