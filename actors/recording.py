"""A recording: what the scheduler was told, when, and what it decided, record by record.

Everything that the planner's decisions follow from is here, and nothing of a model, so `replay` can
make them again. The scheduler tells a `Recorder` before it acts on a message and after it has
decided; a `TapeRecorder` writes that down. A life of the scheduler is a section.

A field is recorded unless it is named below as one that the planner does not read: a new one is
never forgotten. Fields go by name and those at their defaults are left out, so that recordings
outlive most changes.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from .. import __version__
from ..kv.ledger import Ledger
from ..spec.params import SamplingParams
from ..spec.plan import FinishReason, Opening, Row, RowVerdict, StepFailed, StepPlan
from .messages import Admit, Cancel, Usage, Verdict
from .planner import Closed, Limits
from .tape import Tape

FORMAT = 1
MICROSECOND = 1e-6

UNREAD_PARAMS = frozenset(
    {
        "temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words",
        "bad_tokens", "min_tokens", "grammar", "seed", "stop", "stop_token_ids", "include_stop",
        "ignore_eos", "logprobs", "speculation",
    }
)  # fmt: skip
"""Fields of SamplingParams that the planner does not read."""

UNREAD_ADMIT = frozenset({"index", "k", "granularity", "params"})
"""The same of Admit, whose params are written beside it."""

UNREAD_VERDICT = frozenset({"logprobs", "prompt_logprobs"})
"""The same of RowVerdict."""

UNREAD_FAILURE = frozenset({"error"})
UNSAID_OPENING = frozenset({"params", "tokens"})
"""Of an Opening: what the pair is told and what follows from the rest. Tokens become a checksum."""

Facts = dict[str, Any]
"""Fields of a struct by name, without those at their defaults."""

Table = dict[str, list[Any]]
"""The same of many structs: a list for each field that any of them has."""


_Field = tuple[str, Callable[[Any], Any], Any]
"""Of a struct: its name, how to get it, and its default."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class Section(_Record, frozen=True, tag=0):
    """A planner is built. clock: microseconds, from which those of the records are counted on."""

    format: int
    version: str
    blocks: int
    block_size: int
    slots: int
    limits: Limits
    clock: int


class Arrived(_Record, frozen=True, tag=1):
    """An Admit. later: microseconds since the record before that has them."""

    later: int
    admit: Facts
    params: Facts


class Cancelled(_Record, frozen=True, tag=2):
    later: int
    seq: int
    reason: FinishReason


class Landed(_Record, frozen=True, tag=3):
    """A Verdict: its rows, or its failure."""

    later: int
    step: int
    rows: Table
    failure: Facts | None


class Settled(_Record, frozen=True, tag=4):
    """The planner is asked for steps until it has none."""

    later: int


class Planned(_Record, frozen=True, tag=5):
    """Decided: a StepPlan."""

    step: int
    rows: Table
    openings: Table

    @classmethod
    def of(cls, plan: StepPlan) -> Planned:
        openings = table(Opening, plan.openings, UNSAID_OPENING)
        if plan.openings:
            openings["tokens"] = [_checksum(opening.tokens) for opening in plan.openings]
        return cls(plan.step, table(Row, plan.rows), openings)


class Ended(_Record, frozen=True, tag=6):
    """Decided: a sequence has closed."""

    seq: int
    reason: FinishReason
    error: str | None
    usage: Facts

    @classmethod
    def of(cls, closed: Closed) -> Ended:
        usage = closed.sequence.usage()
        counts = facts(usage, frozenset({"speculation"})) | facts(usage.speculation)
        return cls(closed.sequence.seq, closed.reason, closed.error, counts)


Input = Arrived | Cancelled | Landed | Settled
Decision = Planned | Ended
Record = Section | Input | Decision


