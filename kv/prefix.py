"""The prefix cache's books: which full block holds which tokens, and which to give up first.

A block is found by a key that stands for all tokens up to its end, not for its own alone: what KV
holds depends on everything before it. Owned by the block pool.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16


class Chain:
    """Keys of a sequence's full blocks, each made of the key before it and the block's tokens.

    The root tells apart what must not be mixed: tokens of other salts, and blocks that hold KV of
    the draft model beside the target's (`drafted`) from those that do not.
    """

    __slots__ = ("_block_size", "_root", "keys")

    def __init__(self, salt: str, drafted: bool, block_size: int) -> None:
        root = bytes([drafted]) + salt.encode("utf-8", "surrogatepass")
        self._root = blake2b(root, digest_size=KEY_BYTES).digest()
        self._block_size = block_size
        self.keys: list[bytes] = []

    def cover(self, tokens: Sequence[int]) -> None:
        """Add the keys of blocks that the sequence has filled since. `tokens`: all it has."""
        size = self._block_size
        for first in range(len(self.keys) * size, len(tokens) - size + 1, size):
            parent = self.keys[-1] if self.keys else self._root
            content = array("q", tokens[first : first + size]).tobytes()
            self.keys.append(blake2b(parent + content, digest_size=KEY_BYTES).digest())


class PrefixIndex:
    """Which block a key stands for, and the blocks that nobody refers to, longest idle first.

    A key stands for one block and a block has one key. `idle` has exactly those with a key and
    without a reference; every operation is O(1).
    """

    __slots__ = ("blocks", "idle", "keys")

    def __init__(self) -> None:
        self.blocks: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def bind(self, block: int, key: bytes) -> None:
        """Let the key stand for the block, unless either of them is bound already."""
        if key not in self.blocks and block not in self.keys:
            self.blocks[key] = block
            self.keys[block] = key

    def evict(self) -> int:
        """Forget the block that has been idle longest and return it. There must be one."""
        block, _ = self.idle.popitem(last=False)
        del self.blocks[self.keys.pop(block)]
        return block
