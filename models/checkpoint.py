"""A model directory in memory: its matrices in few bits, as far as asked for, beside its tensors.

Called by whoever loads a decoder that can multiply with packed matrices. Says which matrices get
how many bits; `quantise` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from .config import ModelConfig
from .errors import ModelError
from .layout import MODEL_EMBEDDING, OUTPUT, check_tensors, multiplied
from .packed import PackedMatrix, fits
from .packed_file import load_packed, packed_names
from .progress import Progress, part_of, silent
from .quantise import quantise, requantised
from .weights import read_weights, weights_bytes

# auto: what the directory holds in few bits. int8, int4: that, if its bits are no more, and all
# other matrices quantised now. none: every tensor as it is stored.
PackedWeights = Literal["auto", "int8", "int4", "none"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's tensors by their Hugging Face names: those in `packed` are not in `tensors`."""

    tensors: dict[str, Tensor]
    packed: dict[str, PackedMatrix]

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """The rows `ids` [T] of a matrix in whichever form it is here: [T, K], fp32 of a packed one
        and else in the dtype that it is stored in."""
        matrix = self.packed.get(name)
        return self.tensors[name][ids] if matrix is None else matrix.embed(ids)


def load_checkpoint(
    directory: Path, config: ModelConfig, mode: PackedWeights, progress: Progress = silent
) -> Checkpoint:
    """Read a directory; matrices that rows are multiplied with come in few bits, as `mode` says.

    Matrices whose shape is not one for packing stay tensors. What is packed on disk is not read in
    bf16, and what is quantised here is held in both forms one matrix at a time. Raises ModelError
    for what is damaged, does not fit the config, or cannot be quantised.
    """
    wanted = multiplied(config)
    kept = {} if mode == "none" else packed_names(directory)
    names = [name for name in kept if name in wanted]
    plain = weights_bytes(directory)
    packed = load_packed(directory, names, part_of(progress, 0, plain))
    before = sum(matrix.nbytes for matrix in packed.values())
    if mode == "int4":
        for name, matrix in packed.items():
            if matrix.bits > quantised_bits(name, mode):
                packed[name] = requantised(matrix, quantised_bits(name, mode))
    tensors = {}
    for name, tensor in read_weights(directory, part_of(progress, before, 0), frozenset(packed)):
        if mode in ("int8", "int4") and name in wanted and fits(tensor.shape):
            packed[name] = quantised(name, tensor, mode)
        else:
            tensors[name] = tensor
    check_tensors(config, tensors, packed)
    return Checkpoint(tensors, packed)


def quantised_bits(name: str, mode: PackedWeights) -> int:
    """Bits that `mode` allows a matrix at most. An output is worth 8: with 4 for its tied embedding
    alone, the demo model's perplexity rises by 6 %, with 4 for all the rest not at all."""
    return 4 if mode == "int4" and name not in (MODEL_EMBEDDING, OUTPUT) else 8


def quantised(name: str, weight: Tensor, mode: PackedWeights) -> PackedMatrix:
    """A tensor as `mode` wants it. Raises ModelError, naming it, for what cannot be quantised."""
    try:
        return quantise(weight, quantised_bits(name, mode))
    except ModelError as error:
        raise ModelError(f"{name} holds {error}") from error
