"""What became of one request of a benchmark, as its sender saw it.

Made by whoever sends (`asker`, or an engine driven in process), read by `summary` and `load_plots`.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are seconds since the run began. Every latency counts from `due`, when the request was
    to be sent: how long it had to wait in the client is part of what its user waits.

    times, sizes: when each piece of text came, and its characters; a piece may be several tokens.
    tokens: of the answer, as the server counts them; None where it does not say.
    error: the kind of failure ("connect", "http 429", "stream", "cut", "timeout", "garbled"), and
    `message` what was said; None for an answer that came to its end.
    """

    number: int
    due: float
    sent: float
    ended: float
    times: list[float] = []
    sizes: list[int] = []
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    finish: str | None = None
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    error: str | None = None
    message: str = ""

    @property
    def counted(self) -> int:
        """Tokens of the answer, or its pieces where the server does not count."""
        return len(self.times) if self.tokens is None else self.tokens

    @property
    def ttft(self) -> float | None:
        """Seconds to the first text; None if none came."""
        return self.times[0] - self.due if self.times else None

    @property
    def tpot(self) -> float | None:
        """Seconds per token behind the first; None for an answer in one piece.

        As the field computes it: the first piece counts as one token, so where a draft brought more
        at once, the others count as if they had come later.
        """
        if len(self.times) < 2 or self.counted < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.counted - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    @property
    def e2e(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended - self.due
