"""Rotary position embedding: the frequencies a config asks for, and the table made of them.

`read_rope` is called by `config` for each kind of layer, `RopeTable` is made by `decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import ModelError

# Scalings whose frequencies do not depend on the length of a sequence: those of longrope do in
# other places, but here on the length that is served, so that a token's KV never changes.
SCALINGS = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """How the heads of a layer are rotated.

    inv_freq: inverse frequencies (fp32 values), half as many as elements of a head that are
    rotated, the first ones. attention_factor: on cos and sin. long_inv_freq: those in their place
    where more than `original` positions are served (LongRoPE: Ding et al. 2024).
    """

    kind: str
    inv_freq: tuple[float, ...]
    attention_factor: float
    long_inv_freq: tuple[float, ...] = ()
    original: int = 0

    def frequencies(self, positions: int) -> tuple[float, ...]:
        """Inverse frequencies of a model that serves so many positions."""
        far = bool(self.long_inv_freq) and positions > self.original
        return self.long_inv_freq if far else self.inv_freq


def read_rope(
    config: Any, head_dim: int, directory: Path, *, kind: str | None = None, partial: bool = False
) -> Rope:
    """Frequencies of a transformers config (rotary embeddings: Su et al. 2021).

    kind: of the layers, where their rotations differ. partial: whether a part of each head may be
    rotated. Raises ModelError for a scaling that changes with the sequence's length (`dynamic`),
    for ones of each layer where no kind is named, and for heads that are rotated in part.
    """
    where = directory / "config.json"
    settings = dict(config.rope_parameters or {})
    if kind is not None:
        settings = dict(settings.get(kind) or {})
    scaling = settings.get("rope_type", "default")
    if scaling not in SCALINGS:
        raise ModelError(
            f"unsupported rope_type {scaling!r} in {where}; supported: {', '.join(SCALINGS)}"
        )
    share = settings.get("partial_rotary_factor") or 1.0
    if share != 1.0 and not partial:
        raise ModelError(f"unsupported partial_rotary_factor {share!r} in {where}")
    if settings.get("mrope_section") is not None:
        raise ModelError(f"unsupported mrope_section {settings['mrope_section']!r} in {where}")
    if any(isinstance(value, dict) for value in settings.values()):
        raise ModelError(f"unsupported rope_parameters in {where}: per layer")
    try:
        return _rope(scaling, config, settings, int(head_dim * share), kind)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"rope_parameters in {where} do not make a {scaling}: {error!r}"
        ) from error


def _rope(scaling: str, config: Any, settings: dict[str, Any], dim: int, kind: str | None) -> Rope:
    if scaling == "default":
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        inv_freq = 1.0 / (settings["rope_theta"] ** exponents)
        return Rope(scaling, tuple(inv_freq.tolist()), 1.0)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    initialise = ROPE_INIT_FUNCTIONS[scaling]
    inv_freq, factor = initialise(config, layer_type=kind)
    made = Rope(scaling, tuple(inv_freq.tolist()), float(factor))
    if scaling != "longrope":
        return made
    original = int(settings["original_max_position_embeddings"])
    far, _ = initialise(config, seq_len=original + 1, layer_type=kind)
    return replace(made, long_inv_freq=tuple(far.tolist()), original=original)


class RopeTable:
    """cos and sin of every position and frequency, in the dtype to compute in.

    Built in pages of a fixed size: what a row of the table holds does not depend on its length.
    """

    PAGE = 4096

    def __init__(
        self, rope: Rope, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        inv_freq = torch.tensor(rope.frequencies(positions), dtype=torch.float32)
        pages = [self._page(inv_freq, rope, start) for start in range(0, positions, self.PAGE)]
        cos, sin = (torch.cat(tables)[:positions] for tables in zip(*pages, strict=True))
        self._cos = cos.to(device, dtype)
        self._sin = sin.to(device, dtype)

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """cos and sin of all positions, [positions, 1, R] each."""
        return self._cos, self._sin

    def _page(self, inv_freq: Tensor, rope: Rope, start: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + self.PAGE, dtype=torch.float32)
        angles = positions[:, None] * inv_freq
        cos = angles.cos() * rope.attention_factor
        sin = angles.sin() * rope.attention_factor
        return torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [T, 1, R] for positions [T] and the R elements of a head that are rotated, as
        `kernels.norm_rope.apply_rope` wants."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
