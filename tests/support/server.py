"""A server in a process of its own: `python -m paceline serve`, its address, its log, its end.

Used by the end-to-end tests. Every wait is bounded. A server that was used as a context manager
must have ended by SIGTERM with exit code 0, and its log must be JSON without an error in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

START_SECONDS = 180.0
END_SECONDS = 60.0
LINE_SECONDS = 20.0
POLL_SECONDS = 0.05

Line = dict[str, Any]
T = TypeVar("T")


class Server:
    """Starts on entering, returns when ready, ends on leaving.

    flags: of `paceline serve`, but for the port and the log. forgive: whether to accept errors in
    the log. `lines` are the log so far; what is not JSON is an error with the text as `event`.
    """

    def __init__(self, *flags: str, forgive: bool = False) -> None:
        command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--log-format", "json"]
        self._command = [*command, *flags]
        self._forgive = forgive
        self.lines: list[Line] = []
        self.url = ""
        self._silent = False

    # --- from start to end -------------------------------------------------------------------

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            self._command,
            env={k: v for k, v in os.environ.items() if not k.upper().startswith("PACELINE_")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.url = self._await_line("serving", START_SECONDS)["address"]
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            code = self.end()
        finally:
            self.kill()
        if kind is None:
            assert code == 0, f"exit code {code}; {self.lines[-5:]}"
            assert self._forgive or not self.errors(), self.errors()

    def ask_to_end(self) -> None:
        """Send SIGTERM, if the process still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Ask the process to end, wait, and return its exit code. Its log is complete then."""
        self.ask_to_end()
        code = self.process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        return code

    def kill(self) -> None:
        """No process is left behind, whatever happened."""
        self.process.kill()
        self.process.wait()
        self._reader.join(END_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _await_ready(self) -> None:
        for _ in range(int(LINE_SECONDS / POLL_SECONDS)):
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready", timeout=LINE_SECONDS):
                    return
            except urllib.error.HTTPError:
                threading.Event().wait(POLL_SECONDS)
        raise AssertionError("the server said that it serves, but it is not ready")

    # --- the log -----------------------------------------------------------------------------

    def named(self, event: str, **fields: object) -> list[Line]:
        """The log's lines of this event with these fields."""
        wanted = {"event": event, **fields}
        return [line for line in self.lines[:] if wanted.items() <= line.items()]

    def errors(self) -> list[Line]:
        """The log's lines that say that something went wrong."""
        return [line for line in self.lines[:] if line.get("level") in ("error", "critical")]

    async def logged(self, event: str, **fields: object) -> Line:
        """The first such line, waiting for it if need be."""
        for _ in range(int(LINE_SECONDS / POLL_SECONDS)):
            if found := self.named(event, **fields):
                return found[0]
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"no line {event} {fields} in the log; last: {self.lines[-5:]}")

    def _read(self) -> None:
        """The reading thread: takes lines until the process closes its end."""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            try:
                line = json.loads(raw)
            except ValueError:
                line = {"event": raw.decode(errors="replace").rstrip(), "level": "error"}
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def _await_line(self, event: str, seconds: float) -> Line:
        with self._news:
            self._news.wait_for(lambda: self._silent or self.named(event), seconds)
        found = self.named(event)
        assert found, f"waited in vain for the line {event!r}; the log: {self.lines[-10:]}"
        return found[0]


async def until(what: str, holds: Callable[[], Awaitable[T]], seconds: float = LINE_SECONDS) -> T:
    """Call `holds` again and again until it returns something true, and return that."""
    for _ in range(int(seconds / POLL_SECONDS)):
        if found := await holds():
            return found
        await asyncio.sleep(POLL_SECONDS)
    raise AssertionError(f"never came: {what}")
