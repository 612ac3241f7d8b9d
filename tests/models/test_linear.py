"""Rows of a product keep their bits whatever stands beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from paceline.models import linear
from paceline.models.linear import Linear

# (out, in), among them shapes for which libraries use another kernel for a single bf16 row.
SHAPES = [(960, 576), (576, 1536), (1024, 2048), (100, 36)]


@pytest.fixture(params=["packed", "plain"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    linear.padding.cache_clear()
    if request.param == "plain":
        monkeypatch.setattr(linear, "_packed", lambda weight, bias: None)
    yield request.param
    linear.padding.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_on_their_own(layout: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator).to(dtype)
    x = torch.randn(150, shape[1], generator=generator).to(dtype)
    product = Linear(weight, bias)
    whole = product(x)
    for count in (*range(1, 41), 64, 80, 100, 128):
        assert torch.equal(product(x[3 : 3 + count]), whole[3 : 3 + count]), count
    exact = x.double() @ weight.double().T + bias.double()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(whole.double(), exact, rtol=tolerance, atol=tolerance * shape[1] ** 0.5)


def test_a_plain_product_occupies_its_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    linear.padding.cache_clear()
    monkeypatch.setattr(linear, "_packed", lambda weight, bias: None)
    weight = torch.ones(8, 4)
    assert Linear(weight).nbytes == 8 * 4 * 4
    assert Linear(weight, torch.ones(8)).nbytes == 8 * 4 * 4 + 8 * 4
    linear.padding.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (8, 4), (151, 64), (1000, 17), (513, 96)])
def test_what_a_product_occupies_is_known_before_it_is_made(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    made = Linear(torch.ones(shape, dtype=dtype), torch.ones(shape[0], dtype=dtype))
    bias = shape[0] * dtype.itemsize
    assert made.nbytes == linear.matrix_bytes(*shape, dtype, "cpu") + bias
    assert made.nbytes >= (shape[0] * shape[1] + shape[0]) * dtype.itemsize
    assert linear.matrix_bytes(*shape, dtype, "cuda") == shape[0] * shape[1] * dtype.itemsize


def test_padding_is_as_little_as_the_product_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is only right in fours is found out, and then run in fours."""
    seen: list[int] = []

    def moody(weight: torch.Tensor, bias: torch.Tensor | None) -> linear.Product:
        def run(x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return x @ weight.T * (1.0 if len(x) % 4 == 0 else 1.0 + 1e-6)

        run.nbytes = weight.nbytes  # type: ignore[attr-defined]
        return run

    linear.padding.cache_clear()
    monkeypatch.setattr(linear, "_packed", moody)
    product = Linear(torch.eye(16))
    seen.clear()
    assert torch.equal(product(torch.ones(5, 16)), torch.ones(5, 16))
    assert seen == [8]
    linear.padding.cache_clear()


def test_a_product_that_no_padding_makes_exact_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def moody(weight: torch.Tensor, bias: torch.Tensor | None) -> linear.Product:
        def run(x: torch.Tensor) -> torch.Tensor:
            return x @ weight.T * (1.0 + 1e-6 * len(x))

        run.nbytes = weight.nbytes  # type: ignore[attr-defined]
        return run

    linear.padding.cache_clear()
    assert Linear(torch.eye(16)).exact
    linear.padding.cache_clear()
    monkeypatch.setattr(linear, "_packed", moody)
    assert not Linear(torch.eye(16)).exact
    linear.padding.cache_clear()
