"""A decoder whose layers the native kernels compute: weights in few bits, one call for all layers.

Made by `target` in a `Decoder`'s place where `obstacle` has nothing against it. The residual stream
is in single precision, keys and values in bf16. A row's numbers are made by the same operations in
the same order whatever other rows there are, and however many threads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native.library import Workspace
from ..kernels.native.tiles import fits, outputs_of
from ..kernels.norm_rope import rms_norm
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
        layers = self._layers = NativeLayers(config, tensors, packed.pop, self.space)
        embedding = tensors.pop(MODEL_EMBEDDING, None)
        self._embedding = None if embedding is None else layers.keep(embedding.to(self.dtype))
        self._output = layers.product([MODEL_EMBEDDING if config.tie_head else OUTPUT])
        self._norm = layers.vector("model.norm.weight")
        for i in range(config.layers):
            layers.add(f"model.layers.{i}.")
        layers.finish(config.ropes[0], config.max_position, config.scale)
        self.weight_bytes = layers.nbytes
        tensors.clear()
        packed.clear()

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, H] of token ids [T], in `dtype`."""
        return self.rows(tokens).to(self.dtype)

    def rows(self, tokens: Tensor) -> Tensor:
        """The same in single precision."""
        if self._embedding is not None:
            return self._embedding.index_select(0, tokens).float()
        return outputs_of(self._output.tiles, self._output.matrix.bits, tokens)

    def forward(self, batch: Batch, caches: Sequence[LayerKv]) -> Tensor:
        """Hidden states [T, H] of the batch's rows after the final norm, in single precision."""
        return self.forward_tapped(batch, caches, ())[0]

    def forward_tapped(
        self, batch: Batch, caches: Sequence[LayerKv], taps: Collection[int]
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual stream as it was after each of `taps` layers (0: the
        embedding), in ascending order and side by side [T, len(taps) * H], in `dtype`."""
        step = self._layers.step(batch, caches)
        hidden, done, taken = self.rows(batch.tokens), 0, []
        for tap in sorted(taps):
            self._layers.advance(step, hidden, done, tap)
            taken.append(hidden.to(self.dtype))
            done = tap
        self._layers.advance(step, hidden, done, self.config.layers)
        states = torch.cat(taken, 1) if taken else hidden[:, :0]
        return rms_norm(hidden, self._norm, self.config.rms_eps), states

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] states that `forward` returned → [S, vocabulary], in single precision."""
        return self._output(hidden)
