"""The native kernels as Python calls them: structs, and a workspace of threads and memory.

Used by `models.native`. The structs are those of `layer.c`, `matrix.h` and `attention.h`, field by
field; addresses are of tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
from torch import Tensor

from ..query_tiles import Span
from .build import load

GROUP = 32
LANES = 16


class Matrix(Structure):
    """tiles: see `tiles.py`. bias: float32 [outputs], or None."""

    _fields_ = (
        ("tiles", c_void_p), ("bias", c_void_p), ("outputs", c_int32), ("inputs", c_int32),
        ("bits", c_int32), ("reserved", c_int32),
    )  # fmt: skip


class Layer(Structure):
    """cache: bf16 [2 * kv_heads, blocks, block_size * dim]; norms are float32."""

    _fields_ = (
        ("attention_norm", c_void_p), ("mlp_norm", c_void_p), ("head_norms", c_void_p),
        ("qkv", Matrix), ("o", Matrix), ("gate_up", Matrix), ("down", Matrix),
        ("cache", c_void_p),
    )  # fmt: skip


class Model(Structure):
    """cosine, sine: float32 [positions, dim]."""

    _fields_ = (
        ("hidden", c_int32), ("heads", c_int32), ("kv_heads", c_int32), ("dim", c_int32),
        ("inner", c_int32), ("eps", c_float), ("scale", c_float), ("reserved", c_int32),
        ("cosine", c_void_p), ("sine", c_void_p),
    )  # fmt: skip


class Step(Structure):
    """positions, where: int64 [rows]. span: int32 [spans, 4], of each its first row, its rows, its
    first position, and where its block table begins in `tables`, int32."""

    _fields_ = (
        ("rows", c_int32), ("spans", c_int32), ("block_size", c_int32), ("blocks", c_int32),
        ("positions", c_void_p), ("where", c_void_p), ("span", c_void_p), ("tables", c_void_p),
    )  # fmt: skip


@cache
def library(folder: Path) -> ctypes.CDLL:
    """The compiled kernels, kept in `folder`. Raises build.Unavailable."""
    lib = load(folder)
    lib.paceline_workspace.restype = c_void_p
    lib.paceline_workspace.argtypes = [c_int]
    lib.paceline_workspace_free.argtypes = [c_void_p]
    lib.paceline_layers.argtypes = [
        c_void_p, POINTER(Model), POINTER(Layer), c_int, POINTER(Step), c_void_p, c_void_p,
    ]  # fmt: skip
    lib.paceline_linear.argtypes = [c_void_p, POINTER(Matrix), c_void_p, c_int, c_void_p]
    return lib


class Workspace:
    """Threads that compute together, and memory for what lies between two operations.

    One call at a time, from any thread. Raises MemoryError.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self._lib = library(folder)
        self._address = self._lib.paceline_workspace(threads)
        if not self._address:
            raise MemoryError(f"the system has no {threads} threads for the native kernels")
        weakref.finalize(self, self._lib.paceline_workspace_free, self._address)

    def layers(
        self, model: Model, layers: ctypes.Array[Layer], first: int, count: int, step: Step,
        hidden: Tensor, given: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Add the output of `count` layers from the first on to hidden [rows, H], float32.

        given: what the first layer's attention projects in place of its normed hidden, float32.
        """
        begin = ctypes.cast(byref(layers, first * ctypes.sizeof(Layer)), POINTER(Layer))
        inputs = None if given is None else given.data_ptr()
        if not self._lib.paceline_layers(
            self._address, byref(model), begin, count, byref(step), hidden.data_ptr(), inputs
        ):
            raise MemoryError("there is no memory for the step's intermediate results")

    def linear(self, matrix: Matrix, x: Tensor, y: Tensor) -> None:
        """y [rows, outputs] = x [rows, inputs] · matrix, both float32 and contiguous."""
        rows = x.shape[0]
        if not self._lib.paceline_linear(
            self._address, byref(matrix), x.data_ptr(), rows, y.data_ptr()
        ):
            raise MemoryError("there is no memory for the product's intermediate results")


class Spans:
    """The arrays that a step points to."""

    def __init__(self, spans: Sequence[Span]) -> None:
        sizes = np.array([(s.count, s.start, len(s.blocks)) for s in spans], np.int32)
        ends = sizes.cumsum(0, dtype=np.int32)
        rows, tables = ends[:, 0] - sizes[:, 0], ends[:, 2] - sizes[:, 2]
        self.table = np.stack((rows, sizes[:, 0], sizes[:, 1], tables), 1)
        self.blocks = np.concatenate([np.asarray(s.blocks, np.int32) for s in spans])


def step_of(
    positions: Tensor, where: Tensor, spans: Sequence[Span], block_size: int, blocks: int
) -> Step:
    """A step over spans whose rows are packed in this order. positions, where: int64 [rows], kept
    alive by the caller. blocks: of the whole pool."""
    arrays = Spans(spans)
    step = Step(
        len(positions), len(spans), block_size, blocks, positions.data_ptr(), where.data_ptr(),
        arrays.table.ctypes.data, arrays.blocks.ctypes.data,
    )  # fmt: skip
    step.arrays = arrays  # as long as the step lives
    return step
