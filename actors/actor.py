"""The actor: a mailbox, a handler that never awaits, and one act after each drain.

`Post` is the address book through which everything is sent. Every actor subclasses `Actor`;
the `pump` serves them.
"""

from __future__ import annotations

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


class Caller(Protocol):
    """Who serves an actor."""

    def call(self, actor: Actor) -> None:
        """The actor has mail: serve it soon."""
        ...

    def serve(self, actor: Actor) -> None:
        """The same, from a callback of the event loop, which has time for it now."""
        ...

    def hold(self) -> None:
        """Let the patient and reflection wait until `resume`: another thread is about to begin
        something that goes first, and cannot as long as this one runs Python."""
        ...

    def resume(self) -> None:
        """It has begun."""
        ...


class Nobody:
    """Serves no actor: mail stays where it is."""

    def call(self, actor: Actor) -> None: ...

    def serve(self, actor: Actor) -> None: ...

    def hold(self) -> None: ...

    def resume(self) -> None: ...


NOBODY = Nobody()


class Actor:
    """Base of the five. Subclasses override `receive` and, as they need, `settle`, `reflect` and
    `close`.

    `send` and `deliver` are for the event loop's thread; other threads go through
    `call_soon_threadsafe`. patient: served when nobody else has mail. called: it waits to be
    served; its caller's.
    """

    name: Address
    patient = False

    def __init__(self, post: Post) -> None:
        self._post = post
        self._mail: deque[Message] = deque()
        self.caller: Caller = NOBODY
        self.called = False

    def send(self, message: Message) -> None:
        self._mail.append(message)
        if not self.called:
            self.caller.call(self)

    def deliver(self, message: Message) -> None:
        """Send, from a callback of the event loop itself: nothing comes between that and what
        follows from it."""
        self._mail.append(message)
        self.caller.serve(self)

    def work(self) -> None:
        """Drain the mailbox, then settle. Whatever a handler raises is raised."""
        mail, receive = self._mail, self.receive
        while mail:
            receive(mail.popleft())
        self.settle()

    def receive(self, message: Message) -> None:
        """Handle one message: change own state, send messages. Never awaits."""
        raise NotImplementedError

    def settle(self) -> None:
        """Act once on everything received since the last call."""

    def reflect(self) -> None:
        """Count, check, tell: what nobody waits for. Called after `settle`, once everybody who has
        mail has been served."""

    def close(self) -> None:
        """Nothing comes any more: let go of what goes on outside."""
