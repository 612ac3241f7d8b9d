"""Keys that stay in full precision until their block is full: where a step finds and leaves them.

`plan_staging` is called once a step, by the owner of the stage; `attention_int8` reads the plan.

The scales of a block's keys are known once the block is full. Until then its keys stand in a
**stage**: a ring of cells for each sequence, the key of position p in the cell p modulo the ring's
length. A step's sources are its own rows' keys and, behind them, the staged ones of the blocks that
its rows begin in. From the sources come all keys that are read in full precision, those of the
blocks that the step fills, and those that it leaves in the stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attention import AttentionPlan, QueryGroup
from .query_tiles import TILE, Span

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Near:
    """What a group's queries read in full precision, W keys for each of its S query tiles.

    keys: [S * W] sources. columns: [1, S, 1, W], where those keys stand among the keys that the
    tile reads. own: [S, M, W], whether a key is of its query's own block.
    """

    keys: Tensor
    columns: Tensor
    own: Tensor


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a span's keys, from position `first` on, where its first block begins."""

    first: int
    keys: Ids


@dataclass(slots=True)
class Staged:
    """A step's way with staged keys. Cells are counted over the whole stage.

    prior: [P] cells whose keys are sources, behind the step's T rows. filled: [C] block ids, and
    filled_keys [C * block_size] the sources of their keys. kept: [N] sources to leave in the
    stage, in `cells` [N].
    """

    block_size: int
    prior: Tensor
    filled: Tensor
    filled_keys: Tensor
    kept: Tensor
    cells: Tensor
    rows: list[int]
    sources: list[_Sources]
    _near: list[tuple[AttentionPlan, list[Near]]] = field(default_factory=list)

    def near(self, plan: AttentionPlan) -> list[Near]:
        """What each group of the plan reads in full precision; made by the first layer to ask."""
        for known, near in self._near:
            if known is plan:
                return near
        near = [self._of(group) for group in plan.groups]
        self._near.append((plan, near))
        return near

    def _of(self, group: QueryGroup) -> Near:
        tiles = group.members
        begins = np.array([tile.first for tile in tiles])
        firsts = np.array([tile.start // TILE for tile in tiles]) - begins
        lasts = np.array([(tile.start + tile.count - 1) // TILE for tile in tiles]) - begins
        width = int((lasts - firsts).max()) + 1
        # No further than the tiles that are read; what is not of a query's block is not used.
        firsts = np.minimum(firsts, group.tiles - width)
        columns = firsts[:, None] * TILE + np.arange(width * TILE)
        positions = columns + begins[:, None] * TILE
        keys = np.empty_like(positions)
        for i, tile in enumerate(tiles):
            source = self.sources[bisect_right(self.rows, tile.row) - 1]
            at = positions[i] - source.first
            inside = (at >= 0) & (at < len(source.keys))
            # What is read in vain is still the sequence's own.
            keys[i] = np.where(inside, source.keys[at * inside], tile.row)
        blocks = (group.seen - 1 + begins[:, None] * TILE) // self.block_size
        own = positions[:, None] // self.block_size == blocks[:, :, None]
        device = self.cells.device
        return Near(
            torch.from_numpy(keys.reshape(-1)).to(device),
            torch.from_numpy(columns).to(device)[None, :, None],
            torch.from_numpy(own).to(device),
        )


def plan_staging(
    spans: Sequence[Span],
    reads: Sequence[int],
    writes: Sequence[int],
    *,
    ring: int,
    block_size: int,
    device: torch.device | str,
) -> Staged:
    """Plan a step over spans whose rows are packed in this order.

    reads, writes: for each span, the first cells of the rings that hold its sequence's keys so far
    and that shall hold them. ring: the length of both.
    """
    rows = list(accumulate((span.count for span in spans), initial=0))
    behind = rows.pop()
    sources: list[_Sources] = []
    prior, filled, filled_keys, kept, cells = [], [], [], [], []
    for span, row, read, write in zip(spans, rows, reads, writes, strict=True):
        first, end = span.start // block_size * block_size, span.start + span.count
        before = np.arange(first, span.start)
        prior.append(read + before % ring)
        own = np.concatenate((behind + before - first, np.arange(row, row + span.count)))
        behind += len(before)
        sources.append(_Sources(first, own))
        blocks = range(first // block_size, end // block_size)
        filled.append(np.array(span.blocks[blocks.start : blocks.stop], dtype=np.int64))
        filled_keys.append(own[: len(blocks) * block_size])
        staying = np.arange(max(first, end - ring), end)
        kept.append(own[staying - first])
        cells.append(write + staying % ring)
    lists = (prior, filled, filled_keys, kept, cells)
    on_device = (torch.from_numpy(np.concatenate(it)).to(device) for it in lists)
    before_rows, full, full_keys, staying_keys, staying_cells = on_device
    return Staged(
        block_size=block_size,
        prior=before_rows,
        filled=full,
        filled_keys=full_keys,
        kept=staying_keys,
        cells=staying_cells,
        rows=rows,
        sources=sources,
    )
