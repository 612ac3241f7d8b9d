"""The launch thread: one at a time, in order, and an end that is one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from paceline.actors.launch import LaunchThread


def test_everything_is_done_in_one_thread_in_the_order_of_handing():
    seen: list[object] = []
    with LaunchThread("launch", lambda: seen.append("prepared")) as thread:
        for i in range(50):
            thread.hand(lambda i=i: seen.append((i, threading.current_thread().name)))
        ident = thread.submit(threading.get_ident).result()
        assert ident == thread.submit(threading.get_ident).result() != threading.get_ident()
    assert seen == ["prepared", *((i, "launch") for i in range(50))]


async def test_results_and_exceptions_come_back():
    with LaunchThread("launch") as thread:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(thread, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(thread, divmod, 7, 0)
        assert thread.submit(int, "11", base=2).result() == 3


def test_what_cannot_be_prepared_fails_whoever_asks():
    def fail() -> None:
        raise MemoryError("no room")

    with LaunchThread("launch", fail) as thread, pytest.raises(MemoryError, match="no room"):
        thread.submit(int).result()


def test_the_end_waits_for_what_was_handed_in_and_takes_no_more():
    done: list[int] = []
    begun, let = threading.Event(), threading.Event()
    thread = LaunchThread("launch")
    thread.hand(begun.set)
    thread.hand(lambda: done.append(let.wait(10)))
    begun.wait(10)
    thread.shutdown(wait=False)
    thread.shutdown(wait=False)
    let.set()
    thread.shutdown()
    assert done == [True]
    with pytest.raises(RuntimeError, match="has ended"):
        thread.submit(int)


def test_what_has_not_begun_can_be_cancelled():
    let = threading.Event()
    thread = LaunchThread("launch")
    first, second = thread.submit(let.wait, 10), thread.submit(int)
    while not first.running():
        pass
    thread.shutdown(wait=False, cancel_futures=True)
    let.set()
    assert first.result() is True
    with pytest.raises(CancelledError):
        second.result()
    thread.shutdown()
