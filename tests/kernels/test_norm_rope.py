"""Norm, rotation, gate and cache writes against their definitions, and row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.kernels.activation import gelu_mul, silu_mul, soft_cap
from paceline.kernels.kv_write import write_kv
from paceline.kernels.norm_rope import apply_rope, rms_norm

DTYPES = [torch.float32, torch.bfloat16]


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same_rows(run, *inputs: Tensor) -> None:
    """`run` gives every row the bits it gives a row alone, and in slices of odd sizes."""
    whole = run(*(x.clone() for x in inputs))
    total = len(whole)
    for start, count in ((0, 1), (total - 1, 1), (3, 1), (1, 2), (2, 3), (5, 7), (4, total - 4)):
        part = run(*(x[start : start + count].clone() for x in inputs))
        assert torch.equal(part, whole[start : start + count])


class TestRmsNorm:
    def test_definition(self) -> None:
        x, weight = rand(5, 64), rand(64, seed=1)
        wide = x.double()
        wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
        assert torch.allclose(rms_norm(x, weight, 1e-5).double(), wanted, atol=1e-6)

    def test_a_weight_per_head(self) -> None:
        x, weight = rand(5, 3, 16), rand(3, 16, seed=1)
        apart = torch.stack([rms_norm(x[:, h], weight[h], 1e-6) for h in range(3)], 1)
        assert torch.allclose(rms_norm(x, weight, 1e-6), apart, atol=1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("width", [16, 100, 576, 4097])
    def test_rows_are_on_their_own(self, dtype: torch.dtype, width: int) -> None:
        weight = rand(width, dtype=dtype, seed=1)
        same_rows(lambda x: rms_norm(x, weight, 1e-5), rand(41, width, dtype=dtype))
        heads = rand(3, width, dtype=dtype, seed=1)
        same_rows(lambda x: rms_norm(x, heads, 1e-5), rand(41, 3, width, dtype=dtype))


class TestRope:
    def test_it_rotates_pairs(self) -> None:
        """As complex numbers: element i and i + D/2 are the parts of one that is turned."""
        angles = rand(7, 1, 4)
        heads = rand(7, 3, 8)
        turned = torch.complex(heads[..., :4], heads[..., 4:]) * torch.polar(
            torch.ones_like(angles), angles
        )
        cos = torch.cat((angles.cos(), angles.cos()), -1)
        sin = torch.cat((-angles.sin(), angles.sin()), -1)
        apply_rope(heads, cos, sin)
        assert torch.allclose(heads, torch.cat((turned.real, turned.imag), -1), atol=1e-6)

    def test_the_first_elements_of_a_head_alone(self) -> None:
        heads, cos, sin = rand(9, 3, 24), rand(9, 1, 16, seed=1), rand(9, 1, 16, seed=2)
        whole, part = heads.clone(), heads[..., :16].clone()
        apply_rope(whole[..., :16], cos, sin)
        apply_rope(part, cos, sin)
        assert torch.equal(whole, torch.cat((part, heads[..., 16:]), -1))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("dim", [16, 64, 80])
    def test_rows_are_on_their_own(self, dtype: torch.dtype, dim: int) -> None:
        def run(fused: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            apply_rope(fused[:, :5], cos, sin)
            return fused

        inputs = rand(301, 7, dim), rand(301, 1, dim, seed=1), rand(301, 1, dim, seed=2)
        same_rows(run, *(x.to(dtype) for x in inputs))


def tanh_gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


class TestGates:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        ("gated", "activation"), [(silu_mul, torch.nn.functional.silu), (gelu_mul, tanh_gelu)]
    )
    def test_definition(self, gated, activation, dtype: torch.dtype) -> None:
        gate_up = rand(9, 60, dtype=dtype) * 5
        gate, up = gate_up.double().chunk(2, -1)
        wanted = activation(gate) * up
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert torch.allclose(gated(gate_up).double(), wanted, rtol=tolerance, atol=2e-6)

    @pytest.mark.parametrize("gated", [silu_mul, gelu_mul])
    def test_far_from_zero(self, gated) -> None:
        assert gated(torch.tensor([[-1000.0, 1000.0, 2.0, 2.0]])).tolist() == [[0.0, 2000.0]]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("threads", [1, 2, 3])
    @pytest.mark.parametrize("gated", [silu_mul, gelu_mul, lambda x: soft_cap(x.clone(), 2.5)])
    def test_rows_are_on_their_own(self, gated, dtype: torch.dtype, threads: int) -> None:
        """Also where threads share the elements out in the middle of a row."""
        gate_up = rand(301, 2 * 1003, dtype=dtype)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            whole = gated(gate_up)
            for row in range(len(gate_up)):
                assert torch.equal(gated(gate_up[row : row + 1]), whole[row : row + 1])
        finally:
            torch.set_num_threads(before)

    @pytest.mark.parametrize("gated", [silu_mul, gelu_mul, lambda x: soft_cap(x.clone(), 30.0)])
    def test_every_number_of_half_width_is_on_its_own(self, gated) -> None:
        """Two at a time, where loops end at once, against all together."""
        every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
        every = every[every.isfinite()].unflatten(0, (-1, 1)).expand(-1, 2).contiguous()
        whole = gated(every)
        pairs = torch.cat([gated(every[i : i + 1]) for i in range(0, len(every), 7)])
        assert torch.equal(pairs.nan_to_num(7.0), whole[::7].nan_to_num(7.0))


def test_a_soft_cap_bends_towards_the_cap() -> None:
    x = torch.tensor([0.0, 0.01, -1.0, 5.0, 1000.0, -1000.0])
    wanted = 3.0 * torch.tanh(x.double() / 3.0)
    assert torch.allclose(soft_cap(x, 3.0).double(), wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_land_in_their_rows_and_nowhere_else(dtype: torch.dtype) -> None:
    cache = torch.zeros(4, 5, 16 * 8, dtype=dtype)
    kv = rand(6, 4, 8, dtype=dtype)
    where = [3, 79, 16, 17, 40, 0]
    write_kv(cache, kv, torch.tensor(where))
    rows = cache.view(4, 80, 8)
    for i, row in enumerate(where):
        assert torch.equal(rows[:, row], kv[i])
    untouched = [row for row in range(80) if row not in where]
    assert not rows[:, untouched].any()
