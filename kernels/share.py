"""Shares of a row's probability, the same to the bit on every device.

Part of kernels/limits.py. A weight is a whole number of 2^-40 of the likeliest token's, computed
with operations that IEEE 754 defines exactly, and sums of whole numbers do not depend on their
order. So implementations agree on where a share is reached, whatever their exp is like.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .backend import Block, constexpr, jit, tl

# Shares among so few entries are found by sorting at once; else a histogram comes first. Its last
# bin takes all that is 32 nats and more away, which weighs nothing.
_FEW = 4096
_BINS = 2048
_BINS_PER_NAT = 64
# 2^22 weights of at most 2^40 fit into 63 bits.
_UNIT = 2.0**40
# Smaller powers of two count as 2^-126, which weighs nothing either.
_LEAST = -126.0
_LOG2_E = 1.4426950216293335
# 2^f = 1 + f (A + f (B + …)) for f from 0 to 1: a minimax polynomial fitted for this file, off by
# at most 2e-7 of the result in float32 and by nothing at 0.
_A, _B, _C, _D, _E = (
    0.6931512951850891,
    0.24016444385051727,
    0.05579991266131401,
    0.009017029777169228,
    0.0018671302823349833,
)
LOG2_E, UNIT, LEAST = constexpr(_LOG2_E), constexpr(_UNIT), constexpr(_LEAST)
A, B, C, D, E = constexpr(_A), constexpr(_B), constexpr(_C), constexpr(_D), constexpr(_E)


def odds(values: Tensor, top: float) -> Tensor:
    """exp(value - top) in units of 2^-40, float32, of values at most `top`."""
    part = (values - top).mul_(_LOG2_E).clamp_(min=_LEAST)
    whole = part.floor()
    part.sub_(whole)
    out = part.mul(_E).add_(_D).mul_(part).add_(_C).mul_(part).add_(_B).mul_(part).add_(_A)
    out.mul_(part).add_(1.0)
    out.view(torch.int32).add_(whole.int(), alpha=1 << 23)
    return out.mul_(_UNIT)


def weights(values: Tensor, top: float) -> Tensor:
    """The odds as whole numbers, int64."""
    return odds(values, top).long()


class Share:
    """Where entries of ascending rank reach a share of the whole's weight.

    A histogram of the ranks says in which bin; `bound` lies above that bin, and `edge` finds the
    place within it. So only a few entries have to be sorted.
    """

    def __init__(self, ranks: Tensor, first: float, weights: Tensor, share: float) -> None:
        """first: the smallest rank, or less."""
        self._first = first
        self._goal = max(1, math.ceil(share * int(weights.sum())))
        self._bin: int | None = None
        self._before = 0
        self.bound = math.inf
        if len(ranks) > _FEW:
            mass = torch.zeros(_BINS, dtype=torch.int64, device=ranks.device)
            reached = mass.scatter_add_(0, self._bins(ranks), weights).cumsum(0)
            self._bin = int((reached < self._goal).sum())
            self._before = int(reached[self._bin] - mass[self._bin])
            # A bin further, and further still by what float32 may round off.
            self.bound = first + (self._bin + 2) / _BINS_PER_NAT + abs(first) * 1e-6

    def edge(self, ranks: Tensor, weights: Tensor) -> float:
        """The smallest rank such that the entries ranked up to it have the share. Those ranked
        above `bound` may be missing."""
        if self._bin is not None:
            near = self._bins(ranks) == self._bin
            ranks, weights = ranks[near], weights[near]
        ranks, order = ranks.sort()
        within = weights[order].cumsum(0) + self._before
        return float(ranks[int((within < self._goal).sum())])

    def _bins(self, ranks: Tensor) -> Tensor:
        return ((ranks - self._first) * _BINS_PER_NAT).clamp_(max=_BINS - 1).long()


@jit
def odds_at(x: Block, top: Block) -> Block:
    """Triton: `odds`."""
    part = tl.maximum((x - top) * LOG2_E, LEAST)
    whole = tl.floor(part)
    f = part - whole
    out = ((((f * E + D) * f + C) * f + B) * f + A) * f + 1.0
    bits = out.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True) * UNIT


@jit
def goal_of(total: Block, share: Block) -> Block:
    """Triton: the weight, int64, that a share float32 of a total int64 comes to."""
    return tl.maximum(tl.ceil(total.to(tl.float64) * share.to(tl.float64)).to(tl.int64), 1)


@jit
def key_of(x: Block) -> Block:
    """Triton: float32 as int32 of the same order; its own inverse but for the type."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def _between(low: Block, high: Block, by_bits: Block) -> Block:
    """A number from low to below high: midway, or midway among the float32s between them."""
    one, other = key_of(low), key_of(high)
    key = (one & other) + ((one ^ other) >> 1)
    middle = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    pivot = tl.where(by_bits, middle, low * 0.5 + high * 0.5)
    return tl.maximum(tl.where(pivot < high, pivot, low), low)


@jit
def rank_at(x: Block, centre: Block, CENTRED: constexpr) -> Block:
    """Triton: distance from the centre, or the largest first."""
    return tl.abs(x - centre) if CENTRED else -x


@jit
def reach(
    pool: Block,
    count: Block,
    low: Block,
    high: Block,
    goal: Block,
    top: Block,
    centre: Block,
    COUNTED: constexpr,
    CENTRED: constexpr,
    BLOCK: constexpr,
) -> Block:
    """Triton: the smallest rank such that the entries ranked up to it weigh `goal`, or, COUNTED,
    are so many.

    pool: `count` float32, cut down on the way. low, high: bounds of their ranks, the latter one of
    them. goal: int64, at least 1. Every round takes a pivot, weighs the entries up to it, and
    keeps those on the side where the goal is reached: a quickselect. Its pivots halve the range of
    the values and the range of their bits in turn, so that it takes few rounds on logits and at
    most 64 on anything. A program's threads share the pool, hence the barriers.
    """
    lanes = tl.arange(0, BLOCK)
    before = goal * 0
    by_bits = low != low
    while low < high:
        pivot = _between(low, high, by_bits)
        by_bits = by_bits == 0
        mass = tl.zeros([BLOCK], tl.int64)
        for start in range(0, count, BLOCK):
            inside = start + lanes < count
            x = tl.load(pool + start + lanes, mask=inside, other=0.0)
            first = inside & (rank_at(x, centre, CENTRED) <= pivot)
            weight = 1 if COUNTED else odds_at(x, top).to(tl.int64)
            mass += tl.where(first, weight, 0)
        here = before + tl.sum(mass, 0)
        enough = here >= goal
        before = tl.where(enough, before, here)
        kept = 0
        # Of those that stay, the rank next to the pivot: the new end of the range.
        sign = tl.where(enough, 1.0, -1.0)
        edge = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, count, BLOCK):
            inside = start + lanes < count
            x = tl.load(pool + start + lanes, mask=inside, other=0.0)
            rank = rank_at(x, centre, CENTRED)
            stays = inside & ((rank <= pivot) == enough)
            place = kept + tl.cumsum(stays.to(tl.int32), 0) - 1
            tl.debug_barrier()
            tl.store(pool + place, x, mask=stays)
            kept += tl.sum(stays.to(tl.int32), 0)
            edge = tl.maximum(edge, tl.where(stays, rank * sign, float("-inf")))
        tl.debug_barrier()
        count = kept
        end = tl.max(edge, 0) * sign
        low = tl.where(enough, low, end)
        high = tl.where(enough, end, high)
    return high
