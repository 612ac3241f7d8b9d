"""The native kernels as Python calls them: structs, and a workspace of threads and memory.

Used by `models.native` and `sampler`. The structs are those of the C sources, field by field;
addresses are of tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..query_tiles import Span
from .build import load

GROUP = 32
LANES = 16


class Matrix(Structure):
    """tiles: see `tiles.py`. bias: float32 [outputs], or None. stays: whether the tiles are to stay
    in the caches."""

    _fields_ = (
        ("tiles", c_void_p), ("bias", c_void_p), ("outputs", c_int32), ("inputs", c_int32),
        ("bits", c_int32), ("stays", c_int32),
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


class Table(Structure):
    """An embedding: rows bf16 [tokens, width], or tiles of so many bits, the other None."""

    _fields_ = (
        ("rows", c_void_p), ("tiles", c_void_p), ("tokens", c_int64), ("width", c_int32),
        ("bits", c_int32),
    )  # fmt: skip


class Passage(Structure):
    """What goes through `count` layers: hidden float32 [rows, H], in place.

    embedding, tokens: the Table that hidden is to begin with, and int64 [rows]; None where hidden
    is given. states: float32 [rows, H] beside it, of a head; token_norm, state_norm: of the two;
    normed_residual: whether the head adds to the normed state. taps: int32 [tap_count] ascending,
    after how many layers hidden is kept in tapped, bf16 [rows, tap_count * H]. norm: the final one,
    in place, or None.
    """

    _fields_ = (
        ("layers", c_void_p), ("hidden", c_void_p), ("embedding", POINTER(Table)),
        ("tokens", c_void_p), ("states", c_void_p), ("token_norm", c_void_p),
        ("state_norm", c_void_p), ("taps", c_void_p), ("tapped", c_void_p), ("norm", c_void_p),
        ("count", c_int32), ("tap_count", c_int32), ("normed_residual", c_int32),
        ("reserved", c_int32),
    )  # fmt: skip


class Inputs(Structure):
    """Rows of a product: single float32 or half bf16 [rows, inputs], the other None. norm: float32
    [inputs] and its eps, of single; or None. y: float32 [rows, outputs]."""

    _fields_ = (
        ("single", c_void_p), ("half", c_void_p), ("norm", c_void_p), ("y", c_void_p),
        ("rows", c_int32), ("eps", c_float),
    )  # fmt: skip


class Choice(Structure):
    """Rows of logits float32, `stride` apart, and of each its parameters: float32, but for top_k
    and keys, which are int64. tokens: int64 [width] or None. chosen: int64 [rows]."""

    _fields_ = (
        ("logits", c_void_p), ("stride", c_int64), ("rows", c_int32), ("width", c_int32),
        ("temperature", c_void_p), ("typical_p", c_void_p), ("top_p", c_void_p),
        ("min_p", c_void_p), ("top_k", c_void_p), ("keys", c_void_p), ("tokens", c_void_p),
        ("chosen", c_void_p),
    )  # fmt: skip


class Line(Structure):
    """A sequence that guesses are wanted for. states: bf16 [count, S], the target's, of the token
    before each of `count` known ones from position `start` on. origin: where a block begins, before
    which they see nothing; table: where the block table from there on begins in `Rounds.tables`.
    guesses: how many are wanted, at least one. finite: afterwards, whether all its states were."""

    _fields_ = (
        ("states", c_void_p), ("top_k", c_int64), ("seed", c_int64), ("temperature", c_float),
        ("typical_p", c_float), ("top_p", c_float), ("min_p", c_float), ("count", c_int32),
        ("start", c_int32), ("origin", c_int32), ("table", c_int32), ("guesses", c_int32),
        ("finite", c_int32),
    )  # fmt: skip


class Rounds(Structure):
    """Guesses of a head. passage: with its layers and norms. fuse: of the target's states; output:
    behind a norm, float32 [H]. ids: int64 [outputs], the tokens that columns stand for. tokens:
    int64 [rows], of the lines in turn. lines: those that want more guesses come first. guesses:
    int64 [count, guesses of the first line]."""

    _fields_ = (
        ("model", POINTER(Model)), ("passage", POINTER(Passage)), ("fuse", POINTER(Matrix)),
        ("output", POINTER(Matrix)), ("norm", c_void_p), ("ids", c_void_p), ("tokens", c_void_p),
        ("tables", c_void_p), ("lines", POINTER(Line)), ("guesses", c_void_p), ("count", c_int32),
        ("rows", c_int32), ("block_size", c_int32), ("blocks", c_int32),
    )  # fmt: skip


@cache
def library(folder: Path) -> ctypes.CDLL:
    """The compiled kernels, kept in `folder`. Raises build.Unavailable."""
    lib = load(folder)
    lib.paceline_workspace.restype = c_void_p
    lib.paceline_workspace.argtypes = [c_int]
    lib.paceline_workspace_free.argtypes = [c_void_p]
    lib.paceline_layers.argtypes = [c_void_p, POINTER(Model), POINTER(Passage), POINTER(Step)]
    lib.paceline_linear.argtypes = [c_void_p, POINTER(Matrix), POINTER(Inputs)]
    lib.paceline_choose.argtypes = [c_void_p, POINTER(Choice)]
    lib.paceline_finite.argtypes = [c_void_p, c_void_p, c_int, c_int, c_void_p]
    lib.paceline_finite.restype = None
    lib.paceline_rounds.argtypes = [c_void_p, POINTER(Rounds)]
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

    def layers(self, model: Model, passage: Passage, step: Step) -> None:
        """Take a step's rows through layers. Raises IndexError where a token has no embedding."""
        _check(self._lib.paceline_layers(self._address, byref(model), byref(passage), byref(step)))

    def rounds(self, rounds: Rounds) -> None:
        """Draw all guesses. Raises IndexError where a known token has no embedding."""
        _check(self._lib.paceline_rounds(self._address, byref(rounds)))

    def linear(
        self, matrix: Matrix, x: Tensor, y: Tensor, norm: Tensor | None = None, eps: float = 0.0
    ) -> None:
        """y [rows, outputs] float32 = x [rows, inputs] · matrix. x: float32 or bf16; norm: float32
        [inputs], by which x in float32 is normed first. All are contiguous."""
        at = x.data_ptr()
        single, half = (at, None) if x.dtype == torch.float32 else (None, at)
        own = None if norm is None else norm.data_ptr()
        inputs = Inputs(single, half, own, y.data_ptr(), len(x), eps)
        _check(self._lib.paceline_linear(self._address, byref(matrix), byref(inputs)))

    def choose(self, choice: Choice) -> None:
        _check(self._lib.paceline_choose(self._address, byref(choice)))

    def finite(self, x: Tensor) -> Tensor:
        """Whether each row of x [N, W] float32, contiguous, holds finite numbers only: bool [N]."""
        rows, width = x.shape
        found = torch.empty(rows, dtype=torch.bool)
        self._lib.paceline_finite(self._address, x.data_ptr(), rows, width, found.data_ptr())
        return found


def _check(done: int) -> None:
    if done < 0:
        raise IndexError("a token has no embedding")
    if not done:
        raise MemoryError("there is no memory for the step's intermediate results")


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
