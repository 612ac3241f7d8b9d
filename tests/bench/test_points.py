"""One load on a server: that what is reported is of that load and of nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from paceline.bench.asker import Asker, Target
from paceline.bench.points import Load, measure, server_pid, warm_up
from paceline.bench.summary import Limits
from paceline.bench.workloads import Ask
from support.mock_server import TOKENS, Mock

ASKS = [Ask(4, [{"role": "user", "content": f"{number}"}]) for number in range(6)]
COUNTING = "# TYPE paceline:generation_tokens_total counter\npaceline:generation_tokens_total {}\n"
CACHING = "paceline:prefix_cache_queries_total 4{}\npaceline:prefix_cache_hits_total 1{}\n"
CLOSED = Load(kind="closed", concurrency=2)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("paceline.bench.points.SETTLE", 0.0)


async def measured(mock: Mock, load: Load = CLOSED, before=None, **more):
    server = TestServer(mock.app)
    await server.start_server()
    async with server, Asker(Target(url=str(server.make_url("")), model="m")) as asker:
        if before:
            await warm_up(asker, before)
        return await measure(asker, ASKS, load, workload="mine", **more)


async def test_a_closed_loop():
    mock, told = Mock(metrics=COUNTING), []
    point, records = await measured(
        mock, before=ASKS[:2], told=told.append, pid=os.getpid(), limits=Limits(ttft=1e9)
    )
    assert point.summary.completed == 6
    assert point.summary.output_tokens == 6 * TOKENS
    assert point.counters.output_tokens == 6 * TOKENS, "the warm-up does not count"
    assert [record.number for record in records] == list(range(6))
    assert len(told) == 6
    assert [body["messages"] for body in mock.bodies[2:4]] == [ask.messages for ask in ASKS[:2]]
    assert point.summary.goodput.share == 1
    assert point.server.cores >= 0
    assert point.server.peak_bytes > 0
    assert point.client.cores > 0
    assert point.summary.lag.max < 1e9
    assert not [it for it in point.warnings if "the client itself" not in it]


async def test_an_open_loop_takes_its_times():
    dues = [0.0, 0.0, 0.01, 0.01, 0.02, 0.02]
    point, records = await measured(Mock(), Load(kind="rate", rate=300.0), dues=dues)
    assert [record.due for record in records] == dues
    assert all(record.sent >= record.due for record in records)
    assert point.counters is None
    assert point.server is None
    assert point.summary.steady_tokens_per_s is None


@pytest.mark.parametrize(
    ("mock", "load", "warning"),
    [
        (Mock(usage=None), CLOSED, "6 of 6 answers came without usage"),
        (Mock(failure=503), CLOSED, "6 × http 503: not today"),
        (Mock(metrics="paceline:generation_tokens_total 1{}\n"), CLOSED, "did others ask it too?"),
        (Mock(metrics=CACHING), CLOSED, "33% of the prompts' tokens were in the server's prefix"),
        (Mock(), Load(kind="closed", concurrency=7), "6 requests never fill 7 places"),
    ],
)
async def test_what_a_reader_has_to_know(mock, load, warning):
    point, _ = await measured(mock, load)
    assert [it for it in point.warnings if warning in it]


@pytest.fixture
def process():
    """One that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_server_that_does_not_survive_is_a_finding(process):
    def end(record):
        process.kill()
        process.wait()

    point, _ = await measured(Mock(), pid=process.pid, told=end)
    assert point.summary.completed == 6
    assert point.server is None
    assert [it for it in point.warnings if "the server did not survive this" in it]


async def test_a_process_that_is_not_there_from_the_start_is_refused(process):
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        await measured(Mock(), pid=process.pid)


@pytest.mark.parametrize("odd", ["<html><body>no</body></html>", "a{b= 1\n"])
async def test_metrics_that_cannot_be_read_are_said_so(odd):
    point, _ = await measured(Mock(metrics=odd))
    assert point.summary.completed == 6
    assert point.counters is None
    assert [it for it in point.warnings if "no figures from /metrics" in it]


async def test_a_warm_up_that_fails_says_why():
    with pytest.raises(aiohttp.ClientError, match=r"warm-up failed \(http 503\): not today"):
        await measured(Mock(failure=503), before=ASKS[:1])


async def test_the_process_that_serves_a_url():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert server_pid(f"http://localhost:{port}/v1") == os.getpid()
    assert server_pid(f"http://example.org:{port}") is None


@pytest.mark.parametrize(
    ("load", "label", "amount"),
    [
        (CLOSED, "2 at once", 2),
        (Load(kind="rate", rate=0.5, concurrency=3), "0.5/s", 0.5),
        (Load(kind="ramp", rate=1.0, to_rate=4.0), "1 to 4/s", 1),
        (Load(kind="trace", rate=1.23456), "1.23/s", 1.23456),
    ],
)
def test_a_load_has_a_name_and_an_amount(load, label, amount):
    assert load.label == label
    assert load.amount == amount
