"""Many tokens at once, drawn with the package's noise from given distributions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.kernels.noise import gumbel, noise_key
from paceline.spec.controls import TEXT

SURE = 1e-4
"""A fit that is less likely than this when all is right counts as wrong. Seeds are fixed."""


def drawn(
    seeds: NDArray[np.int64], index: int, stream: int, odds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The tokens [N] that seeds [N] draw at an index from distributions odds [N, V]."""
    keys = torch.from_numpy(keys_at(seeds, index, stream))
    noise = gumbel(keys, torch.arange(odds.shape[1]))
    return (torch.from_numpy(odds).log() + noise).argmax(1).numpy()


def keys_at(seeds: NDArray[np.int64], index: int, stream: int) -> NDArray[np.int64]:
    if stream != TEXT:
        seeds = noise_key(seeds, np.array([-stream]))
    return noise_key(seeds, np.array([index]))
