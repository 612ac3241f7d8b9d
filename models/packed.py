"""A matrix in few bits: codes in groups of 32 inputs, a scale and a minimum for each group.

Made by `quantise` and `gguf_blocks`, kept on disk by `packed_file`, handed out by `checkpoint`. The
products are `kernels.quant_linear`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
MULTIPLE = 16  # outputs are computed so many at a time
BITS = (4, 8)


def fits(shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape can be a packed matrix: [N, K] in whole groups and tiles."""
    return len(shape) == 2 and shape[0] % MULTIPLE == 0 and shape[1] % GROUP == 0


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """A weight [N, K]: weight = scale * code + minimum, both of the code's output and group.

    bits: 4 or 8. codes: uint8 [N, K * bits / 8]; of 4 bits, byte j of a group's 16 holds the code
    of input j in its low half and that of input j + 16 in its high half. scales, minima: float16
    [N, K / 32].
    """

    bits: int
    codes: Tensor
    scales: Tensor
    minima: Tensor

    def __post_init__(self) -> None:
        outputs, groups = self.scales.shape
        assert self.bits in BITS, f"codes of {self.bits} bits are not known"
        assert self.codes.shape == (outputs, groups * GROUP * self.bits // 8), "codes do not fit"
        assert self.minima.shape == self.scales.shape, "a group has a scale and a minimum"
        assert self.codes.dtype == torch.uint8, "codes are unsigned bytes"
        assert self.scales.dtype == self.minima.dtype == torch.float16, "scales are float16"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs and inputs."""
        return self.scales.shape[0], self.scales.shape[1] * GROUP

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.minima.nbytes

    def unpacked(self) -> Tensor:
        """The codes one by one: uint8 [N, K]."""
        return self.codes if self.bits == 8 else _apart(self.codes)

    def dequantised(self) -> Tensor:
        """The weights, float32 [N, K]."""
        outputs, inputs = self.shape
        weights = self.unpacked().float().view(outputs, -1, GROUP)
        weights.mul_(self.scales.float()[:, :, None]).add_(self.minima.float()[:, :, None])
        return weights.view(outputs, inputs)

    def embed(self, ids: Tensor) -> Tensor:
        """The rows `ids` [T] of the matrix, float32 [T, K]; no other row is dequantised."""
        parts = (part.index_select(0, ids) for part in (self.codes, self.scales, self.minima))
        return PackedMatrix(self.bits, *parts).dequantised()

    def rows(self, start: int, end: int) -> PackedMatrix:
        """The outputs from `start` to before `end`, as views."""
        parts = (part[start:end] for part in (self.codes, self.scales, self.minima))
        return PackedMatrix(self.bits, *parts)

    def promoted(self) -> PackedMatrix:
        """The same weights with codes of 8 bits."""
        return PackedMatrix(8, self.unpacked(), self.scales, self.minima)


def joined(parts: Sequence[PackedMatrix]) -> PackedMatrix:
    """Several matrices of the same inputs as one, their outputs in order. Where some have codes of
    8 bits all get them, which changes no weight."""
    if len(parts) == 1:
        return parts[0]
    if len({part.bits for part in parts}) > 1:
        parts = [part.promoted() for part in parts]
    return PackedMatrix(
        parts[0].bits,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.minima for part in parts]),
    )


def in_halves(codes: Tensor) -> Tensor:
    """Codes below 16, uint8 [N, K] → two per byte [N, K / 2], as `PackedMatrix` keeps them."""
    low, high = codes.view(len(codes), -1, 2, GROUP // 2).unbind(2)
    return (low | high << 4).view(len(codes), -1)


def _apart(codes: Tensor) -> Tensor:
    halves = codes.view(len(codes), -1, 1, GROUP // 2)
    return torch.cat((halves & 15, halves >> 4), 2).view(len(codes), -1)
