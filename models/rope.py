"""Rotary position embedding: the frequencies a config asks for, and the table made of them.

`read_rope` is called once by `config`, `rope_table` once by `decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import ModelError

# Scalings whose frequencies do not depend on the length of the sequence.
SCALINGS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """inv_freq: head_dim/2 inverse frequencies (fp32 values). attention_factor: on cos and sin."""

    kind: str
    inv_freq: tuple[float, ...]
    attention_factor: float


def read_rope(config: Any, head_dim: int, directory: Path) -> Rope:
    """Frequencies of a transformers config (rotary embeddings: Su et al. 2021).

    Raises ModelError for a scaling that changes with the sequence's length (`dynamic`,
    `longrope`), for one kept per layer, and for heads that are rotated only in part.
    """
    settings = dict(config.rope_parameters or {})
    kind = settings.get("rope_type", "default")
    if kind not in SCALINGS:
        raise ModelError(
            f"unsupported rope_type {kind!r} in {directory / 'config.json'}; "
            f"supported: {', '.join(SCALINGS)}"
        )
    for key, neutral in (("partial_rotary_factor", 1.0), ("mrope_section", None)):
        if settings.get(key, neutral) not in (neutral, None):
            raise ModelError(f"unsupported {key} {settings[key]!r} in {directory / 'config.json'}")
    if any(isinstance(value, dict) for value in settings.values()):
        raise ModelError(f"unsupported rope_parameters in {directory / 'config.json'}: per layer")
    try:
        inv_freq, factor = _frequencies(kind, config, settings, head_dim)
    except (KeyError, TypeError, ValueError) as error:
        where = directory / "config.json"
        raise ModelError(f"rope_parameters in {where} do not make a {kind}: {error!r}") from error
    return Rope(kind, tuple(inv_freq.tolist()), float(factor))


def _frequencies(
    kind: str, config: Any, settings: dict[str, Any], head_dim: int
) -> tuple[Tensor, float]:
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (settings["rope_theta"] ** exponents), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](config)
    return inv_freq, factor


class RopeTable:
    """cos and sin of every position and frequency, in the dtype to compute in.

    Built in pages of a fixed size: what a row of the table holds does not depend on its length.
    """

    PAGE = 4096

    def __init__(
        self, rope: Rope, positions: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32)
        pages = [self._page(inv_freq, rope, start) for start in range(0, positions, self.PAGE)]
        cos, sin = (torch.cat(tables)[:positions] for tables in zip(*pages, strict=True))
        self._cos = cos.to(device, dtype)
        self._sin = sin.to(device, dtype)

    def _page(self, inv_freq: Tensor, rope: Rope, start: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(start, start + self.PAGE, dtype=torch.float32)
        angles = positions[:, None] * inv_freq
        cos = angles.cos() * rope.attention_factor
        sin = angles.sin() * rope.attention_factor
        return torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [T, 1, head_dim] for positions [T], as `kernels.norm_rope.apply_rope` wants."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)
