"""Which blocks hold a draft's numbers of which tokens: owned by the drafter that writes them.

A block's key in the prefix cache says what the target's half holds. What a draft has made of the
same tokens, if it has, only the draft can know: it lags behind, gives up, or does not follow a
sequence at all. So it remembers for itself, by the same kind of key, what it has left in a block.
Nobody needs to tell it that a block has gone to somebody else: until it writes there again, its
numbers stand as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Held:
    """Keys (`kv.prefix.Chain`) of the tokens that blocks hold numbers of, all of a block's."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}

    def put(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Each of the blocks holds the tokens that its key stands for."""
        self._keys.update(zip(blocks, keys, strict=True))

    def forget(self, blocks: Iterable[int]) -> None:
        """Something else is about to be written to these blocks."""
        for block in blocks:
            self._keys.pop(block, None)

    def holds(self, block: int, key: bytes) -> bool:
        return self._keys.get(block) == key
