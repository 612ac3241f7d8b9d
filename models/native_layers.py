"""Layers and matrices that the native kernels compute with, built of a checkpoint's tensors.

Owned by `native` and `native_head`. Weights are in few bits, norms and biases in single precision,
keys and values in bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import pointer
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native.library import (
    Layer,
    Matrix,
    Model,
    Passage,
    Rounds,
    Step,
    Workspace,
    step_of,
)
from ..kernels.native.tiles import tiled
from .batch import Batch
from .layer import Shape
from .packed import PackedMatrix, joined
from .rope import Rope, RopeTable

_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Sizes(Shape, Protocol):
    """What the kernels need to know of a decoder or a head."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...


class Product:
    """A matrix [N, K] in tiles, and its product with rows."""

    __slots__ = ("_space", "matrix", "tiles")

    def __init__(self, tiles: Tensor, matrix: Matrix, space: Workspace) -> None:
        self.tiles = tiles
        self.matrix = matrix
        self._space = space

    def __call__(self, x: Tensor, norm: Tensor | None = None, eps: float = 0.0) -> Tensor:
        """x [T, K] float32 or bf16 → [T, N] float32. norm: [K] float32, if x is float32 and to be
        normed first."""
        y = torch.empty(len(x), self.matrix.outputs)
        self._space.linear(self.matrix, x.contiguous(), y, norm, eps)
        return y


class NativeLayers:
    """Layers of one shape, and what else is made of the same checkpoint.

    tensors: a checkpoint's, taken out as they are used. take_packed: gives a matrix of it by name,
    and forgets it. space: where they are computed; a draft shares its target's, as the threads of
    another would be in the way. stays: whether the weights are so few, and used so often, that they
    are to stay in the caches. nbytes: what all that was taken occupies.
    """

    def __init__(
        self,
        config: Sizes,
        tensors: dict[str, Tensor],
        take_packed: Callable[[str], PackedMatrix],
        space: Workspace,
        *,
        stays: bool = False,
    ) -> None:
        self.nbytes = 0
        self._stays = stays
        self._config = config
        self._tensors = tensors
        self._take_packed = take_packed
        self._space = space
        self._kept: list[Tensor] = []
        self._layers: list[Layer] = []
        self._caches: Sequence[LayerKv] = ()
        self._cells: list[Tensor] = []

    def vector(self, name: str) -> Tensor:
        return self.keep(self._tensors.pop(name).float().contiguous())

    def product(self, weights: Sequence[str], biases: Sequence[str] = ()) -> Product:
        """Several matrices of the same inputs as one, their outputs side by side."""
        whole = joined([self._take_packed(name) for name in weights])
        tiles = self.keep(tiled(whole.unpacked(), whole.scales, whole.minima, whole.bits))
        bias = None
        if biases:
            parts = [self._tensors.pop(name).float() for name in biases]
            bias = self.keep(torch.cat(parts)).data_ptr()
        outputs, inputs = whole.shape
        matrix = Matrix(tiles.data_ptr(), bias, outputs, inputs, whole.bits, self._stays)
        return Product(tiles, matrix, self._space)

    def add(self, prefix: str, attention_norm: str | None = "input_layernorm") -> None:
        """One more layer, whose tensors' names begin with `prefix`. attention_norm: None where the
        layer's attention is always given its input."""
        config, layer = self._config, Layer()
        biased = {
            "qkv": config.qkv_bias, "o": config.o_bias,
            "gate_up": config.mlp_bias, "down": config.mlp_bias,
        }  # fmt: skip
        for part, names in _PARTS.items():
            weights = [f"{prefix}{name}.weight" for name in names]
            biases = [f"{prefix}{name}.bias" for name in names] if biased[part] else []
            setattr(layer, part, self.product(weights, biases).matrix)
        if attention_norm is not None:
            layer.attention_norm = self.vector(f"{prefix}{attention_norm}.weight").data_ptr()
        layer.mlp_norm = self.vector(prefix + "post_attention_layernorm.weight").data_ptr()
        if config.qk_norm:
            both_names = [prefix + f"self_attn.{name}_norm.weight" for name in "qk"]
            q, k = (self._tensors.pop(name).float() for name in both_names)
            both = torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
            layer.head_norms = self.keep(both.contiguous()).data_ptr()
        self._layers.append(layer)

    def finish(self, rope: Rope, positions: int, scale: float) -> None:
        """All layers have been added: they rotate by `rope`, up to so many positions."""
        config = self._config
        tables = RopeTable(rope, positions, torch.device("cpu"), torch.float32).tables
        self._rope = [table.contiguous() for table in tables]
        self._all = (Layer * len(self._layers))(*self._layers)
        self._model = Model(
            config.hidden_size, config.heads, config.kv_heads, config.head_dim,
            config.intermediate_size, config.rms_eps, scale, 0,
            *(table.data_ptr() for table in self._rope),
        )  # fmt: skip

    def step(self, batch: Batch, caches: Sequence[LayerKv]) -> Step:
        """A batch as the layers take it; their keys and values are in `caches`."""
        blocks, size = self.attach(caches)
        return step_of(batch.positions, batch.where, batch.spans, size, blocks)

    def run(self, step: Step, passage: Passage) -> None:
        """Take a step's rows through all layers, which the passage need not name."""
        self._space.layers(self._model, self._whole(passage), step)

    def run_rounds(self, rounds: Rounds, passage: Passage) -> None:
        """Draw guesses of a head with these layers, which need not be named; its passage neither
        names what passes."""
        rounds.model, rounds.passage = pointer(self._model), pointer(self._whole(passage))
        self._space.rounds(rounds)

    def _whole(self, passage: Passage) -> Passage:
        passage.layers, passage.count = ctypes.addressof(self._all), len(self._all)
        return passage

    def attach(self, caches: Sequence[LayerKv]) -> tuple[int, int]:
        """Keep keys and values in `caches`. Returns their blocks, and the tokens per block."""
        if caches is not self._caches:
            self._cells = [plain_cells(cache) for cache in caches]
            for layer, cells in zip(self._all, self._cells, strict=True):
                layer.cache = cells.data_ptr()
            self._caches = caches
        _, blocks, size = self._cells[0].shape
        return blocks, size // self._config.head_dim

    def keep(self, tensor: Tensor) -> Tensor:
        """The kernels hold its address as long as these layers live."""
        self._kept.append(tensor)
        self.nbytes += tensor.nbytes
        return tensor


def plain_cells(cache: LayerKv) -> Tensor:
    """A layer's keys and values [2*Hkv, blocks, block_size*D], which must be in bf16."""
    cells = getattr(cache, "cells", None)
    assert isinstance(cells, Tensor), "the native kernels know no keys and values of eight bits"
    assert cells.dtype == torch.bfloat16, f"keys and values of {cells.dtype}, not bf16"
    return cells