class Recorder:
    """Told by the scheduler what it is told and decides; this one keeps nothing of it. Times are
    microseconds of a clock that never goes back."""

    def arrived(self, admit: Admit, now: int) -> None: ...

    def cancelled(self, cancel: Cancel, now: int) -> None: ...

    def landed(self, verdict: Verdict, now: int) -> None: ...

    def settled(self, now: int) -> None: ...

    def planned(self, plan: StepPlan) -> None: ...

    def ended(self, closed: Closed) -> None: ...


class TapeRecorder(Recorder):
    """Writes a section to a tape."""

    def __init__(self, tape: Tape, ledger: Ledger, limits: Limits, now: int) -> None:
        self._tape = tape
        self._now = now
        tape.write(
            Section(
                FORMAT, __version__, ledger.pool.total, ledger.block_size, ledger.slots, limits, now
            )
        )

    def arrived(self, admit: Admit, now: int) -> None:
        known = facts(admit, UNREAD_ADMIT)
        self._tape.write(Arrived(self._later(now), known, facts(admit.params, UNREAD_PARAMS)))

    def cancelled(self, cancel: Cancel, now: int) -> None:
        self._tape.write(Cancelled(self._later(now), cancel.seq, cancel.reason))

    def landed(self, verdict: Verdict, now: int) -> None:
        failure = verdict.failure
        self._tape.write(
            Landed(
                self._later(now),
                verdict.step,
                table(RowVerdict, verdict.rows, UNREAD_VERDICT),
                None if failure is None else facts(failure, UNREAD_FAILURE),
            )
        )

    def settled(self, now: int) -> None:
        self._tape.write(Settled(self._later(now)))

    def planned(self, plan: StepPlan) -> None:
        self._tape.write(Planned.of(plan))

    def ended(self, closed: Closed) -> None:
        self._tape.write(Ended.of(closed))

    def _later(self, now: int) -> int:
        later, self._now = now - self._now, now
        return later


# --- structs as facts and tables -------------------------------------------------------------


def facts(struct: msgspec.Struct, without: frozenset[str] = frozenset()) -> Facts:
    """The fields of a struct but those in `without` and those at their defaults."""
    found = {}
    for name, get, default in _fields(type(struct), without):
        value = get(struct)
        if value != default:
            found[name] = value
    return found


def table(kind: type[Any], rows: Sequence[Any], without: frozenset[str] = frozenset()) -> Table:
    """The facts of many structs of one kind, field by field; {} for none."""
    found: Table = {}
    for name, get, default in _fields(kind, without) if rows else ():
        column = list(map(get, rows))
        if column.count(default) < len(rows):
            found[name] = column
    return found


def rows_of(kind: type[Any], columns: Table) -> list[Any]:
    """The structs that a table was made of, what was left out at its default."""
    names = list(columns)
    every = zip(*columns.values(), strict=True)
    return [msgspec.convert(dict(zip(names, row, strict=True)), kind) for row in every]


def admit_of(record: Arrived) -> Admit:
    """The Admit, with all that the planner reads of it."""
    params = msgspec.convert(record.params, SamplingParams)
    return msgspec.convert(record.admit | {"index": 0, "k": 0, "params": params}, Admit)


def verdict_of(record: Landed) -> Verdict:
    """The Verdict, with all that the planner reads of it."""
    failure = record.failure
    return Verdict(
        record.step,
        tuple(rows_of(RowVerdict, record.rows)),
        None if failure is None else msgspec.convert(failure | {"error": ""}, StepFailed),
    )


def usage_of(record: Ended) -> Usage:
    """The tokens of a sequence that ended; what was drafted for it is not told apart."""
    return msgspec.convert(record.usage, Usage)


_KNOWN: dict[tuple[type[Any], frozenset[str]], tuple[_Field, ...]] = {}


def _fields(kind: type[Any], without: frozenset[str]) -> tuple[_Field, ...]:
    if (kind, without) not in _KNOWN:
        _KNOWN[kind, without] = tuple(
            (field.name, attrgetter(field.name), field.default)
            for field in msgspec.structs.fields(kind)
            if field.name not in without
        )
    return _KNOWN[kind, without]


def _checksum(tokens: Sequence[int]) -> int:
    return zlib.crc32(array("q", tokens))
