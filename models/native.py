"""A decoder whose layers the native kernels compute: weights in few bits, one call for all layers.

Made by `target` in a `Decoder`'s place where `obstacle` has nothing against it. The residual stream
is in single precision, keys and values in bf16. A row's numbers are made by the same operations in
the same order whatever other rows there are, and however many threads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import pointer
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native.library import Passage, Table, Workspace
from ..kernels.native.sampler import NativeSampler
from ..kernels.native.tiles import fits, outputs_of
from ..kernels.sampler import Sampler
from .batch import Batch
from .checkpoint import Checkpoint
from .config import ModelConfig
from .layout import MODEL_EMBEDDING, OUTPUT, expected_shapes
from .native_layers import NativeLayers

_MOST_DIM = 256
_MOST_HEADS_PER_KV = 64


def obstacle(config: ModelConfig) -> str | None:
    """Why the native kernels cannot compute a model, in a sentence; None if they can."""
    family, dim = config.family, config.head_dim
    if family.gemma or family.fused or family.activation != "silu":
        return f"{config.architecture} is none of the families that the native kernels compute"
    if any(window is not None for window in config.windows):
        return "the native kernels know no sliding windows"
    if len(set(config.ropes)) > 1 or config.score_cap or config.logit_cap:
        return "the native kernels rotate all layers alike and cap nothing"
    if dim % 64 or dim > _MOST_DIM or config.heads // config.kv_heads > _MOST_HEADS_PER_KV:
        return f"the native kernels do not compute {config.heads} heads of {dim}"
    odd = [name for name, shape in expected_shapes(config).items() if not _fits(shape)]
    if odd:
        return f"{odd[0]} is of no shape that the native kernels compute"
    return None


def _fits(shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or fits(*shape)


class NativeDecoder:
    """The model on the CPU. Weights are read-only; the caches are the caller's.

    Attributes as a `Decoder`'s; dtype is that of keys and values, and of what drafts are given.
    table: the embedding, as kernels read it; a head may have the same.
    """

    exact = True
    device = torch.device("cpu")
    dtype = torch.bfloat16

    def __init__(
        self, config: ModelConfig, checkpoint: Checkpoint, *, threads: int, folder: Path
    ) -> None:
        """checkpoint: emptied on the way. folder: where the compiled kernels are kept. Raises
        kernels.native.build.Unavailable where there are none."""
        self.config = config
        self.space = Workspace(folder, threads)
        tensors, packed = checkpoint.tensors, checkpoint.packed
        self.sampler: Sampler = NativeSampler(self.space)
        layers = self._layers = NativeLayers(config, tensors, packed.pop, self.space)
        embedding = tensors.pop(MODEL_EMBEDDING, None)
        self._embedding = None if embedding is None else layers.keep(embedding.to(self.dtype))
        self._output = layers.product([MODEL_EMBEDDING if config.tie_head else OUTPUT])
        self.table = self._table()
        self._norm = layers.vector("model.norm.weight")
        for i in range(config.layers):
            layers.add(f"model.layers.{i}.")
        layers.finish(config.ropes[0], config.max_position, config.scale)
        self.weight_bytes = layers.nbytes
        tensors.clear()
        packed.clear()

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, H] of token ids [T], in `dtype`."""
        if self._embedding is not None:
            return self._embedding.index_select(0, tokens)
        found = outputs_of(self._output.tiles, self._output.matrix.bits, tokens)
        return found.to(self.dtype)

    def forward(self, batch: Batch, caches: Sequence[LayerKv]) -> Tensor:
        """Hidden states [T, H] of the batch's rows after the final norm, in single precision."""
        return self.forward_tapped(batch, caches, ())[0]

    def forward_tapped(
        self, batch: Batch, caches: Sequence[LayerKv], taps: Collection[int]
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual stream as it was after each of `taps` layers (0: the
        embedding), in ascending order and side by side [T, len(taps) * H], in `dtype`."""
        rows, width = len(batch.tokens), self.config.hidden_size
        hidden = torch.empty(rows, width)
        states = torch.empty(rows, len(taps) * width, dtype=self.dtype)
        after = np.array(sorted(taps), np.int32)
        passage = Passage(
            hidden=hidden.data_ptr(),
            embedding=pointer(self.table),
            tokens=batch.tokens.data_ptr(),
            taps=after.ctypes.data,
            tapped=states.data_ptr(),
            tap_count=len(after),
            norm=self._norm.data_ptr(),
        )
        self._layers.run(self._layers.step(batch, caches), passage)
        return hidden, states

    def _table(self) -> Table:
        width, matrix = self.config.hidden_size, self._output.matrix
        if self._embedding is None:
            return Table(None, matrix.tiles, matrix.outputs, width, matrix.bits)
        return Table(self._embedding.data_ptr(), None, len(self._embedding), width, 0)

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] states that `forward` returned → [S, vocabulary], in single precision."""
        return self._output(hidden)
