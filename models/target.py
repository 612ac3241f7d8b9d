"""Which decoder computes a model: torch's, or the native kernels' with weights in few bits.

Called by the composition root and by the `plan` command. `Target` is what all that compute with a
model know of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.layer_kv import LayerKv
from ..kernels.native import build
from ..kernels.sampler import Sampler
from .batch import Batch
from .checkpoint import Checkpoint, PackedWeights
from .config import ModelConfig
from .decoder import Decoder
from .errors import ModelError
from .layout import multiplied
from .native import NativeDecoder, obstacle
from .packed_file import packed_names


class Target(Protocol):
    """A decoder of either kind. Attributes as a `Decoder`'s."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def exact(self) -> bool: ...

    device: torch.device
    dtype: torch.dtype

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, H] of token ids [T], in `dtype`."""
        ...

    def forward(self, batch: Batch, caches: Sequence[LayerKv]) -> Tensor:
        """Hidden states [T, H] of the batch's rows after the final norm."""
        ...

    def forward_tapped(
        self, batch: Batch, caches: Sequence[LayerKv], taps: Collection[int]
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual stream as it was after each of `taps` layers (0: the
        embedding), in ascending order and side by side [T, len(taps) * H], in `dtype`."""
        ...

    @property
    def sampler(self) -> Sampler:
        """What chooses from its logits."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] states that `forward` returned → [S, vocabulary]."""
        ...


def weights_of(
    directory: Path,
    config: ModelConfig,
    mode: PackedWeights,
    *,
    device: str,
    dtype: torch.dtype,
    plain_kv: bool,
    folder: Path,
) -> tuple[PackedWeights, str | None]:
    """The weights that a model gets where `mode` is asked for: auto is those that its directory
    holds in few bits, if it does and the native kernels can compute them here. With it, where they
    cannot, a sentence that says why.

    plain_kv: whether keys and values are in the model's own precision. folder: of the compiled
    kernels. Raises ModelError where int8 or int4 is asked for and cannot be had.
    """
    if mode == "none":
        return mode, None
    reason = _reason(config, device=device, dtype=dtype, plain_kv=plain_kv, folder=folder)
    if mode != "auto":
        if reason is not None:
            raise ModelError(f"quantization {mode}: {reason}")
        return mode, None
    if not multiplied(config) <= packed_names(directory).keys():
        return "none", None
    return ("auto", None) if reason is None else ("none", reason)


def _reason(
    config: ModelConfig, *, device: str, dtype: torch.dtype, plain_kv: bool, folder: Path
) -> str | None:
    """Why the native kernels cannot be used, in a sentence."""
    if device != "cpu":
        return "weights in few bits are for CPUs"
    if dtype != torch.bfloat16:
        return "weights in few bits go with dtype bfloat16"
    if not plain_kv:
        return "weights in few bits go with kv_dtype auto"
    return obstacle(config) or build.obstacle(folder)


def place(
    config: ModelConfig,
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    threads: int,
    folder: Path,
) -> Target:
    """The decoder of a checkpoint, which is emptied on the way. threads, folder: of the native
    kernels, for weights in few bits. Raises ModelError."""
    if not checkpoint.packed:
        return Decoder(config, checkpoint.tensors, device=device, dtype=dtype)
    return NativeDecoder(config, checkpoint, threads=threads, folder=folder)
