"""KV storage: what block ids index, one storage per layer, and what a model's caller does with all.

Allocated once by the composition root for target and draft alike (the same ids index both), then
written and read by kernels in the launch thread. `layers` says how a layer lies in memory.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.attention_int8 import Cells
from ..kernels.query_tiles import Span
from ..kernels.staged import Staged
from .capacity import KvShape
from .layers import Int8Layer, PlainLayer, StoredLayer
from .staging import Staging


class KvStore:
    """The KV of one model: `layers`, each of `blocks` blocks of `block_size` tokens.

    Keys of eight bits are staged until their block is full, so a step tells the store when it
    begins, what it computes, and which of its slots kept what it computed. Where all layers are of
    full precision these calls do nothing.
    """

    def __init__(
        self,
        layers: Sequence[StoredLayer],
        blocks: int,
        block_size: int,
        staging: Staging | None = None,
    ) -> None:
        self.layers = layers
        self.blocks = blocks
        self.block_size = block_size
        self._staging = staging
        self._device = layers[0].tensors[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of address space (and of memory, once all of it has been written) of all blocks."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors)

    def begin(self, slots: Iterable[int]) -> None:
        """These slots are computed from what counts: anything since their last `commit` is void."""
        if self._staging is not None:
            self._staging.begin(slots)

    def stage(self, spans: Sequence[Span], slots: Sequence[int]) -> Staged | None:
        """What the next forward, of spans of these slots in this order, does with staged keys."""
        return self._staging.plan(spans, slots) if self._staging is not None else None

    def commit(self, slots: Iterable[int]) -> None:
        """What these slots computed since `begin` counts, up to tokens that are computed again."""
        if self._staging is not None:
            self._staging.commit(slots)

    def scrub(self, block_ids: Sequence[int]) -> None:
        """Zero the named blocks in every layer, in place: nothing of their tokens remains."""
        blocks = self._ids(block_ids)
        for layer in self.layers:
            layer.scrub(blocks)

    def wipe(self, rows: NDArray[np.int64], block_ids: Sequence[int]) -> None:
        """Zero what is kept of the tokens in these cache rows, the last of their blocks, and
        nothing of the tokens before them."""
        blocks, tokens = self._ids(block_ids), self._ids(rows)
        for layer in self.layers:
            layer.wipe(tokens, blocks)

    def _ids(self, ids: Sequence[int] | NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.array(ids, dtype=np.int64)).to(self._device)


def allocate(
    shape: KvShape,
    blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    slots: int = 0,
) -> KvStore:
    """Zero-filled storage for `blocks` blocks of `block_size` tokens, and a stage for `slots`
    sequences where layers are of eight bits.

    On the CPU, memory is committed page by page when it is first written: an unused pool is free.
    """
    assert shape.element_bytes == dtype.itemsize, (
        f"a shape of {shape.element_bytes}-byte elements cannot be stored in {dtype}"
    )
    assert blocks > 0, f"storage cannot have {blocks} blocks"
    staging = Staging(slots, block_size, device) if shape.int8 else None
    heads, dim = shape.kv_heads, shape.head_dim

    def zeros(size: tuple[int, ...], kind: torch.dtype) -> Tensor:
        if torch.device(device).type == "cpu":
            return _lazy_zeros(size, kind)
        return torch.zeros(size, dtype=kind, device=device)

    def plain() -> StoredLayer:
        return PlainLayer(zeros((2 * heads, blocks, block_size * dim), dtype), block_size)

    def int8(cells: int) -> StoredLayer:
        return Int8Layer(
            Cells(
                codes=zeros((2 * heads, blocks, block_size * dim), torch.int8),
                key_scales=zeros((heads, blocks, dim), torch.uint8),
                value_scales=zeros((heads, blocks, block_size), torch.bfloat16),
                stage=torch.zeros(heads, cells, dim, dtype=dtype, device=device),
            )
        )

    layers = [
        int8(staging.cells) if staging is not None and i in shape.int8 else plain()
        for i in range(shape.layers)
    ]
    return KvStore(layers, blocks, block_size, staging)


def _lazy_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    nbytes = torch.Size(size).numel() * dtype.itemsize
    if hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        pages = mmap.mmap(-1, nbytes)
    # A block is a short run in each head's region. With huge pages (which numpy and calloc may
    # ask for) the first block alone would commit 2 MiB for every head of every layer.
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A kernel built without huge pages refuses the advice, and does not need it.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(size)
