"""Triton's noise, in its interpreter: the reference's bits and, but for rounding, its floats."""

from __future__ import annotations

import pytest
import torch

from paceline.kernels.noise import (
    gumbel,
    gumbel_reference,
    noise_key,
    random_bits,
    random_bits_reference,
)
from paceline.kernels.share import odds
from support.triton_offline import interpreted, triton_odds

pytest.importorskip("triton")

KEYS = torch.cat(
    [
        noise_key(torch.arange(5), torch.arange(5) * 1000),
        torch.tensor([0, -1, 2**63 - 1, -(2**63)]),
    ]
)


@pytest.mark.parametrize("width", [1, 7, 64, 129, 1000, 1025])
def test_bits_are_the_reference_s(width: int) -> None:
    tokens = torch.arange(width) * 151
    expected = random_bits_reference(KEYS, tokens)
    assert torch.equal(interpreted(random_bits, KEYS, tokens), expected)
    scattered = torch.stack([tokens.roll(i) for i in range(len(KEYS))])
    assert torch.equal(
        interpreted(random_bits, KEYS, scattered, BLOCK=64),
        random_bits_reference(KEYS, scattered),
    )


def test_noise_is_within_two_units_in_the_last_place() -> None:
    # Units of 1 at least: rounding the exponential variate moves its logarithm as much near 0.
    expected = gumbel_reference(KEYS, torch.arange(20_000))
    found = interpreted(gumbel, KEYS, torch.arange(20_000), BLOCK=32_768)
    size = expected.abs().clamp_min(1.0)
    unit = torch.exp2(size.log2().floor()) * 2.0**-23
    off = (found - expected).abs() / unit
    # A device's logarithm is right to one unit, numpy's now and then to three or four only.
    assert off.max() <= 3
    assert (off > 2).double().mean() < 1e-4


def test_the_extremes_are_finite_and_those_of_the_reference() -> None:
    # Key 0 maps token 0 to the least uniform, the other one to the largest.
    keys = torch.tensor([0, _preimage_of_all_ones()])
    tokens = torch.zeros(1, dtype=torch.int64)
    bits = random_bits_reference(keys, tokens)
    assert bits.tolist() == [[0], [-1]]
    found = interpreted(gumbel, keys, tokens)
    torch.testing.assert_close(found, gumbel_reference(keys, tokens), rtol=3e-7, atol=0)


def _preimage_of_all_ones() -> int:
    x = 0xFFFFFFFF
    x ^= x >> 16
    x = x * pow(0x846CA68B, -1, 2**32) & 0xFFFFFFFF
    x ^= x >> 15 ^ x >> 30
    x = x * pow(0x7FEB352D, -1, 2**32) & 0xFFFFFFFF
    return x ^ x >> 16


def test_odds_have_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(4)
    top = 3.25
    values = top - torch.rand(4000, generator=generator) ** 4 * 200
    values[:3] = torch.tensor([top, -3e38, top - 1e-6])
    found = interpreted(triton_odds, values, torch.tensor([top]))
    assert torch.equal(found, odds(values, top))
