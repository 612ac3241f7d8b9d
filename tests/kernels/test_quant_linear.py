"""The reference of products in few bits: rounded rows, the fused additions, and the whole."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.quant_linear import GROUP, fma, linear_reference, quantise_rows
from support.packed_matrices import random_matrix

floats = st.floats(width=32, min_value=-(2.0**40), max_value=2.0**40).filter(
    lambda v: v == 0 or abs(v) > 2.0**-40
)
single = st.builds(lambda m, e: m * 2.0**e, st.integers(2**23, 2**24 - 1), st.integers(-30, 0))


def rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=dice)
    return x * (1 + 20 * (torch.rand(count, width, generator=dice) < 0.02))


def nearest(exact: Fraction) -> float:
    """The float32 closest to a number, of two as close the even one."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)]
    options = [near, *around]
    return float(
        min(options, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))
    )


def fused(a: float, b: float, c: float) -> float:
    return float(fma(*(torch.tensor([v], dtype=torch.float32) for v in (a, b, c))))


class TestFma:
    @given(a=floats, b=floats, c=floats)
    def test_is_rounded_once(self, a: float, b: float, c: float) -> None:
        assert fused(a, b, c) == nearest(Fraction(a) * Fraction(b) + Fraction(c))

    @given(c=single, far=st.integers(60, 90), side=st.sampled_from([-1, 1]))
    def test_a_hair_beside_halfway(self, c: float, far: int, side: int) -> None:
        """c plus half of its last place plus or minus what fp64 cannot hold beside it."""
        last = float(np.spacing(np.float32(c)))
        # (1 + s)(1 - s) = 1 - s²; the product is half a place, but for a hair
        a, b = np.float32(last / 2 * (1 + 2.0**-15)), np.float32(1 - 2.0**-15)
        assert fused(a, b, c) == nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(c))
        d = side * last * 2.0**-far
        assert fused(1.0, d, c) == nearest(Fraction(d) + Fraction(c))

    def test_rounding_twice_would_be_wrong_here(self) -> None:
        """Half a place beyond 2²³ + 1, less a hair: twice rounded it goes up to even."""
        a, b = 1 - 2.0**-24, 0.5 + 2.0**-24
        c = 2.0**30 + 2.0**7
        exact = Fraction(a) * Fraction(b * 2.0**7) + Fraction(c)
        assert fused(a, b * 2.0**7, c) == nearest(exact)
        # 1/2 of the last place less 2^-60 of it
        a, b, c = 2.0**-1 - 2.0**-24, 1 + 2.0**-23, float(2**23 + 1)
        assert fused(a, b, c) == nearest(Fraction(a) * Fraction(b) + Fraction(c))


class TestRows:
    def test_are_off_by_half_a_step_at_most(self) -> None:
        x = rows(9, 160)
        codes, scales, sums = quantise_rows(x)
        step = scales.repeat_interleave(GROUP, 1)
        assert ((codes * step - x).abs() <= step * 0.50001).all()
        assert (codes.view(9, 5, GROUP).abs().amax(2) == 127).all()
        whole = codes.view(9, 5, GROUP).float().sum(2)
        assert torch.equal(sums, scales * whole)

    def test_each_step_rounds_once(self) -> None:
        """The same steps in numpy, whose operations are all of fp32, where it shows: on inputs
        close to the middle of two codes."""
        most = rows(200, 5).abs()[..., None]
        middles = (torch.arange(GROUP - 1) + 0.5) / 127
        x = torch.cat((most, middles * most), 2).flatten(1)
        codes, scales, sums = quantise_rows(x)
        groups = x.numpy().reshape(200, 5, GROUP)
        top = np.abs(groups).max(2)
        whole = np.rint(groups * (np.float32(127) / top)[..., None])
        assert np.array_equal(codes.numpy(), whole.reshape(200, 160).astype(np.int8))
        assert np.array_equal(scales.numpy(), top / np.float32(127))
        assert np.array_equal(sums.numpy(), top / np.float32(127) * whole.sum(2))

    def test_halves_go_to_the_even_code(self) -> None:
        x = torch.zeros(1, GROUP)
        x[0, :6] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
        assert quantise_rows(x)[0][0, :6].tolist() == [127, 0, 2, 2, 0, -2]

    def test_zeros_and_the_smallest_numbers(self) -> None:
        x = torch.zeros(3, GROUP)
        x[1] = 1e-45
        x[2, 5] = -1e-38
        codes, scales, sums = quantise_rows(x)
        assert not codes[0].any()
        assert not scales[0].any()
        assert scales.isfinite().all()
        assert sums.isfinite().all()
        assert (codes.abs() <= 127).all()

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_no_number_stays_none(self, value: float) -> None:
        x, weight = rows(3, 96), random_matrix(16, 96, 4)
        clean = linear_reference(x, weight)
        x[1, 40] = value
        got = linear_reference(x, weight)
        assert got[1].isnan().all()
        assert torch.equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("bits", [4, 8])
class TestProducts:
    def test_are_those_of_the_rounded_rows(self, bits: int) -> None:
        """Only the additions of groups round: two a group, each by half a last place of a partial
        sum, and the product of scales."""
        x, weight = rows(7, 320), random_matrix(32, 320, bits)
        codes, scales, _ = quantise_rows(x)
        rounded = codes.double() * scales.double().repeat_interleave(GROUP, 1)
        exact = rounded @ weight.dequantised().double().T
        got = linear_reference(x, weight)
        grid = weight.scales.double().repeat_interleave(GROUP, 1)
        parts = grid.abs() * weight.unpacked() + weight.minima.double().abs().repeat_interleave(
            GROUP, 1
        )
        room = rounded.abs() @ parts.T * 2.0**-24 * (2 * 10 + 2)
        assert ((got - exact).abs() <= room).all()

    def test_are_near_those_of_the_rows(self, bits: int) -> None:
        """Half a step of each input at most, times its weight."""
        x, weight = rows(7, 320), random_matrix(32, 320, bits)
        dense = weight.dequantised().double()
        got = linear_reference(x, weight)
        step = quantise_rows(x)[1].double().repeat_interleave(GROUP, 1)
        room = 0.5001 * step @ dense.abs().T
        assert ((got - x.double() @ dense.T).abs() <= room + 1e-3).all()
        assert (got - x.double() @ dense.T).abs().max() < 0.05 * got.abs().max()

    def test_do_not_depend_on_company(self, bits: int) -> None:
        x, weight = rows(9, 96), random_matrix(48, 96, bits)
        whole = linear_reference(x, weight)
        assert torch.equal(linear_reference(x[4:5], weight), whole[4:5])
        assert torch.equal(linear_reference(x[2:].flip(0), weight), whole[2:].flip(0))
        assert torch.equal(linear_reference(x, weight.rows(16, 32)), whole[:, 16:32])

    def test_bias_is_added_last(self, bits: int) -> None:
        x, weight, bias = rows(2, 64), random_matrix(16, 64, bits), torch.randn(16)
        assert torch.equal(linear_reference(x, weight, bias), linear_reference(x, weight) + bias)


def test_more_bits_are_the_same_product() -> None:
    x, weight = rows(4, 96), random_matrix(16, 96, 4)
    assert torch.equal(linear_reference(x, weight), linear_reference(x, weight.promoted()))
