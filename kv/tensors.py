"""KV storage: the tensors that block ids index, one per layer. The only file here with torch.

Allocated once by the composition root for target and draft alike (the same ids index both), then
written and read by kernels in the launch thread. The layout of a layer is
`[2 * kv_heads, blocks, block_size * head_dim]`, all key heads before all value heads, so that one
`index_select` over dimension 1 gathers keys and values of a block table.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from .capacity import KvShape


def allocate(
    shape: KvShape, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device | str
) -> list[Tensor]:
    """Zero-filled storage for `blocks` blocks of `block_size` tokens: one tensor per layer.

    On the CPU, memory is committed page by page when it is first written: an unused pool is free.
    """
    assert shape.element_bytes == dtype.itemsize, (
        f"a shape of {shape.element_bytes}-byte elements cannot be stored in {dtype}"
    )
    assert blocks > 0, f"storage cannot have {blocks} blocks"
    size = (2 * shape.kv_heads, blocks, block_size * shape.head_dim)
    if torch.device(device).type == "cpu":
        return [_lazy_zeros(size, dtype) for _ in range(shape.layers)]
    return [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]


def scrub(caches: Sequence[Tensor], block_ids: Sequence[int]) -> None:
    """Zero the named blocks in every layer, in place: nothing of their tokens remains."""
    if not caches:
        return
    ids = torch.tensor(list(block_ids), dtype=torch.int64, device=caches[0].device)
    for cache in caches:
        cache.index_fill_(1, ids, 0)


def allocated_bytes(caches: Sequence[Tensor]) -> int:
    """Bytes of address space (and of memory, once all of it has been written) of the storage."""
    return sum(cache.nbytes for cache in caches)


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
