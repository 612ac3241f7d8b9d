"""Servers that a comparison starts: what a description says, the process, its readiness, its end.

A description is a TOML file; those of `bench/peers` go by their names. Placeholders such as {gguf}
stand for values: `port`, `concurrency` and `python` are always there, `threads` by default; others
have a default in the file, or are given on the command line. Used by `compare`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import aiohttp
import msgspec

from ..actors.flags import UsageError, nearest

PEERS = Path(__file__).with_name("peers")
END_SECONDS = 30.0
POLL_SECONDS = 0.1

_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_LAST_LINES = 8


class StartError(Exception):
    """A server that did not get ready: which, and its last words."""


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to start a server and what to send it; or (script) a command that drives a library in
    its own process, takes `--workload`, `--concurrency`, `--requests`, `--seed` and `--json`, and
    prints a `Report`.

    ready: the path that answers 200 when requests are taken. patience: seconds until then.
    """

    name: str
    command: list[str] = []
    script: list[str] = []
    ready: str = "/v1/models"
    model: str = ""
    ignore_eos: bool = True
    patience: float = 180.0
    environment: dict[str, str] = {}
    body: dict[str, Any] = {}
    values: dict[str, str] = {}

    def filled(self, given: Mapping[str, str]) -> Description:
        """The same with values in its places. Raises UsageError for one that nobody gave."""
        values = {"python": sys.executable, "threads": str(os.cpu_count() or 1), **self.values}
        values |= given

        def fill(text: str) -> str:
            return _PLACE.sub(value, text)

        def value(place: re.Match[str]) -> str:
            if (name := place[1]) not in values:
                raise UsageError(f"{self.name} needs a value: --set {name}=…")
            return values[name]

        return msgspec.structs.replace(
            self,
            command=list(map(fill, self.command)),
            script=list(map(fill, self.script)),
            model=fill(self.model),
            environment={name: fill(text) for name, text in self.environment.items()},
        )


def read(name: str) -> Description:
    """A description by its path, or by its name in `bench/peers`. Raises UsageError."""
    path = Path(name) if name.endswith(".toml") else PEERS / f"{name}.toml"
    try:
        described = msgspec.toml.decode(path.read_bytes(), type=Description)
    except OSError as error:
        known = [it.stem for it in sorted(PEERS.glob("*.toml"))]
        hint = nearest(name, known) or f"; there are {', '.join(known)}"
        raise UsageError(f"cannot read {path}: {error.strerror}{hint}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if bool(described.command) == bool(described.script):
        raise UsageError(f"{path}: give either command or script")
    return described


class Server:
    """A process group that serves, from `start` to `stop`. Its output goes to `log`."""

    def __init__(self, described: Description, port: int, log: Path) -> None:
        self.described = described
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start it and wait until it is ready; returns the seconds that took. Raises StartError,
        with nothing left running."""
        begun = time.monotonic()
        with self.log.open("wb") as output:
            self._process = await spawn(
                self.described, self.described.command, output, asyncio.subprocess.STDOUT
            )
        try:
            await self._wait(begun + self.described.patience)
        except BaseException:
            await self.stop()
            raise
        return time.monotonic() - begun

    async def stop(self) -> None:
        """End the whole group: politely, and by force after a while."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_SECONDS)
        self._signal(signal.SIGKILL)  # also who outlived the first of the group
        await self._process.wait()
        self._process = None

    async def _wait(self, last: float) -> None:
        assert self._process is not None
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not await self._answers(session):
                if (code := self._process.returncode) is not None:
                    raise StartError(self._last_words(f"ended with exit code {code}"))
                if time.monotonic() > last:
                    raise StartError(self._last_words("was not ready in time"))
                await asyncio.sleep(POLL_SECONDS)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(self.url + self.described.ready) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _last_words(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"{self.described.name} {what}; the end of {self.log}:", *lines])

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # all of the group have ended
            os.killpg(self.pid, number)


async def spawn(
    described: Description, words: Sequence[str], output: IO[bytes] | int, errors: int
) -> asyncio.subprocess.Process:
    """Start a command of the description, in its environment and in a group of its own. An empty
    variable is left out. Raises StartError."""
    set_ = {name: value for name, value in described.environment.items() if value}
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            env={**os.environ, **set_},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise StartError(f"{described.name}: cannot start: {error}") from None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
