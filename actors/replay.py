"""Replaying a recording: the same planner, told the same, must decide the same.

Pure but for the file: neither a model nor the actors are there. `replay` is called by the command
of that name and by tests, with a file or with records.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..kv.ledger import Ledger
from ..spec.plan import Row
from .planner import Planner
from .recording import (
    FORMAT,
    MICROSECOND,
    Arrived,
    Cancelled,
    Decision,
    Ended,
    Input,
    Landed,
    Planned,
    Record,
    Section,
    Settled,
    admit_of,
    rows_of,
    usage_of,
    verdict_of,
)
from .sequence import Sequence
from .tape import TapeError, read


@dataclass(slots=True, frozen=True)
class Difference:
    """Where a replay parts from its recording. event: how many the planner had been told of, in
    all sections; step: its last step then."""

    event: int
    step: int
    then: str
    now: str

    def __str__(self) -> str:
        return (
            f"event {self.event}, after step {self.step}: another decision\n"
            f"  then: {self.then}\n  now:  {self.now}"
        )


@dataclass(slots=True)
class Replayed:
    """What came of it. events: arrivals, cancellations and results of steps. fault: what the
    planner raised at the recording's very end, where it must have raised it then. unsaid: decisions
    that lie behind the end of a section that was cut. Counts are those of the replay, of all
    sections together; `blocks` and `problems` are the last ledger's, audited."""

    sections: int = 0
    events: int = 0
    arrivals: int = 0
    cancels: int = 0
    steps: int = 0
    ended: int = 0
    preemptions: int = 0
    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    unsaid: int = 0
    difference: Difference | None = None
    fault: str | None = None
    blocks: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return self.difference is None


def replay(source: Path | Iterable[Record]) -> Replayed:
    """Make all decisions anew, up to the first that differs. Raises TapeError for a file that
    cannot be read as a recording."""
    records = read(source, Record) if isinstance(source, Path) else source
    stage = _Stage()
    for record in records:
        stage.take(record)
        if stage.seen.difference is not None:
            break
    return stage.finish()


class _Stage:
    """A planner that hears what another heard, and both their decisions side by side."""

    def __init__(self) -> None:
        self.seen = Replayed()
        self._planner: Planner | None = None
        self._clock = 0
        self._step = 0
        self._decided: deque[Decision] = deque()
        self._fault: str | None = None

    def take(self, record: Record) -> None:
        """The next record: something to tell the planner, or to compare with what it decided."""
        if isinstance(record, Section):
            self._begin(record)
            return
        if self._planner is None:
            raise TapeError("the recording does not begin with a section")
        if isinstance(record, Planned | Ended):
            self._compare(record)
        elif self._decided or self._fault:
            self._differ("nothing more", self._next())
        else:
            self._hear(record, self._planner)

    def finish(self) -> Replayed:
        """The end of the last section, and the account of all."""
        self._close()
        if self._planner is not None:
            self.seen.blocks = self._planner.ledger.counts()
            self.seen.problems = self._planner.ledger.check()
        return self.seen

    def _begin(self, section: Section) -> None:
        if section.format != FORMAT:
            raise TapeError(
                f"the recording has format {section.format}, written by Paceline "
                f"{section.version}; this one reads format {FORMAT}"
            )
        self._close()
        self.seen.sections += 1
        ledger = Ledger(section.blocks, section.block_size, section.slots)
        self._planner = Planner(ledger, section.limits)
        self._clock, self._step = section.clock, 0

    def _close(self) -> None:
        """What a section's end leaves: decisions that nobody lived to write, or a fault."""
        if self._planner is None:
            return
        if self.seen.difference is None:
            self.seen.unsaid += len(self._decided)
            self.seen.fault = self._fault or self.seen.fault
        self._decided.clear()
        self._fault = None
        self.seen.preemptions += self._planner.preemptions
        self.seen.queries += self._planner.prefixes.queries
        self.seen.hits += self._planner.prefixes.hits

    def _hear(self, record: Input, planner: Planner) -> None:
        self._clock += record.later
        self.seen.events += not isinstance(record, Settled)
        try:
            self._tell(record, planner, self._clock * MICROSECOND)
        except Exception:
            self._fault = traceback.format_exc()

    def _tell(self, record: Input, planner: Planner, now: float) -> None:
        match record:
            case Arrived():
                self.seen.arrivals += 1
                planner.add(Sequence.of(admit_of(record), now))
            case Cancelled():
                self.seen.cancels += 1
                cancelled = planner.close(record.seq, record.reason)
                if cancelled is not None:
                    self._decided.append(Ended.of(cancelled))
            case Landed():
                for closed in planner.land(verdict_of(record)):
                    self._decided.append(Ended.of(closed))
            case Settled():
                while (plan := planner.plan(now)) is not None:
                    self._decided.append(Planned.of(plan))

    def _compare(self, then: Decision) -> None:
        if not self._decided:
            self._differ(describe(then), self._next())
            return
        now = self._decided.popleft()
        if _encode(then) != _encode(now):
            self._differ(describe(then), describe(now))
        elif isinstance(now, Planned):
            self.seen.steps += 1
            self._step = now.step
        else:
            usage = usage_of(now)
            self.seen.ended += 1
            self.seen.prompt_tokens += usage.prompt_tokens
            self.seen.answer_tokens += usage.completion_tokens

    def _next(self) -> str:
        if self._decided:
            return describe(self._decided[0])
        return f"the planner raised\n{self._fault}" if self._fault else "nothing"

    def _differ(self, then: str, now: str) -> None:
        self.seen.difference = Difference(self.seen.events, self._step, then, now)


def describe(decision: Decision) -> str:
    """A decision in one line: for a row, sequence, tokens, draft tokens and new blocks."""
    if isinstance(decision, Ended):
        error = f" ({decision.error})" if decision.error else ""
        return f"sequence {decision.seq} ends: {decision.reason}{error} {decision.usage}"
    openings = ", ".join(
        f"sequence {seq} in slot {slot}"
        for seq, slot in zip(
            *(decision.openings.get(it, ()) for it in ("seq", "slot")), strict=True
        )
    )
    rows = ", ".join(_row(row) for row in rows_of(Row, decision.rows))
    return f"step {decision.step}: {rows}{f'; opens {openings}' if openings else ''}"


def _row(row: Row) -> str:
    draft = f"+{row.draft}" if row.draft else ""
    ends = "" if row.sample else " of a prompt"
    blocks = f" in new blocks {', '.join(map(str, row.blocks))}" if row.blocks else ""
    return f"sequence {row.seq} {row.count}{draft}{ends}{blocks}"


def _encode(decision: Decision) -> bytes:
    return msgspec.msgpack.encode(decision)
