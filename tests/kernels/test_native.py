"""The native kernels against dense references, and their rows alone against rows in company."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kernels.native.build import Unavailable
from paceline.kernels.native.library import (
    Layer,
    Matrix,
    Model,
    Passage,
    Step,
    Workspace,
    library,
)
from paceline.kernels.native.tiles import outputs_of, tiled
from paceline.kernels.quant_linear import linear_reference
from paceline.models.cache import default_cache_dir
from paceline.models.packed import PackedMatrix, in_halves

FOLDER = default_cache_dir() / "native"

try:
    library(FOLDER)
except Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)


def random_matrix(outputs: int, inputs: int, bits: int, generator: torch.Generator):
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    span = 2.0 / (1 << bits) / inputs**0.5
    scales = (span * (0.5 + torch.rand(outputs, inputs // 32, generator=generator))).half()
    minima = (-scales.float() * ((1 << bits) - 1) / 2).half()
    return codes, scales, minima


def dense(codes, scales, minima) -> torch.Tensor:
    groups = codes.double().view(len(codes), -1, 32)
    return (groups * scales.double()[..., None] + minima.double()[..., None]).flatten(1)


def stored(codes, scales, minima, bits):
    return (in_halves(codes) if bits == 4 else codes), scales, minima


class Native:
    """A matrix in tiles with the struct that points to it."""

    def __init__(self, codes, scales, minima, bits, bias=None):
        self.tiles, self.bias = tiled(codes, scales, minima, bits), bias
        outputs, inputs = codes.shape
        address = None if bias is None else bias.data_ptr()
        self.struct = Matrix(self.tiles.data_ptr(), address, outputs, inputs, bits)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x [T, K] as it is once its groups of 32 are in 8 bits, float64."""
    groups = x.double().view(len(x), -1, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (groups / scale).round() * scale, 0).flatten(1)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 6), st.integers(1, 6), st.sampled_from([4, 8]),
    st.sampled_from([1, 2, 3]), st.booleans(), st.integers(0, 2**20),
)  # fmt: skip
def test_a_product_is_that_of_the_weights_and_the_rounded_rows(
    rows, tiles, groups, bits, threads, biased, seed
):
    generator = torch.Generator().manual_seed(seed)
    outputs, inputs = 16 * tiles, 32 * groups
    parts = random_matrix(outputs, inputs, bits, generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    native = Native(*parts, bits, bias)
    x = torch.randn(rows, inputs, generator=generator)
    y = torch.empty(rows, outputs)
    space = Workspace(FOLDER, threads)
    space.linear(native.struct, x, y)
    want = rounded(x) @ dense(*parts).T + (0 if bias is None else bias.double())
    # A rounding of the row's own scale may carry a code to its neighbour.
    slack = 1e-5 + (x.double().abs().amax() / 127 * 1e-4) * inputs
    assert (y.double() - want).abs().max() < slack
    packed = PackedMatrix(bits, *stored(*parts, bits))
    assert torch.equal(y, linear_reference(x, packed, bias)), "not the reference's bits"
    alone = torch.empty(1, outputs)
    for row in range(rows):
        space.linear(native.struct, x[row : row + 1], alone)
        assert torch.equal(alone[0], y[row]), "a row depends on its company"


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_come_out_of_their_tiles_as_they_went_in(bits):
    generator = torch.Generator().manual_seed(bits)
    parts = random_matrix(64, 96, bits, generator)
    ids = torch.randperm(64, generator=generator)[:23]
    found = outputs_of(tiled(*parts, bits), bits, ids)
    assert torch.allclose(found.double(), dense(*parts)[ids], atol=1e-7)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so_and_in_its_row(value):
    generator = torch.Generator().manual_seed(1)
    native = Native(*random_matrix(32, 64, 4, generator), 4)
    x = torch.randn(3, 64, generator=generator)
    x[1, 5] = value
    y = torch.empty(3, 32)
    Workspace(FOLDER, 1).linear(native.struct, x, y)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


# --- layers -------------------------------------------------------------------------------------

HEADS, KV_HEADS, DIM, HIDDEN, INNER = 6, 2, 64, 96, 160
BLOCK, BLOCKS, POSITIONS = 16, 64, 400


class Tower:
    """Two random layers, their paged storage, and the same in float64.

    sharp: a factor of the norms of heads, which makes scores larger by its square.
    """

    def __init__(
        self, seed: int, threads: int, normed: bool, dim: int = DIM, *,
        heads: int = HEADS, kv_heads: int = KV_HEADS, block: int = BLOCK, sharp: float = 1.0,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        self.dim, self.keep = dim, []
        self.heads, self.kv_heads, self.block, self.sharp = heads, kv_heads, block, sharp
        self.caches = [
            torch.full((2 * kv_heads, BLOCKS * BLOCK // block, block * dim), torch.nan).bfloat16()
            for _ in range(2)
        ]
        angles = torch.rand(POSITIONS, dim // 2, generator=generator) * 6.28
        cos, sin = angles.cos(), angles.sin()
        self.cosine = torch.cat((cos, cos), 1).contiguous()
        self.sine = torch.cat((-sin, sin), 1).contiguous()
        self.model = Model(
            HIDDEN, heads, kv_heads, dim, INNER, 1e-5, dim**-0.5, 0,
            self.cosine.data_ptr(), self.sine.data_ptr(),
        )  # fmt: skip
        self.dense: list[dict[str, torch.Tensor]] = []
        self.layers = (Layer * 2)()
        for layer, cache in zip(self.layers, self.caches, strict=True):
            self._fill(layer, cache, normed, generator)
        self.space = Workspace(FOLDER, threads)

    def _fill(self, layer: Layer, cache, normed: bool, generator) -> None:
        dim, true = self.dim, {}
        shapes = {
            "qkv": ((self.heads + 2 * self.kv_heads) * dim, HIDDEN),
            "o": (HIDDEN, self.heads * dim),
            "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER),
        }  # fmt: skip
        for name, (outputs, inputs) in shapes.items():
            parts = random_matrix(outputs, inputs, 8, generator)
            bias = torch.randn(outputs, generator=generator) * 0.1
            native = Native(*parts, 8, bias)
            self.keep.append(native)
            setattr(layer, name, native.struct)
            true[name], true[name + " bias"] = dense(*parts), bias.double()
        for name in ("attention_norm", "mlp_norm"):
            weight = 0.5 + torch.rand(HIDDEN, generator=generator)
            self.keep.append(weight)
            setattr(layer, name, weight.data_ptr())
            true[name] = weight.double()
        if normed:
            weight = 0.5 + torch.rand(self.heads + self.kv_heads, dim, generator=generator)
            weight *= self.sharp
            self.keep.append(weight)
            layer.head_norms = weight.data_ptr()
            true["head_norms"] = weight.double()
        layer.cache = cache.data_ptr()
        self.dense.append(true)

    def step(self, hidden: torch.Tensor, feeds: list[tuple[int, int, list[int]]]) -> torch.Tensor:
        """feeds: first position, rows, block table."""
        positions = np.concatenate([np.arange(s, s + n) for s, n, _ in feeds]).astype(np.int64)
        where = np.concatenate(
            [
                [t[p // self.block] * self.block + p % self.block for p in range(s, s + n)]
                for s, n, t in feeds
            ]
        ).astype(np.int64)
        rows = np.cumsum([0] + [n for _, n, _ in feeds])
        begins = np.cumsum([0] + [len(t) for *_, t in feeds])
        spans = np.array(
            [(rows[i], n, s, begins[i]) for i, (s, n, _) in enumerate(feeds)], np.int32
        )
        tables = np.concatenate([t for *_, t in feeds]).astype(np.int32)
        step = Step(
            len(positions), len(feeds), self.block, self.caches[0].shape[1],
            *(a.ctypes.data for a in (positions, where, spans, tables)),
        )  # fmt: skip
        out = hidden.clone()
        passage = Passage(ctypes.addressof(self.layers), out.data_ptr(), count=2)
        self.space.layers(self.model, passage, step)
        return out

    def table(self, length: int) -> list[int]:
        """Blocks for so many positions, in an order of their own."""
        count = -(-length // self.block)
        return torch.randperm(count, generator=torch.Generator().manual_seed(count)).tolist()

    def reference(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same for one sequence from position 0 on, dense and in float64, with rounded rows."""
        x, count = hidden.double(), len(hidden)
        for true in self.dense:
            normed = rms(x, true["attention_norm"])
            heads = (rounded(normed) @ true["qkv"].T + true["qkv bias"]).view(count, -1, self.dim)
            turned = heads[:, : self.heads + self.kv_heads]
            if "head_norms" in true:
                turned = rms(turned, true["head_norms"])
            cos, sin = self.cosine[:count, None].double(), self.sine[:count, None].double()
            swapped = torch.cat(turned.chunk(2, -1)[::-1], -1)
            turned = turned * cos + swapped * sin
            q, k = turned[:, : self.heads] * self.dim**-0.5, turned[:, self.heads :]
            v = heads[:, self.heads + self.kv_heads :]
            q, k, v = (t.bfloat16().double().transpose(0, 1) for t in (q, k, v))
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 0) for t in (k, v))
            scores = q @ k.transpose(1, 2)
            scores += torch.full((count, count), -torch.inf).triu(1)
            mixed = (mixing(scores) @ v).transpose(0, 1).reshape(count, -1)
            x = x + rounded(mixed) @ true["o"].T + true["o bias"]
            normed = rms(x, true["mlp_norm"])
            gate, up = (rounded(normed) @ true["gate_up"].T + true["gate_up bias"]).chunk(2, -1)
            x = x + rounded(torch.nn.functional.silu(gate) * up) @ true["down"].T
            x = x + true["down bias"]
        return x


def mixing(scores: torch.Tensor) -> torch.Tensor:
    """A softmax of scores [heads, rows, keys] whose weights are rounded to bf16, each beside
    the largest score up to the end of its tile of 64 keys."""
    keys = scores.shape[-1]
    padded = torch.nn.functional.pad(scores, (0, -keys % 64), value=-torch.inf)
    tiles = padded.unflatten(-1, (-1, 64))
    largest = tiles.amax(-1, keepdim=True).cummax(-2).values
    weights = (tiles - largest).exp().bfloat16().double()
    weights = weights * (largest - largest[..., -1:, :]).exp()
    weights = weights.flatten(-2)[..., :keys]
    return weights / weights.sum(-1, keepdim=True)


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("normed", "dim"), [(False, 64), (True, 64), (True, 128)])
def test_layers_are_those_of_a_dense_reference(threads, normed, dim):
    tower = Tower(3, threads, normed, dim)
    hidden = torch.randn(150, HIDDEN, generator=torch.Generator().manual_seed(4))
    table = list(range(20, 40))
    got = tower.step(hidden, [(0, 150, table)]).double()
    want = tower.reference(hidden)
    # Codes on the edge between two and bf16 keys differ by their rounding.
    assert (got - want).abs().mean() < 2e-3 * want.abs().mean()
    assert (got - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_to_the_last_bit_in_any_company(threads):
    hidden = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(5))
    table = list(range(30, 50))
    whole = Tower(3, 1, True).step(hidden, [(0, 200, table)])
    rng = np.random.default_rng(threads)
    tower = Tower(3, threads, True)
    other = torch.randn(70, HIDDEN, generator=torch.Generator().manual_seed(6))
    at, far = 0, 0
    while at < 200:
        count = min(200 - at, int(rng.choice([1, 1, 2, 5, 17, 40])))
        beside = min(70 - far, int(rng.integers(0, 4)))
        feeds = [(at, count, table)]
        rows = [hidden[at : at + count]]
        if beside:
            place = int(rng.integers(0, 2))
            feeds.insert(place, (far, beside, list(range(5))))
            rows.insert(place, other[far : far + beside])
        got = tower.step(torch.cat(rows), feeds)
        own = got[beside:] if beside and place == 0 else got[:count]
        assert torch.equal(own, whole[at : at + count])
        at, far = at + count, far + beside


# Heads, KV heads, dimensions, block size: as few and as many heads for one as there may be.
SHAPES = [(6, 2, 64, 16), (2, 2, 128, 64), (7, 1, 256, 1), (64, 1, 64, 32), (33, 1, 64, 8)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), SHAPES)
@pytest.mark.parametrize("sharp", [1.0, 3.0])
def test_attention_of_any_shape_is_that_of_a_dense_reference(heads, kv_heads, dim, block, sharp):
    tower = Tower(
        7, 2, True, dim, heads=heads, kv_heads=kv_heads, block=block, sharp=sharp
    )  # fmt: skip
    hidden = torch.randn(140, HIDDEN, generator=torch.Generator().manual_seed(8))
    got = tower.step(hidden, [(0, 140, tower.table(140))]).double()
    want = tower.reference(hidden)
    assert (got - want).abs().mean() < 4e-3 * want.abs().mean()
    assert (got - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_how_its_sequence_is_cut(heads, kv_heads, dim, block, threads):
    how = {"heads": heads, "kv_heads": kv_heads, "block": block, "sharp": 3.0}
    hidden = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(9))
    whole = Tower(7, 1, True, dim, **how)
    table = whole.table(200)
    want = whole.step(hidden, [(0, 200, table)])
    around_tiles = [62, 1, 1, 1, 62, 1, 1, 2, 69]
    for counts in (around_tiles, [*range(1, 18), 47], [*range(17, 0, -1), 47], [64, 65, 63, 8]):
        assert sum(counts) == 200
        tower, at = Tower(7, threads, True, dim, **how), 0
        for count in counts:
            got = tower.step(hidden[at : at + count], [(at, count, table)])
            assert torch.equal(got, want[at : at + count]), (at, count)
            at += count


def test_the_sources_that_a_library_is_kept_by_are_all_there_are():
    from paceline.kernels.native import build

    folder = Path(build.__file__).parent
    assert sorted(build.SOURCES) == sorted(p.name for p in folder.glob("*.[ch]"))


def test_a_failing_compiler_is_told_in_a_sentence(tmp_path, monkeypatch):
    from paceline.kernels.native import build

    monkeypatch.setenv("CC", "false")
    with pytest.raises(Unavailable, match="cannot compile the native kernels"):
        build.load(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx2"}))
    with pytest.raises(Unavailable, match="this CPU lacks avx512"):
        build.load(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="there is no C compiler"):
        build.load(tmp_path)
