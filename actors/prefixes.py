"""What sequences find in the prefix cache, and what they leave there.

And what they give up: blocks that no row of theirs reads any more. Part of the planner: pure, and
as ignorant of token values as of tensors; the keys of blocks are all that stands for them.
"""

from __future__ import annotations

from collections.abc import Container

from ..kv.ledger import Ledger
from ..kv.prefix import Chain
from ..kv.window import HOLE, Window
from .sequence import Sequence


class Prefixes:
    """Looks up, starts and publishes for the planner's sequences. Without `caching` nothing is
    ever found.

    What a draft holds of the same blocks is its own affair (`spec.held`).
    window: what rows read of the tokens before them; None: everything.
    queries, hits: prompt tokens that were looked up, and found.
    """

    def __init__(self, ledger: Ledger, caching: bool, window: Window | None = None) -> None:
        self._ledger = ledger
        self._caching = caching
        self._window = window
        self.queries = 0
        self.hits = 0

    def find(self, sequence: Sequence) -> list[int]:
        """Blocks that the sequence may start with, holes for those that it has no use for. At least
        one of its tokens is left to compute, and all of them where each row of the prompt is asked
        for."""
        if not self._reads(sequence):
            return []
        keys = self._keys(sequence)[: self._most(sequence)]
        return self._ledger.find(keys, window=self._window)

    def arriving(self, sequence: Sequence, found: int, pending: Container[bytes]) -> bool:
        """Whether the block behind those `found` is among the `pending` ones of what runs: then
        the sequence awaits it.

        It ends: what runs publishes its known tokens within a few steps, or runs no more.
        """
        if not self._reads(sequence) or found >= self._most(sequence):
            return False
        key = self._keys(sequence)[found]
        sequence.awaits = key if key in pending else None
        return sequence.awaits is not None

    def start(self, sequence: Sequence, found: list[int]) -> None:
        """The sequence, whose lease has just been opened, starts with the blocks found."""
        if self._caching:
            self._keys(sequence)
        self._ledger.share(sequence.seq, found)
        cached = len(found) * self._ledger.block_size
        if sequence.cached is None and self._reads(sequence):
            self.queries += sequence.prompt_tokens
            self.hits += cached
        sequence.start(cached, len(found))

    def publish(self, sequence: Sequence) -> None:
        """A row of the sequence has landed: let others find what it has filled, and give up what it
        has left behind its window."""
        if self._caching:
            full = sequence.computed // self._ledger.block_size
            fresh = self._keys(sequence)[sequence.published : full]
            self._ledger.publish(sequence.seq, fresh, sequence.published)
            sequence.published += len(fresh)
        if self._window:
            self._ledger.drop(sequence.seq, self._window.first_block(sequence.computed))

    def missing(self, tokens: int, table: list[int]) -> int:
        """Blocks that a sequence with this block table lacks until `tokens` tokens are computed."""
        wanted = self._ledger.blocks_for(tokens)
        if self._window is None:
            return max(0, wanted - len(table))
        return max(0, self._window.missing(wanted, len(table), table.count(HOLE)))

    def _reads(self, sequence: Sequence) -> bool:
        return self._caching and sequence.params.prompt_logprobs is None

    def _most(self, sequence: Sequence) -> int:
        return (len(sequence.tokens) - 1) // self._ledger.block_size

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of the sequence's full blocks, brought up to its tokens."""
        if sequence.chain is None:
            sequence.chain = Chain(sequence.params.cache_salt, self._ledger.block_size)
        sequence.chain.cover(sequence.tokens)
        return sequence.chain.keys
