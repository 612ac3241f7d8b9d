"""Writing new keys and values into the paged cache. Called by each layer before it attends."""

from __future__ import annotations

from torch import Tensor


def write_kv(cache: Tensor, kv: Tensor, where: Tensor) -> None:
    """Put row i of kv [T, 2*Hkv, D] (key heads, then value heads) into cache row where[i].

    cache: [2*Hkv, blocks, block_size*D]. where: [T] int64, block * block_size + offset, each row
    at most once.
    """
    heads, dim = kv.shape[1:]
    cache.view(heads, -1, dim).index_copy_(1, where, kv.transpose(0, 1))
