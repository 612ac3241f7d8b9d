"""What a server says about its guesses: usage and metrics tell one story."""

from __future__ import annotations

import asyncio

import pytest
from asking import METHODS
from pools import metrics, sample, whole_pool
from prompts import QUESTIONS, asked

pytestmark = pytest.mark.demo

COUNTERS = {
    "drafted": "spec_decode_num_draft_tokens",
    "accepted": "spec_decode_num_accepted_tokens",
}


async def test_usage_adds_up_to_the_metrics(demo, client):
    await whole_pool(client)
    before = await metrics(demo.url)
    usages = await asyncio.gather(
        *(
            _usage(client, question, method, k)
            for question, method, k in [
                (QUESTIONS[1], "ngram", 6),
                (QUESTIONS[3], "ngram", 3),
                (QUESTIONS[1], "draft", 4),
                (QUESTIONS[5], "draft", 2),
                (QUESTIONS[0], "off", None),
            ]
        )
    )
    after = await metrics(demo.url)

    def grown(name: str, **labels: str) -> float:
        return sample(after, name, **labels) - sample(before, name, **labels)

    for usage in usages:
        told = usage.speculation
        assert usage.completion_tokens == told.steps + told.accepted == 24
    for method in ("ngram", "draft"):
        own = [usage.speculation for usage in usages if usage.speculation.method == method]
        assert len(own) == 2
        for field, name in COUNTERS.items():
            assert sum(getattr(it, field) for it in own) == grown(f"{name}_total", method=method)
    for field, name in COUNTERS.items():
        places = sum(grown(f"{name}_per_pos_total", position=str(i)) for i in range(16))
        assert places == sum(getattr(usage.speculation, field) for usage in usages) > 0
    assert usages[-1].speculation.drafted == 0
    assert grown("generation_tokens_total") == 24 * len(usages)
    assert grown("prompt_tokens_total") == sum(usage.prompt_tokens for usage in usages)
    assert grown("request_success_total", finished_reason="length") == len(usages)


async def _usage(client, question, method, k):
    speculation = METHODS[method] | ({"k": k} if k else {})
    answer = await client.chat(
        "demo",
        asked(question),
        temperature=0,
        max_tokens=24,
        ignore_eos=True,
        speculation=speculation,
    )
    return answer.usage
