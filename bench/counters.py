"""What a server counted during a run, from its `/metrics` before and after.

Knows the names of Paceline, vLLM and llama.cpp; elsewhere nothing is reported. Used by `points`.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from prometheus_client.parser import text_string_to_metric_families

_OURS = {
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "output_tokens",
    "num_preemptions_total": "preemptions",
    "prefix_cache_queries_total": "prefix_queries",
    "prefix_cache_hits_total": "prefix_hits",
    "spec_decode_num_drafts_total": "drafts",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_plain_seconds_total": "plain_seconds",
    "spec_decode_step_seconds_total": "step_seconds",
}
_NAMES = {
    **{f"paceline:{name}": field for name, field in _OURS.items()},
    **{f"vllm:{name}": field for name, field in _OURS.items()},
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:tokens_predicted_total": "output_tokens",
}
_UNDRAFTED = "paceline:spec_decode_disabled_total"
_BY_PLACE = {
    f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total" for prefix in ("paceline", "vllm")
}


class Counters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over all labels; None where the server does not count it. accepted_at: accepted guesses
    by their place in a draft, from the first. undrafted: rows that sampled without a draft, by why.
    plain_seconds, step_seconds: what steps would have taken without speculation, and took."""

    prompt_tokens: float | None = None
    output_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    plain_seconds: float | None = None
    step_seconds: float | None = None
    accepted_at: list[float] = []
    undrafted: dict[str, float] = {}

    @property
    def acceptance(self) -> float | None:
        """The share of guesses that held."""
        return _share(self.accepted, self.drafted)

    @property
    def speedup(self) -> float | None:
        """Of steps, through speculation, as the server estimates it. None where it guessed
        nothing."""
        return _share(self.plain_seconds, self.step_seconds) if self.drafts else None

    @property
    def prefix_share(self) -> float | None:
        """The share of prompt tokens that were in the prefix cache."""
        return _share(self.prefix_hits, self.prefix_queries)

    @property
    def tokens_per_draft(self) -> float | None:
        """Tokens that a step with a draft brought, on average: the guesses that held, and one."""
        held = _share(self.accepted, self.drafts)
        return None if held is None else 1 + held


def read(text: str) -> Counters:
    """The counters so far, from Prometheus text."""
    sums: dict[str, float] = defaultdict(float)
    places: dict[int, float] = defaultdict(float)
    undrafted: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if field := _NAMES.get(sample.name):
                sums[field] += sample.value
            elif sample.name in _BY_PLACE:
                places[int(sample.labels["position"])] += sample.value
            elif sample.name == _UNDRAFTED:
                undrafted[sample.labels["reason"]] += sample.value
    held = [places[place] for place in range(max(places, default=-1) + 1)]
    return Counters(**sums, accepted_at=held, undrafted=dict(undrafted))


def between(before: Counters, after: Counters) -> Counters:
    """What was counted from one reading to another. A counter that appeared in between began at
    0."""
    grown: dict[str, float | None] = {}
    for field in sorted(set(_NAMES.values())):
        now = getattr(after, field)
        grown[field] = None if now is None else now - (getattr(before, field) or 0.0)
    then = before.accepted_at + [0.0] * len(after.accepted_at)
    places = [now - old for now, old in zip(after.accepted_at, then, strict=False)]
    while places and not places[-1]:
        places.pop()
    why = {name: now - before.undrafted.get(name, 0.0) for name, now in after.undrafted.items()}
    undrafted = {name: count for name, count in why.items() if count}
    return Counters(**grown, accepted_at=places, undrafted=undrafted)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
