"""The machine that the settings choose: its device, its number format, its memory.

Called by the composition root and by the `plan` command. Beside the composition root the only
module of `actors` that may import torch.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch

from ..kv.budget import Machine
from ..kv.capacity import read_available_memory
from ..models.errors import ModelError
from .settings import Settings


def machine_of(
    settings: Settings, kind: Literal["cpu", "cuda"], memory: int | None = None, held: int = 0
) -> Machine:
    """The machine to plan for. memory: as said; None for what there is, and then `held` is what
    weights have taken of it already. ModelError for a GPU that is not here and was not described.
    """
    if kind == "cuda":
        if memory is None:
            if not torch.cuda.is_available():
                raise ModelError(
                    "device cuda: no GPU is here, so say with --memory how much it has"
                )
            memory = torch.cuda.mem_get_info()[1]
        return Machine("cuda", memory, settings.memory_utilization)
    return Machine("cpu", _free_memory(settings) + held if memory is None else memory)


def _free_memory(settings: Settings) -> int:
    """What this process may still have; where that cannot be read, what is wished for."""
    try:
        return read_available_memory()
    except OSError:
        if settings.kv_memory == "auto":
            raise
        return int(settings.kv_memory)


def device_of(settings: Settings) -> torch.device:
    """Where to run. ModelError for a device that is not here."""
    name: str = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda: no GPU that torch can use is here")
    return torch.device(name)


def kind_of(device: torch.device) -> Literal["cpu", "cuda"]:
    return "cuda" if device.type == "cuda" else "cpu"


def dtype_of(settings: Settings) -> torch.dtype:
    name = "bfloat16" if settings.dtype == "auto" else settings.dtype
    found: torch.dtype = getattr(torch, name)
    return found


def give_back_memory() -> None:
    """Return to the system what has been freed. The C library keeps it otherwise, and loading a
    model takes a good deal for a moment."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
