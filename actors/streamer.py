"""The streamer actor: owns the text of every open sequence and is the only one to put into
outboxes. It turns kept tokens into deltas, finds stop strings, and writes each end.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .actor import Actor, Address, Post
from .messages import (
    Accepted,
    Admit,
    Cancel,
    Delta,
    Ended,
    Message,
    Refuse,
    Refused,
    SeqClosed,
    Verdict,
)
from .outbox import Outboxes
from .text import Decode, Release, TextState


@dataclass(slots=True)
class _Channel:
    request: str
    index: int
    text: TextState
    stopped: bool = False


class Streamer(Actor):
    """Messages in: Admit, Refuse, Verdict, SeqClosed. Out: Cancel (a stop string was met).

    `decode` turns token ids into text, special tokens left out; used on the event loop only.
    """

    name: Address = "streamer"

    def __init__(self, post: Post, decode: Decode, outboxes: Outboxes) -> None:
        super().__init__(post)
        self._decode = decode
        self._outboxes = outboxes
        self._channels: dict[int, _Channel] = {}

    def receive(self, message: Message) -> None:
        match message:
            case Verdict():
                for row in message.rows:
                    channel = self._channels.get(row.seq)
                    if channel is not None and not channel.stopped:
                        self._show(channel, channel.text.feed(row.tokens, row.logprobs), row.seq)
            case Admit():
                self._open(message)
            case SeqClosed():
                self._end(message)
            case Refuse():
                refused = Refused(
                    message.message,
                    message.param,
                    message.status,
                    message.code,
                    message.retry_after,
                )
                self._outboxes.put(message.request, refused)
            case _:
                raise TypeError(f"the streamer has no use for {type(message).__name__}")

    def _open(self, admit: Admit) -> None:
        text = TextState(self._decode, admit.params.stop)
        self._channels[admit.seq] = _Channel(admit.request, admit.index, text)
        if admit.index == 0:
            assert admit.params.seed is not None, "admission draws the seed"
            self._outboxes.put(admit.request, Accepted(len(admit.prompt), admit.params.seed))

    def _show(self, channel: _Channel, release: Release, seq: int) -> None:
        if release.text or release.tokens:
            delta = Delta(channel.index, release.text, release.tokens, release.logprobs)
            self._outboxes.put(channel.request, delta)
        if release.stopped:
            channel.stopped = True
            self._post.send("scheduler", Cancel(seq, "stop"))

    def _end(self, closed: SeqClosed) -> None:
        channel = self._channels.pop(closed.seq)
        if not channel.stopped:
            self._show(channel, channel.text.finish(), closed.seq)
        usage = msgspec.structs.replace(
            closed.usage, completion_tokens=channel.text.tokens_released
        )
        reason = "stop" if channel.stopped else closed.reason
        self._outboxes.put(channel.request, Ended(channel.index, reason, usage, closed.error))
