"""The streamer actor: owns the text of every open sequence and is the only one to put into
outboxes. It turns kept tokens into deltas, finds stop strings, and writes each end.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..spec.plan import RowVerdict
from .actor import Actor, Address, Post
from .detokenizer import Decode
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
from .stops import Stops
from .text import Release, TextState


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
    patient = True

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
                        self._take(channel, row)
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
        params = admit.params
        stops = Stops(params.stop, params.min_tokens, params.include_stop)
        text = TextState(self._decode, stops, admit.granularity)
        self._channels[admit.seq] = _Channel(admit.request, admit.index, text)
        if admit.index == 0:
            assert params.seed is not None, "admission draws the seed"
            accepted = Accepted(len(admit.prompt), params.seed, admit.prompt)
            self._outboxes.put(admit.request, accepted)

    def _take(self, channel: _Channel, row: RowVerdict) -> None:
        if row.prompt_logprobs:
            delta = Delta(channel.index, "", prompt_logprobs=row.prompt_logprobs)
            self._outboxes.put(channel.request, delta)
        sources = [row.source(i) for i in range(len(row.tokens))]
        self._show(channel, channel.text.feed(row.tokens, row.logprobs, sources), row.seq)

    def _show(self, channel: _Channel, release: Release, seq: int) -> None:
        for piece in release.pieces:
            delta = Delta(channel.index, piece.text, piece.tokens, piece.logprobs, piece.sources)
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
