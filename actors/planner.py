"""The planner: which rows make the next step, who is admitted, who must give way.

Pure: owned by the scheduler actor, driven by counts and the time it is told, knows neither asyncio
nor torch. There are no phases: a row is a number of known tokens to compute, and where it reaches
the last known one it samples and may carry draft tokens. Chunked prefill, verification, recompute
after a preemption are all that one rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..kv.ledger import Ledger
from ..kv.window import reach
from ..spec.plan import FinishReason, StepFailed, StepPlan
from .flights import Flights
from .messages import Verdict
from .prefixes import Prefixes
from .room import Room
from .sequence import Sequence
from .step import Part, Step
from .waiting import Waiting

STEP_FAILED = "the step that computes this sequence failed"


@dataclass(slots=True, frozen=True)
class Limits:
    """step_tokens: known and draft tokens of one step together. length: positions a sequence may
    have. flights: steps in the air at once. caching: whether full blocks are kept and shared.
    forming: seconds that a batch waits for more sequences before it starts. window: tokens that a
    row reads, its own among them; None: some layer sees everything. far: see Step."""

    step_tokens: int
    length: int
    flights: int = 1
    caching: bool = True
    forming: float = 0.0
    window: int | None = None
    far: int | None = None


@dataclass(slots=True, frozen=True)
class Closed:
    """A sequence that has left the planner, its blocks released."""

    sequence: Sequence
    reason: FinishReason
    error: str | None = None


class Planner:
    """Waiting and running sequences, and the steps in the air."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self.ledger = ledger
        self.limits = limits
        self.prefixes = Prefixes(ledger, limits.caching, reach(limits, ledger.block_size))
        self.waiting = Waiting()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._room = Room(ledger, self.prefixes)
        self._all: dict[int, Sequence] = {}
        self._flights = Flights()
        self._short_of_memory = False

    # --- what arrives ------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait, behind all others of its priority."""
        self._all[sequence.seq] = sequence
        self.waiting.add(sequence)

    def close(self, seq: int, reason: FinishReason, error: str | None = None) -> Closed | None:
        """End a sequence in whatever state it is; None when it has ended already.

        Blocks return at once, or, if a step that writes them is in the air, when it lands.
        """
        sequence = self._all.pop(seq, None)
        if sequence is None:
            return None
        if sequence in self.running:
            self.running.remove(sequence)
            self.ledger.release(seq, fence=self._flights.last_of(seq))
        else:
            self.waiting.remove(sequence)
        self._short_of_memory = False
        return Closed(sequence, reason, error)

    def land(self, verdict: Verdict) -> list[Closed]:
        """Take the oldest flight's result; the sequences that ended with it."""
        plan = self._flights.land(verdict.step)
        self.ledger.land(plan.step)
        if verdict.failure is not None:
            return self._failed(plan, verdict.failure)
        closed = []
        for row in verdict.rows:
            sequence = self._all.get(row.seq)
            if sequence is None:
                continue
            sequence.land(row)
            if row.error is None:
                self.prefixes.publish(sequence)
            if row.finish is not None:
                closed.append(self.close(row.seq, row.finish, row.error))
        return [c for c in closed if c is not None]

    # --- what leaves -------------------------------------------------------------------------

    def plan(self, now: float = 0.0) -> StepPlan | None:
        """The next step, or None when there is nothing to compute or no flight to spare.

        now: seconds of a clock that never goes back.
        """
        if len(self._flights) >= self.limits.flights or (self._flights and self._outranked()):
            return None
        step = self._compose(now)
        while not step.parts and step.gave_way:
            step = self._compose(now)  # whoever gave way has left room for someone else
        return self._flights.launch(step, self.ledger) if step.parts else None

    @property
    def wakes(self) -> float | None:
        """When there will be something to plan even if nothing arrives until then."""
        forming = self.limits.forming and self.waiting and not self.running
        return self.waiting.since + self.limits.forming if forming else None

    @property
    def idle(self) -> bool:
        """Nothing in the air and nothing to compute."""
        return not self._flights and not self._all

    # --- planning ----------------------------------------------------------------------------

    def _compose(self, now: float) -> Step:
        step = Step(self.limits.step_tokens, self.limits.far)
        suspects = [s for s in self.running if s.suspect]
        if suspects:
            if not self._flights:
                self._plan_row(step, suspects[0])
        elif self._plan_decoding(step):
            self._plan_prompts(step, now)
        return step

    def _plan_decoding(self, step: Step) -> bool:
        """Rows of the running sequences that sample next; False when the step must end there.

        So a long prompt takes what the running streams leave of a step, never the reverse.
        Draft tokens fill half of a step at most: every stream advances, and prompts do too.
        """
        decoding = [s for s in self.running if s.unplanned == 1]
        if decoding:
            step.draft_cap = max(0, self.limits.step_tokens // (2 * len(decoding)) - 1)
        return self._plan_rows(step, decoding)

    def _plan_prompts(self, step: Step, now: float) -> None:
        """Chunks of prompts and admissions. Prompts come in their rank; but one that is longer
        than a step keeps half of the room only while there are others at most half as long."""
        prompts = [s for s in self.running if s.seq not in step.parts and s.unplanned > 1]
        prompts.sort(key=lambda s: s.rank)
        if prompts:
            first, short = prompts[0], prompts[0].unplanned // 2
            with step.keeping(min(first.unplanned, step.room - step.room // 2)):
                brief = sorted(prompts[1:], key=lambda s: s.unplanned)
                self._plan_rows(step, [s for s in brief if s.unplanned <= short])
                self._admit(step, now, short)
            self._plan_rows(step, prompts)
        self._admit(step, now)

    def _plan_rows(self, step: Step, sequences: Iterable[Sequence]) -> bool:
        """Rows of those that still run and have none yet; False when the step must end."""
        for sequence in sequences:
            planned = sequence.seq in step.parts or sequence not in self.running
            if not planned and not self._plan_row(step, sequence):
                return False
        return True

    def _plan_row(self, step: Step, sequence: Sequence) -> bool:
        """Add the sequence's row; False when the step must end here."""
        count = step.most(sequence, wanted := sequence.unplanned)
        length = sequence.ceiling + count
        if not count:
            return False
        if length > self.limits.length:
            return True  # only while rows in the air may have filled it; they land first
        sample = count == wanted
        draft = 0
        if sample and sequence.next_draft:
            draft = min(
                sequence.next_draft, step.draft_cap, step.room - count, self.limits.length - length
            )
            if draft and self.ledger.grow(sequence.seq, length + draft) is None:
                draft = 0
        while self.ledger.grow(sequence.seq, length) is None:
            if self._flights:
                return False  # what is in the air may free blocks: nobody gives way for a guess
            assert len(self.running) > 1, "alone in the pool, a sequence has room"
            victim = self._victim()
            self._preempt(victim, step)
            if victim is sequence:
                return True
        step.add(Part(sequence, count, draft, sample))
        return True

    def _victim(self) -> Sequence:
        """Who gives way: the last in rank, so that the first always advances."""
        return max(self.running, key=lambda s: s.rank)

    def _preempt(self, sequence: Sequence, step: Step) -> None:
        self.running.remove(sequence)
        self.ledger.release(sequence.seq, fence=None)
        sequence.preempt()
        self.waiting.add(sequence)
        self.preemptions += 1
        step.drop(sequence.seq)
        step.gave_way = True

    # --- admitting ---------------------------------------------------------------------------

    def _admit(self, step: Step, now: float, most: int | None = None) -> None:
        """Start waiting sequences in their order while slots, step and pool have room, but for
        those with more than `most` tokens to compute.

        Passed over are those whose prompt is just being computed by another, until it is, and large
        ones that would leave too little to the others. Nobody starts in a step that others had to
        give way for.
        """
        if not self.waiting or step.gave_way or self._forms(now):
            return
        if not (self.ledger.free_slots or self._outranked()):
            return
        pending = {key for s in self.running for key in s.pending}
        for sequence in self.waiting:
            if step.room <= 0 or (self._short_of_memory and self.running):
                return
            if sequence.awaits in pending:
                continue
            found = self.prefixes.find(sequence)
            if self.prefixes.arriving(sequence, len(found), pending):
                continue
            if self._room.crowds(sequence, self.running, self.waiting):
                continue
            if not self._room.fits(sequence, found, self.running):
                if self._make_way(sequence, found, step):
                    self._start(sequence, found, step)
                return
            left = len(sequence.tokens) - len(found) * self.ledger.block_size
            if most is None or left <= most:
                self._start(sequence, found, step)
                pending.update(sequence.pending)

    def _start(self, sequence: Sequence, found: list[int], step: Step) -> None:
        self.ledger.open(sequence.seq)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.prefixes.start(sequence, found)
        self._plan_row(step, sequence)

    def _make_way(self, sequence: Sequence, found: list[int], step: Step) -> bool:
        """Let running sequences of a lower priority give way, if that makes room."""
        victims = [] if self._flights else self._room.victims(sequence, found, self.running)
        for victim in victims:
            self._preempt(victim, step)
        return bool(victims)

    def _outranked(self) -> bool:
        """Whether a running sequence may have to give way to the first that waits."""
        if not self.waiting:
            return False
        return any(s.priority > self.waiting.first.priority for s in self.running)

    def _forms(self, now: float) -> bool:
        """Whether a batch is still waiting for more sequences."""
        wakes = self.wakes
        return wakes is not None and now < wakes and len(self.waiting) < self.ledger.slots

    # --- failures ----------------------------------------------------------------------------

    def _failed(self, plan: StepPlan, failure: StepFailed) -> list[Closed]:
        """A step raised: nothing advanced. One bad row must not end its neighbours.

        Out of memory: the newest gives way, the rest go on, and nobody is admitted until one of
        them has ended. Otherwise each row is tried alone; the one that fails alone is the culprit
        and ends with an error. What was raised is in the log, not in the answer.
        """
        alive = [self._all[row.seq] for row in plan.rows if row.seq in self._all]
        for sequence in alive:
            sequence.air.popleft()
        if len(plan.rows) == 1 and alive:
            closed = self.close(alive[0].seq, "error", STEP_FAILED)
            return [closed] if closed else []
        if failure.kind == "memory" and not self._flights and len(self.running) > 1:
            self._preempt(self._victim(), Step(0))
            self._short_of_memory = True
        else:
            for sequence in alive:
                sequence.suspect = True
        return []
