"""The prefix cache's books: which full block holds which tokens, and which to give up first.

A block is found by a key that stands for all tokens up to its end, not for its own alone: what KV
holds depends on everything before it. Owned by the block pool.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

KEY_BYTES = 16


class Tokens(Protocol):
    """A list of token ids, or an array of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: slice, /) -> Iterable[int]: ...


class Chain:
    """Keys of a sequence's full blocks, each made of the key before it and the block's tokens.

    The root tells apart what must not be mixed: tokens of other salts.
    """

    __slots__ = ("_block_size", "_root", "keys")

    def __init__(self, salt: str, block_size: int) -> None:
        root = salt.encode("utf-8", "surrogatepass")
        self._root = blake2b(root, digest_size=KEY_BYTES).digest()
        self._block_size = block_size
        self.keys: list[bytes] = []

    def cover(self, tokens: Tokens) -> None:
        """Add the keys of blocks that the sequence has filled since. `tokens`: all it has."""
        size = self._block_size
        for first in range(len(self.keys) * size, len(tokens) - size + 1, size):
            parent = self.keys[-1] if self.keys else self._root
            content = array("q", tokens[first : first + size]).tobytes()
            self.keys.append(blake2b(parent + content, digest_size=KEY_BYTES).digest())


class Idle:
    """Blocks that nobody refers to, in the order in which they are to be evicted.

    Those that nobody has found yet go first, longest idle first; so a stream of prompts that never
    come again does not push out what many share (segmented LRU: Karedla et al. 1994). Only where
    the others are more than four in five, the one of them that has been idle longest goes. All
    operations are O(1).
    """

    __slots__ = ("_new", "_proven")

    def __init__(self) -> None:
        self._new: OrderedDict[int, None] = OrderedDict()
        self._proven: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._new) + len(self._proven)

    def __contains__(self, block: int) -> bool:
        return block in self._new or block in self._proven

    def __iter__(self) -> Iterator[int]:
        yield from self._new
        yield from self._proven

    def add(self, block: int, proven: bool) -> None:
        (self._proven if proven else self._new)[block] = None

    def add_first(self, block: int) -> None:
        """It is to be evicted before all that are idle."""
        self._new[block] = None
        self._new.move_to_end(block, last=False)

    def discard(self, block: int) -> None:
        """Somebody refers to it. Harmless if it is not idle."""
        self._new.pop(block, None)
        self._proven.pop(block, None)

    def pop(self) -> int:
        """Take the block that is next. There must be one."""
        crowded = len(self._proven) > 4 * len(self._new)
        block, _ = (self._proven if crowded or not self._new else self._new).popitem(last=False)
        return block


class PrefixIndex:
    """Which block a key stands for, and the blocks among them that nobody refers to.

    A key stands for one block and a block has one key. `idle` has exactly those with a key and
    without a reference. found: those that a second sequence has started with.
    """

    __slots__ = ("blocks", "found", "idle", "keys")

    def __init__(self) -> None:
        self.blocks: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self.found: set[int] = set()
        self.idle = Idle()

    def bind(self, block: int, key: bytes) -> None:
        """Let the key stand for the block, unless either of them is bound already."""
        if key not in self.blocks and block not in self.keys:
            self.blocks[key] = block
            self.keys[block] = key

    def use(self, block: int) -> None:
        """A sequence starts with the block, which has a key."""
        self.idle.discard(block)
        self.found.add(block)

    def rest(self, blocks: Sequence[int], warm: int) -> None:
        """Nobody refers to these blocks any more, a chain in its order; they have keys. Chains are
        evicted from their end; what lies behind the first `warm`, before all that is idle."""
        for block in reversed(blocks[:warm]):
            self.idle.add(block, block in self.found)
        for block in blocks[warm:]:
            self.idle.add_first(block)

    def evict(self) -> int:
        """Forget the block that is next to be evicted and return it. There must be one."""
        block = self.idle.pop()
        self.found.discard(block)
        del self.blocks[self.keys.pop(block)]
        return block
