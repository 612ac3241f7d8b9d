"""The benchmark against a real server: its figures are those of the server's log and counters."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from paceline.bench.asker import Target
from paceline.bench.points import Load
from paceline.bench.sweep import Sweep, sweep
from paceline.bench.workloads import Wanted
from support.server import Server
from support.tiny_models import save_tiny

REQUESTS, TOKENS = 4, 12


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A random model that drafts by look-up."""
    model = save_tiny(tmp_path_factory.mktemp("tiny") / "model", "llama", tokenizer=True)
    with Server("--model", str(model), "--threads", "1", "--device", "cpu") as server:
        yield server


async def test_it_reconciles_with_the_log_and_the_counters(server):
    job = Sweep(
        target=Target(url=server.url, model="", body={"speculation": {"mode": "force", "k": 3}}),
        wanted=Wanted("chat", requests=REQUESTS, output_tokens=TOKENS, numbered=False),
        loads=[Load(kind="closed", concurrency=1)],
        seed=1,
        pid=server.process.pid,
    )
    report, (records,) = await sweep(job, lambda name, count: nullcontext(lambda record: None))
    (point,) = report.points
    logged = server.named("request")[-REQUESTS:]
    assert [record.tokens for record in records] == [TOKENS] * REQUESTS
    for field, named in (
        ("tokens", "completion_tokens"), ("prompt_tokens", "prompt_tokens"),
        ("cached_tokens", "cached_tokens"), ("steps", "steps"), ("drafted", "drafted"),
        ("accepted", "accepted"), ("finish", "finish"),
    ):  # fmt: skip
        assert [getattr(record, field) for record in records] == [line[named] for line in logged]
    for record, line in zip(records, logged, strict=True):
        assert 1000 * record.ttft >= line["first_token_ms"] - 0.1, "the client hears of it later"
    counters, summary = point.counters, point.summary
    assert counters.output_tokens == summary.output_tokens == REQUESTS * TOKENS
    assert counters.prompt_tokens == summary.prompt_tokens
    assert (counters.drafted, counters.accepted) == (summary.drafted, summary.accepted)
    assert counters.drafted > 0
    assert not [it for it in point.warnings if "counted" in it]
    assert point.server.peak_bytes > 0
