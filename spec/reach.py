"""From where to where a draft's KV of one sequence reaches. Owned by the drafter, one a slot."""

from __future__ import annotations

from ..kv.prefix import Chain, Tokens


class Reach:
    """The tokens `origin` … `end - 1` have KV of the draft, in the blocks of those tokens.

    origin: where a block begins; the draft sees nothing before it, as if the text began there.
    marked: blocks before this one that it has filled are known to hold what they hold.
    """

    __slots__ = ("_block_size", "_chain", "end", "marked", "origin")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chain = Chain("", block_size)
        self.origin = self.end = self.marked = 0

    def keys(self, tokens: Tokens) -> list[bytes]:
        """The key of every full block of `tokens`, the sequence's first ones; of more, where more
        have been asked for."""
        self._chain.cover(tokens)
        return self._chain.keys

    def begin(self, position: int) -> None:
        """The text begins at this position, where a block does, and has no KV yet."""
        self.origin = self.end = position
        self.marked = position // self._block_size

    def lose(self, position: int) -> None:
        """Blocks before this position, where one begins, may be gone: the text begins there."""
        if self.end < position:
            self.begin(position)
            return
        self.origin = position
        # Counted from another origin, what is staged of an unfinished block would lie elsewhere.
        self.end = self.end // self._block_size * self._block_size
        self.marked = max(self.marked, position // self._block_size)
