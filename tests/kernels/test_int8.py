"""Eight-bit keys and values against a slow reading of their rules, one number at a time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kernels.int8 import (
    NOT_FINITE,
    dequantize_keys,
    dequantize_values,
    key_table,
    quantize_keys,
    quantize_values,
)

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def half(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float64).bfloat16())


SCALES = [half(2.0 ** (i / 8 - 20)) for i in range(255)]


def code(x: float, scale: float) -> int:
    """The nearest integer, the even one of two, within 127."""
    whole = float(torch.tensor(x, dtype=torch.float32) / torch.tensor(scale, dtype=torch.float32))
    return max(-127, min(127, round(whole)))


def slow_channel(keys: list[float]) -> tuple[list[int], int]:
    """Codes and scale of one channel of a block, by trying scale after scale."""
    peak = max(abs(x) for x in keys)
    index = next((i for i, s in enumerate(SCALES) if s * 127 >= peak), 254)
    return [code(x, SCALES[index]) for x in keys], index


def randoms(*shape: int, seed: int = 0, spread: float = 6.0) -> Tensor:
    """Numbers of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp(torch.randn(*shape[:-1], 1, generator=generator) * spread)
    return torch.randn(*shape, generator=generator) * sizes


def test_the_table_is_of_bfloat16_numbers_in_even_steps():
    table = key_table(CPU)
    assert table[:NOT_FINITE].tolist() == SCALES
    assert table[NOT_FINITE].isnan()
    ratios = [b / a for a, b in pairwise(SCALES)]
    assert all(abs(math.log2(ratio) - 1 / 8) < 0.01 for ratio in ratios)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_what_a_slow_reading_makes_of_them(dtype):
    keys = randoms(2, 3, 8, 5, spread=4.0).clamp(-6e4, 6e4).to(dtype)
    keys[0, 0, :, 0] = 0.0
    codes, index = quantize_keys(keys)
    for head in range(2):
        for block in range(3):
            for channel in range(5):
                want = slow_channel(keys[head, block, :, channel].float().tolist())
                found = codes[head, block, :, channel].tolist()
                assert (found, int(index[head, block, channel])) == want


def test_a_channel_whose_largest_key_a_scale_just_holds_gets_that_scale():
    for i in (0, 7, 100, 253, 254):
        peak = torch.tensor(SCALES[i]) * 127
        for key, want in ((peak, i), (peak.nextafter(torch.tensor(torch.inf)), min(i + 1, 254))):
            codes, index = quantize_keys(key.view(1, 1, 1, 1))
            assert int(index) == want
            assert (int(codes) == 127) == (want == i or i == 254)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.0, 4.0), dtype=st.sampled_from(DTYPES))
def test_errors_of_keys_are_half_a_step_of_at_most_nine_hundredths_more_than_needed(
    seed, spread, dtype
):
    keys = randoms(2, 3, 16, 4, seed=seed, spread=spread).clamp(-6e4, 6e4).to(dtype)
    back = dequantize_keys(*quantize_keys(keys), torch.float32)
    peaks = keys.float().abs().amax(2, keepdim=True).clamp_min(SCALES[0] * 127)
    step = peaks / 127 * 2 ** (1 / 8) * 1.01
    assert ((back - keys.float()).abs() <= step / 2).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), spread=st.floats(0.0, 8.0), dtype=st.sampled_from(DTYPES))
def test_errors_of_values_are_half_a_step(seed, spread, dtype):
    values = randoms(7, 3, 16, seed=seed, spread=spread).clamp(-6e4, 6e4).to(dtype)
    codes, scales = quantize_values(values)
    assert codes.abs().amax() <= 127
    by_block = codes.permute(1, 0, 2)[:, :, None], scales.T[:, :, None]
    back = dequantize_values(*by_block, torch.float32)[:, :, 0].permute(1, 0, 2)
    step = values.float().abs().amax(-1, keepdim=True) / 127
    assert ((back - values.float()).abs() <= step * 0.51 + 1e-37).all()


def test_zeros_stay_zeros():
    codes, scales = quantize_values(torch.zeros(2, 1, 4))
    assert not codes.any()
    assert not dequantize_values(codes[None], scales.T[:, :, None], torch.float32).any()
    assert not dequantize_keys(*quantize_keys(torch.zeros(1, 1, 4, 2)), torch.bfloat16).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_read_back_as_nan_with_all_that_shares_its_scale(bad, dtype):
    keys = torch.ones(1, 2, 4, 3, dtype=dtype)
    keys[0, 1, 2, 1] = bad
    back = dequantize_keys(*quantize_keys(keys), dtype)
    assert back[0, 1, :, 1].isnan().all()
    assert int(back.isfinite().sum()) == back.numel() - 4
    values = torch.ones(4, 2, 3, dtype=dtype)
    values[2, 1, 0] = bad
    codes, scales = quantize_values(values)
    back = dequantize_values(codes.permute(1, 0, 2)[:, None], scales.T[:, None], dtype)
    assert back[1, 0, 2].isnan().all()
    assert int(back.isfinite().sum()) == back.numel() - 3


def test_what_a_number_becomes_depends_on_its_block_or_token_alone():
    keys = randoms(2, 9, 16, 24).bfloat16()
    values = randoms(40, 2, 24).bfloat16()
    codes, index = quantize_keys(keys)
    for i in range(9):
        alone = quantize_keys(keys[:, i : i + 1].clone())
        assert torch.equal(alone[0], codes[:, i : i + 1])
        assert torch.equal(alone[1], index[:, i : i + 1])
    codes, scales = quantize_values(values)
    for i in range(40):
        alone = quantize_values(values[i : i + 1])
        assert torch.equal(alone[0], codes[i : i + 1])
        assert torch.equal(alone[1], scales[i : i + 1])
