"""When requests are really sent, and what is counted as their latency, in virtual time: exact."""

from __future__ import annotations

import asyncio

import pytest

from paceline.bench.records import Record
from paceline.bench.traffic import closed_loop, open_loop
from paceline.bench.workloads import Ask
from support.virtual_time import run_virtually

ASK = Ask(1, prompt="x")


class Worker:
    """A server that serves one request at a time: the i-th takes `seconds[i]`."""

    def __init__(self, seconds, at_once=1) -> None:
        self.seconds = seconds
        self.most = self.under_way = 0
        self.sent: list[float] = []
        self._free = asyncio.Semaphore(at_once)

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, number, ask, due) -> Record:
        sent = self.clock()
        self.sent.append(sent)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        async with self._free:
            await asyncio.sleep(self.seconds[number])
        self.under_way -= 1
        now = self.clock()
        return Record(
            number=number, due=due, sent=sent, ended=now, times=[now], sizes=[1], tokens=1
        )


def run(worker, loop) -> list[Record]:
    told: list[Record] = []
    records = run_virtually(loop(worker, told.append))
    assert told == records
    return sorted(records, key=lambda record: record.number)


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_an_open_loop_omits_no_delay_that_a_stall_causes(limit):
    """One request a second, each served in one second, but the first takes ten. All that come
    after it wait their nine seconds, whether in the server or (limit) in the client."""
    worker = Worker([10.0, *[1.0] * 19])
    dues = [float(second) for second in range(20)]

    def loop(worker, told):
        return open_loop([ASK] * 20, dues, worker.send, worker.clock, told, limit)

    records = run(worker, loop)
    assert [record.e2e for record in records] == pytest.approx([10.0] * 20)
    assert [record.ttft for record in records] == pytest.approx([10.0] * 20)
    assert [record.due for record in records] == dues
    assert worker.most == (limit or 10)


def test_a_closed_loop_is_blind_to_it():
    """The same server, asked by one client that waits for its answers: the stall is seen once."""
    worker = Worker([10.0, *[1.0] * 19])
    records = run(
        worker, lambda worker, told: closed_loop([ASK] * 20, 1, worker.send, worker.clock, told)
    )
    assert [record.e2e for record in records] == pytest.approx([10.0, *[1.0] * 19])


def test_an_open_loop_sends_on_time_whatever_is_under_way():
    worker = Worker([100.0] * 4, at_once=9)
    dues = [0.0, 0.25, 0.25, 3.0]
    run(worker, lambda w, told: open_loop([ASK] * 4, dues, w.send, w.clock, told))
    assert worker.sent == pytest.approx(dues)


@pytest.mark.parametrize(("width", "most"), [(1, 1), (3, 3), (8, 5)])
def test_a_closed_loop_keeps_so_many_under_way(width, most):
    worker = Worker([1.0, 2.0, 3.0, 1.0, 1.0], at_once=9)
    records = run(worker, lambda w, told: closed_loop([ASK] * 5, width, w.send, w.clock, told))
    assert worker.most == most
    assert len(records) == 5
    assert [record.due for record in records] == [record.sent for record in records]


def test_a_closed_loop_sends_the_next_when_one_ends():
    worker = Worker([1.0, 2.0, 3.0, 1.0], at_once=9)
    run(worker, lambda w, told: closed_loop([ASK] * 4, 2, w.send, w.clock, told))
    assert worker.sent == pytest.approx([0.0, 0.0, 1.0, 2.0])


def test_a_fault_of_the_benchmark_itself_is_not_swallowed():
    async def send(number, ask, due):
        raise ZeroDivisionError

    async def main():
        await open_loop([ASK] * 3, [0.0, 1.0, 2.0], send, asyncio.get_running_loop().time, print)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtually(main())
    assert caught.group_contains(ZeroDivisionError)
