"""Prometheus metrics of the engine, in one registry per engine.

Actors report through the few methods here, when nobody waits for them; what speculation did is
`worth`'s. Names follow the field's (`spec_decode_…`), with the prefix `paceline:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .. import __version__
from ..spec.plan import FinishReason, StepDone
from .totals import Counter, Gauge, Histogram, Histograms, Totals
from .worth import UNSAID, Worth

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PHASES = ("draft", "prepare", "forward", "sample", "finish")


class Watcher(Protocol):
    """Who wants to see the steps themselves, beside the counters: a measurement."""

    def step(self, done: StepDone) -> None:
        """A step has landed and its verdict is sent."""
        ...

    def draft(self, method: str, drafted: int, accepted: int) -> None:
        """A draft of that step was verified; method: who made it."""
        ...


class Metrics:
    """All counters, gauges and histograms, and the text they are scraped as.

    watcher: told what is counted of each step, if there is one.
    """

    watcher: Watcher | None = None

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        totals = Totals()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return totals.keep(Counter(f"paceline:{name}", text, labels))

        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
            return totals.keep(Gauge(f"paceline:{name}", text, labels))

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return totals.keep(Histogram(f"paceline:{name}", text, buckets))

        self.build_info = gauge(
            "build_info",
            "1, labelled with what is served",
            ("version", "model", "draft", "device", "dtype"),
        )
        self.running = gauge("num_requests_running", "Sequences that hold a slot")
        self.waiting = gauge("num_requests_waiting", "Sequences that wait for a slot")
        self.blocks = gauge("kv_blocks", "Blocks of the pool by state", ("state",))
        self.usage = gauge("kv_cache_usage_perc", "Share of blocks in use, 0 to 1")
        self.leaked = gauge("kv_leaked_blocks", "Blocks that the last audit had a complaint about")
        self.audits = counter("kv_audits", "Audits of the pool")
        self.preemptions = counter("num_preemptions", "Sequences that gave way")
        self.prefix_queries = counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache"
        )
        self.prefix_hits = counter("prefix_cache_hits", "Prompt tokens found there")
        self.rejections = counter("admission_rejections", "Requests refused", ("reason",))
        self.finished = counter(
            "request_success", "Sequences ended, by finish reason", ("finished_reason",)
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests")
        self.generation_tokens = counter("generation_tokens", "Tokens kept, of ended requests")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "Submit to first text", _SECONDS
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Gap between deltas of a request", _SECONDS
        )
        self.request_seconds = histogram(
            "e2e_request_latency_seconds", "Submit to last event", _SECONDS
        )
        phases = Histograms(
            "paceline:step_seconds", "Step time by phase", _SECONDS, "phase", _PHASES
        )
        self._phases = tuple(totals.keep(phases).by_value.values())
        self.step_tokens = histogram("step_tokens", "Tokens sampled in a step", _TOKENS)
        self.step_failures = counter("step_failures", "Steps that raised", ("kind",))
        self.rebuilds = counter("engine_rebuilds", "Times the actors were rebuilt after a fault")
        self._seen = (0, 0, 0)
        self.worth = Worth()
        totals.families.append(self.worth.collect)
        registry.register(totals)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def describe(self, *, model: str, draft: str | None, device: str, dtype: str) -> None:
        """Label the build."""
        self.build_info.set(1, __version__, model, draft or "", device, dtype)

    def observe_queues(
        self,
        *,
        running: int,
        waiting: int,
        blocks: dict[str, int],
        preemptions: int,
        queries: int,
        hits: int,
    ) -> None:
        """The scheduler's state after it has acted. It counts preemptions, and prompt tokens that
        were looked up in the prefix cache and found there, from its start."""
        self.running.set(running)
        self.waiting.set(waiting)
        for state, count in blocks.items():
            if state != "total":
                self.blocks.set(count, state)
        self.usage.set(1 - (blocks["free"] + blocks["cached"]) / blocks["total"])
        counts = (preemptions, queries, hits)
        counters = (self.preemptions, self.prefix_queries, self.prefix_hits)
        for counter, count, seen in zip(counters, counts, self._seen, strict=True):
            counter.inc(max(0, count - seen))
        self._seen = counts

    def observe_audit(self, leaked: int) -> None:
        """An audit of the pool that had a complaint about so many blocks."""
        self.audits.inc()
        self.leaked.set(leaked)

    def observe_step(self, done: StepDone) -> None:
        """A step has landed."""
        times = done.times
        draft, prepare, forward, sample, finish = self._phases
        draft.observe(times.draft)
        prepare.observe(times.prepare)
        forward.observe(times.forward)
        sample.observe(times.sample)
        finish.observe(times.finish)
        self.step_tokens.observe(sum([len(row.tokens) for row in done.rows]))
        self.worth.count(done)
        if self.watcher is not None:
            self.watcher.step(done)
            for row in done.rows:
                if row.drafted:
                    self.watcher.draft(row.guesser or UNSAID, row.drafted, row.accepted)

    def observe_failure(self, kind: str) -> None:
        self.step_failures.inc(1, kind)

    def observe_request(
        self,
        *,
        reasons: Sequence[FinishReason],
        prompt_tokens: int,
        completion_tokens: int,
        seconds: float,
    ) -> None:
        for reason in reasons:
            self.finished.inc(1, reason)
        self.prompt_tokens.inc(prompt_tokens)
        self.generation_tokens.inc(completion_tokens)
        self.request_seconds.observe(seconds)
