"""Sampling noise as a pure function of (key, token): no generator, no state, nobody's property.

`choose` in kernels/sample.py and `reject` in kernels/verify.py call `gumbel`; the model pair and
the draft model call `noise_key`. Because a token's noise depends on nothing but its sequence's
seed, the index it will stand at and its own id, a text does not depend on batch, chunking, draft
or restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from .backend import Block, constexpr, jit, launch, on_triton, tl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Words = TypeVar("Words", "NDArray[np.int64]", Tensor)

# Constants of splitmix64 as signed 64-bit integers: 0x9E3779B97F4A7C15 is 2^64 over the golden
# ratio, the other two are its finaliser's multipliers.
_STRIDE = 0x9E3779B97F4A7C15 - 2**64
_MIX_A = 0xBF58476D1CE4E5B9 - 2**64
_MIX_B = 0x94D049BB133111EB - 2**64

_ALL = 2**64 - 1

# The largest float32 below 1: beyond it log1p(-v) would be infinite.
_ALMOST_ONE = 1.0 - 2.0**-24

BLOCK = 1024
WARPS = 4


def noise_key(seed: Words, position: Words) -> Words:
    """The 64-bit key of the token at index `position` of a sequence sampled with `seed`.

    Both are int64 arrays or tensors of one broadcastable shape (1-d at least: numpy warns of the
    intended overflow in scalars); arithmetic wraps around. The result's bits are the same from
    numpy and torch, on any device. It is splitmix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014) with the mixed seed as its starting state, so that the
    keys of neighbouring seeds are not shifted copies of each other.
    """
    return _mix64(_mix64(seed) + (position + 1) * _STRIDE)


def key_at(seed: int, position: int) -> int:
    """One `noise_key` of plain integers, as the same signed number."""
    key = _mixed(_mixed(seed) + (position + 1) * _STRIDE)
    return key - 2**64 if key >= 2**63 else key


def _mixed(z: int) -> int:
    z &= _ALL
    z = ((z ^ (z >> 30)) * (_MIX_A + 2**64)) & _ALL
    z = ((z ^ (z >> 27)) * (_MIX_B + 2**64)) & _ALL
    return z ^ (z >> 31)


def _mix64(z: Words) -> Words:
    z = (z ^ _shift64(z, 30)) * _MIX_A
    z = (z ^ _shift64(z, 27)) * _MIX_B
    return z ^ _shift64(z, 31)


def _shift64(z: Words, bits: int) -> Words:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def gumbel_reference(keys: Tensor, tokens: Tensor) -> Tensor:
    """The specification of `gumbel`."""
    bits = random_bits_reference(keys, tokens)
    # -log(-log1p(-v)) keeps v's precision near 0, which is where the large values come from.
    uniform = bits.view(torch.uint32).to(torch.float32).add_(0.5).mul_(2.0**-32)
    uniform.clamp_(max=_ALMOST_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def random_bits_reference(keys: Tensor, tokens: Tensor) -> Tensor:
    """The specification of `random_bits`: a keyed multiply-add, then the 32-bit finaliser
    "lowbias32" of C. Wellons' search for integer hashes of low bias (2018)."""
    low = keys.to(torch.int32)[:, None]
    high = (keys >> 32).to(torch.int32)[:, None] | 1
    x = tokens.to(torch.int32) * high + low
    x.bitwise_xor_(_shift32(x, 16)).mul_(0x7FEB352D)
    x.bitwise_xor_(_shift32(x, 15)).mul_(0x846CA68B - 2**32)
    return x.bitwise_xor_(_shift32(x, 16))


def _shift32(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (32 - bits)) - 1)


@jit
def bits_at(key: Block, tokens: Block) -> Block:
    """Triton: the random bits, uint32, of one key int64 and a block of token ids."""
    x = tokens.to(tl.uint32) * ((key >> 32).to(tl.uint32) | 1) + key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@jit
def gumbel_at(key: Block, tokens: Block) -> Block:
    """Triton: the noise, float32, of one key int64 and a block of token ids."""
    uniform = (bits_at(key, tokens).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, 0.999999940395355224609375)
    # log1p(-v): the logarithm of 1 - v, and to first order that of what rounding 1 - v lost.
    rest = 1.0 - uniform
    lost = uniform - (1.0 - rest)
    return -tl.log(tl.div_rn(lost, rest) - tl.log(rest))


@jit
def _noise_kernel(
    keys: Block,
    tokens: Block,
    token_stride: Block,
    out: Block,
    width: Block,
    AS_BITS: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    ids = tl.load(tokens + row * token_stride + at, mask=inside, other=0).to(tl.int32)
    key = tl.load(keys + row)
    values = bits_at(key, ids).to(tl.int32, bitcast=True) if AS_BITS else gumbel_at(key, ids)
    tl.store(out + row * width + at, values, mask=inside)


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float32 [N, M], of keys [N] int64 and token ids [M] or [N, M].

    Every element is a function of its key and token id alone, down to the bit on one device: the
    same whatever the shapes and wherever it stands; another device may round it differently.
    Adding it to logits and taking the argmax draws from their softmax (Gumbel, 1954; "the
    Gumbel-max trick").
    """
    if on_triton(keys):
        return _launch_noise(keys, tokens, torch.float32)
    return gumbel_reference(keys, tokens)


def random_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """The 32 bits behind each value of `gumbel`, as int32 [N, M], the same on every device. Read
    as unsigned numbers, they fall as the noise rises."""
    if on_triton(keys):
        return _launch_noise(keys, tokens, torch.int32)
    return random_bits_reference(keys, tokens)


def _launch_noise(keys: Tensor, tokens: Tensor, kind: torch.dtype) -> Tensor:
    rows, width = len(keys), tokens.shape[-1]
    out = torch.empty(rows, width, dtype=kind, device=keys.device)
    if out.numel():
        launch(
            _noise_kernel,
            (rows, -(-width // BLOCK)),
            keys.contiguous(),
            tokens.contiguous(),
            width if tokens.dim() == 2 else 0,
            out,
            width,
            AS_BITS=int(kind == torch.int32),
            BLOCK=BLOCK,
            warps=WARPS,
        )
    return out
