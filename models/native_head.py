"""A head draft beside a native decoder: the same kernels, its weights in 8 bits.

Made by `spec.drafts` in the place of a `head.Head`, whose method and checkpoint it shares. What a
draft computes decides nothing but how often its guesses hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import pointer

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native.library import Passage, Table
from ..kernels.native.tiles import fits
from .batch import Batch
from .head import FIRST
from .head_config import HeadConfig
from .layout import EMBEDDING, OUTPUT
from .native import NativeDecoder
from .native_layers import NativeLayers
from .native_rounds import Course, NativeRounds
from .packed import PackedMatrix
from .quantise import quantise

BITS = 8


def suits(config: HeadConfig, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the native kernels compute a head with tensors of these shapes."""
    multiplied = [it for name, it in shapes.items() if len(it) == 2 and name != EMBEDDING]
    whole = all(fits(*shape) for shape in multiplied)
    return whole and config.head_dim % 64 == 0 and not config.family.gemma


class NativeHead:
    """As `head.Head`; states and logits are in single precision."""

    device = torch.device("cpu")
    dtype = torch.bfloat16

    def __init__(
        self, config: HeadConfig, tensors: dict[str, Tensor], target: NativeDecoder
    ) -> None:
        """tensors: as `head.load_head_tensors` gives them, with the target's rows as
        `lm_head.weight` where the checkpoint has none; emptied on the way."""
        self.config = config
        self.sampler = target.sampler
        self._target = target  # whose table it may be
        self.target_ids = tensors.pop("d2t")

        def quantised(name: str) -> PackedMatrix:
            return quantise(tensors.pop(name), BITS)

        layers = self._layers = NativeLayers(config, tensors, quantised, target.space, stays=True)
        own = tensors.pop(EMBEDDING, None)
        self._table = target.table
        if own is not None:
            rows = layers.keep(own.to(self.dtype))
            self._table = Table(rows.data_ptr(), None, *rows.shape, 0)
        assert self._table.width == config.hidden_size, "an embedding is as wide as the head"
        self._fc = layers.product(["fc.weight"])
        self._embedding_norm = layers.vector(FIRST + "input_layernorm.weight")
        self._state_norm = layers.vector(FIRST + "hidden_norm.weight")
        layers.add(FIRST, attention_norm=None)
        for i in range(1, config.layers):
            layers.add(f"layers.{i}.")
        self._norm = layers.vector("norm.weight")
        self._output = layers.product([OUTPUT])
        positions = max(config.max_position, target.config.max_position)
        layers.finish(config.rope, positions, config.scale)
        self._rounds = NativeRounds(
            layers, self._passage(), self._fc, self._output, self._norm, self.target_ids
        )
        self.weight_bytes = layers.nbytes
        tensors.clear()

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [T, len(taps) * target_hidden_size] → [T, H], what `forward` reads.
        Zeros, which stand for a state that is not known, stay zeros."""
        return self._fc(states)

    def forward(self, batch: Batch, states: Tensor, caches: Sequence[LayerKv]) -> Tensor:
        """The head's own states [T, H], before the final norm, as `head.Head.forward`."""
        states = states.contiguous()
        hidden = torch.empty_like(states)
        passage = self._passage()
        passage.hidden, passage.states = hidden.data_ptr(), states.data_ptr()
        passage.tokens = batch.tokens.data_ptr()
        self._layers.run(self._layers.step(batch, caches), passage)
        return hidden

    def guesses(
        self, courses: Sequence[Course], caches: Sequence[LayerKv]
    ) -> list[list[int] | None]:
        """As many guesses as each course wants, as `fuse`, `forward`, `logits` and the sampler make
        them round by round; None where its states are not finite."""
        return self._rounds.draw(courses, caches)

    def _passage(self) -> Passage:
        return Passage(
            embedding=pointer(self._table),
            token_norm=self._embedding_norm.data_ptr(),
            state_norm=self._state_norm.data_ptr(),
            normed_residual=self.config.norm_before_residual,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """States [S, H] that `forward` returned → [S, D], over the head's own tokens."""
        return self._output(hidden, self._norm, self.config.rms_eps)
