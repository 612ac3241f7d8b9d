"""From host state to one packed forward: tokens, positions, cache rows and the attention plan.

Used by the model pair once a step for the target, and by drafters that are models for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.attention import Span, plan_attention
from ..kv.tensors import KvStore
from ..models.attention import Heads
from ..models.batch import Batch, Plans


@dataclass(frozen=True, slots=True)
class Feed:
    """Consecutive tokens of one sequence to compute: `tokens` from position `start` on, with the
    sequence's block table and the slot it is in; -1 for none, where nothing is staged.

    origin: where a block begins, before which the tokens see nothing. Positions and places in the
    cache are counted from the sequence's beginning all the same.
    """

    tokens: NDArray[np.int64]
    start: int
    blocks: Sequence[int]
    slot: int = -1
    origin: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self), dtype=np.int64)

    def span(self, block_size: int) -> Span:
        """What attention is to see: a text that begins at the origin."""
        blocks = self.blocks[self.origin // block_size :] if self.origin else self.blocks
        return Span(self.start - self.origin, len(self), blocks)

    def own_blocks(self, block_size: int) -> Sequence[int]:
        """The blocks that its tokens lie in."""
        first, end = self.start // block_size, -(-(self.start + len(self)) // block_size)
        own = self.blocks[first:end]
        assert len(own) == end - first, f"no block for position {self.start + len(self) - 1}"
        return own

    def cache_rows(self, block_size: int) -> NDArray[np.int64]:
        """Where each token's key and value go: block * block_size + offset."""
        table = np.asarray(self.own_blocks(block_size), dtype=np.int64)
        positions = self.positions
        index = positions // block_size - self.start // block_size
        return table[index] * block_size + positions % block_size


class Model(Protocol):
    """What packs of rows are made for: a decoder, or a head draft."""

    @property
    def config(self) -> Heads: ...

    device: torch.device
    dtype: torch.dtype


def assemble(feeds: Sequence[Feed], model: Model, kv: KvStore) -> Batch:
    """The feeds' tokens as consecutive rows of one batch on the model's device, for its KV."""
    config, block_size = model.config, kv.block_size
    rows = np.stack(
        [
            np.concatenate([feed.tokens for feed in feeds]),
            np.concatenate([feed.positions for feed in feeds]),
            np.concatenate([feed.cache_rows(block_size) for feed in feeds]),
        ]
    )
    tokens, positions, where = torch.from_numpy(rows).to(model.device)
    spans = [feed.span(block_size) for feed in feeds]
    attention = Plans(
        partial(
            plan_attention,
            spans,
            config.heads // config.kv_heads,
            block_size,
            model.device,
            model.dtype,
        )
    )
    staged = kv.stage(spans, [feed.slot for feed in feeds])
    return Batch(tokens, positions, where, attention, staged, spans)


def wipe(kv: KvStore, feed: Feed) -> None:
    """Zero what the feed's tokens left in the KV, and nothing else of their blocks."""
    kv.wipe(feed.cache_rows(kv.block_size), feed.own_blocks(kv.block_size))
