"""Triton's limits and choice, in its interpreter: the reference's kept sets and tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from paceline.kernels.limits import COLDEST, bounds, bounds_reference
from paceline.kernels.noise import gumbel_reference, noise_key
from paceline.kernels.sample import choose, choose_reference
from support.triton_offline import interpreted

pytest.importorskip("triton")

# temperature, typical_p, top_k, top_p, min_p: each limit alone, all together, none, greedy.
LIMITS = [
    (1.0, 1.0, 0, 1.0, 0.0),
    (0.0, 0.5, 3, 0.9, 0.1),
    (0.8, 1.0, 1, 0.9, 0.0),
    (0.7, 1.0, 5, 1.0, 0.0),
    (1.0, 1.0, 40, 1.0, 0.0),
    (1.3, 1.0, 0, 0.9, 0.0),
    (0.9, 1.0, -1, 0.3, 0.0),
    (1.0, 1.0, 0, 1.0, 0.05),
    (1.0, 0.2, 0, 1.0, 0.0),
    (1.5, 0.95, 0, 1.0, 0.0),
    (0.8, 0.9, 20, 0.9, 0.02),
    (0.5, 0.7, 3, 0.99, 0.2),
    (1e-9, 0.9, 50, 0.9, 0.1),
]


def parameters(rows: int, first: int = 0) -> list[Tensor]:
    picked = [LIMITS[(first + i) % len(LIMITS)] for i in range(rows)]
    return [torch.tensor(column) for column in zip(*picked, strict=True)]


def kept(logits: Tensor, temperature: Tensor, between: Tensor) -> Tensor:
    scaled = logits.float() / temperature.clamp_min(COLDEST)[:, None]
    return (scaled >= between[:, :1]) & (scaled <= between[:, 1:])


def check(logits: Tensor, limits: list[Tensor], **settings: int) -> None:
    """Equal kept sets; equal tokens, unless the two best differ by less than noise is sure of."""
    keys = noise_key(torch.full((len(logits),), 31), torch.arange(len(logits)))
    found = interpreted(bounds, logits, *limits, **settings)
    stays = kept(logits, limits[0], bounds_reference(logits, *limits))
    assert torch.equal(kept(logits, limits[0], found), stays)
    mine = interpreted(choose, logits, *limits, keys, **settings)
    expected = choose_reference(logits, *limits, keys)
    scaled = logits.float() / limits[0].clamp_min(COLDEST)[:, None]
    noisy = scaled + gumbel_reference(keys, torch.arange(logits.shape[1]))
    for i in (mine != expected).nonzero()[:, 0].tolist():
        assert limits[0][i] > 0
        assert limits[2][i] != 1
        assert stays[i, mine[i]]
        assert abs(float(noisy[i, mine[i]] - noisy[i, expected[i]])) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, 64, 129, 1000])
def test_any_limits_over_any_shape(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    rows = len(LIMITS)
    # bfloat16 rounds logits to few values: many ties. Some tokens are impossible.
    logits = torch.randn(rows, vocab, generator=generator) * 3
    logits[torch.rand(rows, vocab, generator=generator) < 0.1] = -math.inf
    logits[:, vocab // 2] = 1.0
    check(logits.to(dtype), parameters(rows, vocab % 3))


def test_rows_of_many_blocks_and_of_a_wider_tensor() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = (torch.randn(7, 700, generator=generator) * 2)[:, :333]
    check(logits, parameters(7, 5), BLOCK=64)


def test_ties_everywhere() -> None:
    generator = torch.Generator().manual_seed(3)
    coarse = (torch.randn(len(LIMITS), 129, generator=generator) * 2).round()
    check(coarse, parameters(len(LIMITS)))
    check(torch.zeros(3, 64), parameters(3, 8))


def test_values_that_make_halving_slow_or_overflow() -> None:
    halves = 2.0 ** -torch.arange(130.0)
    tiny = torch.arange(130.0) * 1e-42
    signed = torch.where(torch.arange(130) % 2 == 0, halves, -halves)
    huge = torch.linspace(-3e38, 3e38, 130)
    zeros = torch.zeros(130).copysign(signed)
    rows = torch.stack([halves, tiny, signed, huge, zeros])
    for limit in [(1.0, 1.0, 60, 1.0, 0.0), (1.0, 1.0, 0, 0.5, 0.0), (1.0, 0.5, 9, 0.5, 0.0)]:
        check(rows, [torch.tensor([x] * 5) for x in limit])


def test_rows_that_are_not_finite_choose_as_the_reference_does() -> None:
    logits = torch.randn(len(LIMITS), 70, generator=torch.Generator().manual_seed(5))
    for poison in (-math.inf, math.inf, math.nan):
        whole = torch.full((len(LIMITS), 70), poison)
        check(whole, parameters(len(LIMITS)))
        one = logits.clone()
        one[:, 33] = poison
        keys = noise_key(torch.arange(len(LIMITS)), torch.arange(len(LIMITS)))
        mine = interpreted(choose, one, *parameters(len(LIMITS)), keys)
        assert mine.tolist() == choose_reference(one, *parameters(len(LIMITS)), keys).tolist()


def test_greedy_takes_the_first_maximum() -> None:
    logits = torch.zeros(3, 300, dtype=torch.bfloat16)
    logits[0, [7, 9, 299]] = 1.0
    logits[1, [64, 250]] = 2.0
    greedy = [torch.tensor([x] * 3) for x in (0.0, 0.5, 7, 0.5, 0.5)]
    keys = torch.arange(3)
    assert interpreted(choose, logits, *greedy, keys, BLOCK=64).tolist() == [7, 64, 0]
