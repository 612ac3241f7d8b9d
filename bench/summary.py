"""A run in numbers: percentiles, throughput, goodput, from records alone.

Pure arithmetic, with numpy's percentiles (linear between neighbours). Used by `points` and by
engines that are driven in process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from .records import Record


class Spread(msgspec.Struct, frozen=True):
    """Of `count` values, in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Limits(msgspec.Struct, frozen=True):
    """What a request must keep to, in seconds, to count as good; None: anything goes."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))

    def keeps(self, record: Record) -> bool:
        """Whether a request succeeded within the limits. What it has no value of (a token time of
        a one-token answer) it cannot exceed, but an answer without text has no first text."""
        if record.error is not None or (self.ttft is not None and record.ttft is None):
            return False
        values = ((record.ttft, self.ttft), (record.tpot, self.tpot), (record.e2e, self.e2e))
        return all(limit is None or value is None or value <= limit for value, limit in values)


class Goodput(msgspec.Struct, frozen=True):
    """Requests within the limits: how many of all that were sent, and per second."""

    limits: Limits
    requests: int
    share: float
    requests_per_s: float


class Summary(msgspec.Struct, frozen=True):
    """Latencies are of requests that came to their end; tokens of all, also of those cut short.

    seconds: from when the first request was due to the last end. steady_tokens_per_s: while as many
    requests were under way as asked for (closed loop only; None if that never was so).
    lag: between when requests were due and when they were sent. counted_by: "usage", or "chunks"
    if some answers came without usage and their pieces were counted instead (`uncounted` of them).
    """

    requests: int
    completed: int
    errors: dict[str, int]
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    steady_tokens_per_s: float | None
    ttft: Spread | None
    tpot: Spread | None
    gap: Spread | None
    e2e: Spread | None
    lag: Spread | None
    goodput: Goodput | None
    counted_by: str
    uncounted: int
    steps: int
    drafted: int
    accepted: int


def summarise(
    records: Sequence[Record], limits: Limits | None = None, width: int | None = None
) -> Summary:
    """All figures of a run. width: how many requests were kept under way (closed loop)."""
    limits = limits or Limits()
    done = [record for record in records if record.error is None]
    seconds = _seconds(records)
    good = sum(map(limits.keeps, records))
    tokens = sum(record.counted for record in records)
    uncounted = sum(record.tokens is None for record in done)
    return Summary(
        requests=len(records),
        completed=len(done),
        errors=dict(sorted(Counter(r.error for r in records if r.error is not None).items())),
        seconds=seconds,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in records),
        cached_tokens=sum(record.cached_tokens or 0 for record in records),
        output_tokens=tokens,
        requests_per_s=_rate(len(done), seconds),
        output_tokens_per_s=_rate(tokens, seconds),
        steady_tokens_per_s=None if width is None else _steady(records, width),
        ttft=spread(record.ttft for record in done),
        tpot=spread(record.tpot for record in done),
        gap=spread(gap for record in done for gap in record.gaps),
        e2e=spread(record.e2e for record in done),
        lag=spread(record.sent - record.due for record in records),
        goodput=Goodput(limits, good, good / len(records), _rate(good, seconds))
        if limits and records
        else None,
        counted_by="chunks" if uncounted else "usage",
        uncounted=uncounted,
        steps=sum(record.steps for record in records),
        drafted=sum(record.drafted for record in records),
        accepted=sum(record.accepted for record in records),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are there; None if there are none."""
    there = np.array([value for value in values if value is not None], dtype=np.float64)
    if not there.size:
        return None
    p50, p90, p99 = np.percentile(there, (50, 90, 99)).tolist()
    return Spread(there.size, float(there.mean()), p50, p90, p99, float(there.max()))


def tokens_between(records: Iterable[Record], begin: float, end: float) -> float:
    """Tokens that came at `begin` or later and before `end`. A record's tokens are dealt out over
    its pieces of text by their characters, since only the server knows how many each was."""
    return sum(
        record.counted * size / total
        for record in records
        if (total := sum(record.sizes))
        for time, size in zip(record.times, record.sizes, strict=True)
        if begin <= time < end
    )


def windows(records: Sequence[Record], width: float) -> list[float]:
    """Tokens per second in each window of `width` seconds, from 0 to the last end."""
    last = max((record.ended for record in records), default=0.0)
    counts = np.zeros(int(last / width) + 1)
    for record in records:
        if total := sum(record.sizes):
            places = (np.array(record.times) / width).astype(int)
            np.add.at(counts, places, np.array(record.sizes) * (record.counted / total))
    return (counts / width).tolist()


def _steady(records: Sequence[Record], width: int) -> float | None:
    """Between the sending of the `width`-th request and of the last, `width` are under way."""
    sent = sorted(record.sent for record in records)
    if len(sent) <= width or sent[-1] <= sent[width - 1]:
        return None
    begin, end = sent[width - 1], sent[-1]
    return tokens_between(records, begin, end) / (end - begin)


def _seconds(records: Sequence[Record]) -> float:
    if not records:
        return 0.0
    return max(record.ended for record in records) - min(record.due for record in records)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
