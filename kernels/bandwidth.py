"""How fast a device's memory is: a large tensor is copied, and the bytes that moved are counted.

Called by `paceline plan`, before anything else runs on the device.
"""

from __future__ import annotations

import time

import torch

SIZE = 256 << 20
"""Bytes that are copied: more than caches hold."""
TIMES = 5


def measure_bandwidth(device: str, size: int = SIZE) -> float | None:
    """Bytes a second that are read and written by the fastest of some copies of `size` bytes; None
    where there is no such device.

    A copy reads as much as it writes, and both count once. What a processor reads only to write
    over it does not count, so a CPU may read somewhat faster than this.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return None
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(TIMES):
        _settle(source)
        start = time.perf_counter()
        target.copy_(source)
        _settle(source)
        best = min(best, time.perf_counter() - start)
    return 2 * size / best


def _settle(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
