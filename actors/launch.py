"""The launch thread: does what it is handed, in the order of handing, for as long as it lives.

Everything of torch happens in one such thread. It is a `concurrent.futures.Executor`, so whoever
needs a result submits and waits; the executor actor, which gets its results as messages, hands in
jobs without a future: that is a third of the way there and back.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Job = Callable[[], None]


class LaunchThread(Executor):
    """One thread. `prepare` is done first, in it; if that raises, so does everything submitted."""

    def __init__(self, name: str, prepare: Callable[[], object] = lambda: None) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._cancelling = False
        self._broken: BaseException | None = None
        self._thread = Thread(target=self._run, args=(prepare,), name=name, daemon=True)
        self._thread.start()
        # A daemon, so that an interpreter may end that has not closed it; but no step is cut short.
        atexit.register(self.shutdown)

    def hand(self, job: Job) -> None:
        """Do this; `job` must not raise."""
        self._jobs.put(job)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this, for a result. Raises RuntimeError once the thread is shut down."""
        if self._closed:
            raise RuntimeError("the launch thread has ended")
        future: Future[T] = Future()
        self.hand(partial(self._fulfil, future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End behind what has been handed in. cancel_futures: whatever was submitted and has not
        begun is cancelled."""
        self._cancelling = self._cancelling or cancel_futures
        if not self._closed:
            self._closed = True
            atexit.unregister(self.shutdown)
            self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run(self, prepare: Callable[[], object]) -> None:
        try:
            prepare()
        except BaseException as error:
            self._broken = error
        while (job := self._jobs.get()) is not None:
            job()

    def _fulfil(self, future: Future[T], job: Callable[[], T]) -> None:
        if self._cancelling:
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._broken is not None:
                raise self._broken
            result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
