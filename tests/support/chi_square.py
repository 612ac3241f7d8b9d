"""Pearson's test, for counts against the distribution they should have come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FEWEST = 5.0
"""Expected counts below this are lumped together."""


@dataclass
class Fit:
    """A statistic summed over independent groups, and its degrees of freedom."""

    statistic: float = 0.0
    freedom: int = 0
    samples: int = 0

    def add(self, counts: Mapping[object, int], odds: Mapping[object, float]) -> None:
        """One group's counts by outcome; `odds` need not add up to one."""
        number, total = sum(counts.values()), sum(odds.values())
        assert all(odds.get(outcome, 0.0) > 0.0 for outcome in counts), "an impossible outcome"
        pairs = [(counts.get(o, 0), number * p / total) for o, p in odds.items() if p > 0.0]
        large = [pair for pair in pairs if pair[1] >= FEWEST]
        small = np.sum([pair for pair in pairs if pair[1] < FEWEST] or [(0, 0)], axis=0)
        if small[1] >= FEWEST:
            large.append(tuple(small))
        self.samples += number
        if len(large) > 1:
            self.statistic += sum((seen - mean) ** 2 / mean for seen, mean in large)
            self.freedom += len(large) - 1

    @property
    def chance(self) -> float:
        """How likely a statistic at least as large is when all is right."""
        half = torch.tensor([self.freedom / 2, self.statistic / 2], dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1]))


def counted(values: NDArray[np.int64]) -> dict[object, int]:
    """How often each value occurs; rows of a two-dimensional array become tuples."""
    distinct, counts = np.unique(values, axis=0, return_counts=True)
    keys = map(tuple, distinct.tolist()) if values.ndim > 1 else distinct.tolist()
    return dict(zip(keys, counts.tolist(), strict=True))
