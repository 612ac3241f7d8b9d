"""The storage of one layer's keys and values, in full precision or in eight bits.

Made by `tensors`, called by the model's layer (`attend`) and by the store that holds them all.
Both kinds lay heads out before blocks, all key heads before all value heads, so that one
`index_select` over dimension 1 gathers a block table.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..kernels import attention_int8
from ..kernels.attention import attend
from ..kernels.attention_int8 import Cells
from ..kernels.kv_write import write_kv
from ..kernels.layer_kv import LayerKv, Rows, Sight


class StoredLayer(LayerKv, Protocol):
    """What the store asks of a layer's storage."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is kept of blocks; dimension 1 is the block."""
        ...

    def scrub(self, blocks: Tensor) -> None:
        """Zero all that is kept of the blocks [N] int64."""
        ...

    def wipe(self, rows: Tensor, blocks: Tensor) -> None:
        """Zero what is kept of the tokens in the cache rows [N] int64, the last ones of `blocks`
        [M] int64, in which they lie, and nothing else that counts."""
        ...


class PlainLayer:
    """Keys and values in the model's own precision: cells [2*Hkv, blocks, block_size*D]."""

    __slots__ = ("_block_size", "cells")

    def __init__(self, cells: Tensor, block_size: int) -> None:
        self.cells = cells
        self._block_size = block_size

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.cells,)

    def attend(self, q: Tensor, kv: Tensor, rows: Rows, sight: Sight) -> Tensor:
        write_kv(self.cells, kv, rows.where)
        return attend(q, self.cells, rows.attention[sight.window], sight.scale, sight.cap)

    def scrub(self, blocks: Tensor) -> None:
        self.cells.index_fill_(1, blocks, 0)

    def wipe(self, rows: Tensor, blocks: Tensor) -> None:
        _by_token(self.cells, self._block_size).index_fill_(1, rows, 0)


class Int8Layer:
    """Keys and values in eight bits, and the keys of blocks that are not full in the stage.

    What stands in the stage needs no scrubbing: a cell is read only for positions that its own
    sequence has written and counted.
    """

    __slots__ = ("_block_size", "_heads", "cells")

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._heads, _, self._block_size = cells.value_scales.shape

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.cells.codes, self.cells.key_scales, self.cells.value_scales

    def attend(self, q: Tensor, kv: Tensor, rows: Rows, sight: Sight) -> Tensor:
        staged = rows.staged
        assert staged is not None, "keys of eight bits need a plan of what is staged"
        sources = attention_int8.write(self.cells, kv, rows.where, staged)
        plan = rows.attention[sight.window]
        return attention_int8.attend(q, self.cells, sources, staged, plan, sight.scale, sight.cap)

    def scrub(self, blocks: Tensor) -> None:
        for tensor in self.tensors:
            tensor.index_fill_(1, blocks, 0)

    def wipe(self, rows: Tensor, blocks: Tensor) -> None:
        codes, key_scales, value_scales = self.tensors
        values = codes[self._heads :]
        _by_token(values, self._block_size).index_fill_(1, rows, 0)
        _by_token(value_scales, self._block_size).index_fill_(1, rows, 0)
        # A block whose last tokens are wiped is not full: its keys are in the stage.
        codes[: self._heads].index_fill_(1, blocks, 0)
        key_scales.index_fill_(1, blocks, 0)


def _by_token(tensor: Tensor, block_size: int) -> Tensor:
    """[H, blocks, block_size * D] as [H, blocks * block_size, D]."""
    return tensor.view(tensor.shape[0], -1, tensor.shape[2] // block_size)
