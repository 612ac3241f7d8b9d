"""The actor: a mailbox, a handler that never awaits, and one act after each drain.

`Post` is the address book through which everything is sent. Every actor subclasses `Actor`; the
supervisor runs them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal, Protocol

from .messages import Message

Address = Literal["admission", "scheduler", "executor", "sampler", "streamer", "engine"]


class Addressee(Protocol):
    """Whatever can be sent to. `send` never blocks and never raises."""

    def send(self, message: Message) -> None: ...


class Post:
    """Names to addressees. A rebuilt actor takes its predecessor's name, so nobody holds a stale
    reference."""

    def __init__(self) -> None:
        self._book: dict[Address, Addressee] = {}

    def register(self, name: Address, addressee: Addressee) -> None:
        self._book[name] = addressee

    def send(self, to: Address, message: Message) -> None:
        self._book[to].send(message)


class Actor:
    """Base of the five. Subclasses override `receive` and, if they act on state, `settle`.

    `send` is for the event loop's thread; other threads go through `call_soon_threadsafe`.
    """

    name: Address

    def __init__(self, post: Post) -> None:
        self._post = post
        self._mail: deque[Message] = deque()
        self._wake = asyncio.Event()

    def send(self, message: Message) -> None:
        self._mail.append(message)
        self._wake.set()

    def receive(self, message: Message) -> None:
        """Handle one message: change own state, send messages. Never awaits."""
        raise NotImplementedError

    def settle(self) -> None:
        """Act once on everything received since the last call."""

    async def run(self) -> None:
        """Drain the mailbox, settle, wait for more; for ever. A handler's exception ends it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._mail:
                self.receive(self._mail.popleft())
            self.settle()
