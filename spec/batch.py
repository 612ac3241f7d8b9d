"""From host state to one packed forward: tokens, positions, cache rows and the attention plan.

Used by the model pair once a step for the target, and by drafters that are models for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.attention import Span, plan_attention
from ..models.attention import Heads
from ..models.batch import Batch


@dataclass(frozen=True, slots=True)
class Feed:
    """Consecutive tokens of one sequence to compute: `tokens` from position `start` on, with the
    sequence's block table."""

    tokens: NDArray[np.int64]
    start: int
    blocks: Sequence[int]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self), dtype=np.int64)

    def cache_rows(self, block_size: int) -> NDArray[np.int64]:
        """Where each token's key and value go: block * block_size + offset."""
        first, end = self.start // block_size, -(-(self.start + len(self)) // block_size)
        table = np.asarray(self.blocks[first:end], dtype=np.int64)
        assert len(table) == end - first, f"no block for position {self.start + len(self) - 1}"
        positions = self.positions
        return table[positions // block_size - first] * block_size + positions % block_size


class Model(Protocol):
    """What packs of rows are made for: a decoder, or a head draft."""

    @property
    def config(self) -> Heads: ...

    device: torch.device
    dtype: torch.dtype


def assemble(feeds: Sequence[Feed], model: Model, block_size: int) -> Batch:
    """The feeds' tokens as consecutive rows of one batch on the model's device."""
    config = model.config
    rows = np.stack(
        [
            np.concatenate([feed.tokens for feed in feeds]),
            np.concatenate([feed.positions for feed in feeds]),
            np.concatenate([feed.cache_rows(block_size) for feed in feeds]),
        ]
    )
    tokens, positions, where = torch.from_numpy(rows).to(model.device)
    spans = [Span(feed.start, len(feed), feed.blocks) for feed in feeds]
    attention = {
        window: plan_attention(
            spans,
            heads_per_kv=config.heads // config.kv_heads,
            block_size=block_size,
            device=model.device,
            dtype=model.dtype,
            window=window,
        )
        for window in dict.fromkeys(config.windows)
    }
    return Batch(tokens=tokens, positions=positions, where=where, attention=attention)


def wipe(caches: Sequence[Tensor], feed: Feed, block_size: int) -> None:
    """Zero what the feed's tokens left in the caches, and nothing else of their blocks."""
    for cache in caches:
        rows = torch.from_numpy(feed.cache_rows(block_size)).to(cache.device)
        by_token = cache.view(cache.shape[0], -1, cache.shape[2] // block_size)
        by_token.index_fill_(1, rows, 0)
