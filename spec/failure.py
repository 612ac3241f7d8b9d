"""How far a failed step reaches. Given to the executor by the composition root."""

from __future__ import annotations

import torch

from .plan import FailureKind

_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "status_alloc_failed")
_DEVICE = ("cuda error", "cuda driver error", "hip error", "device-side assert", "cudnn error")


def classify(error: BaseException) -> FailureKind:
    """`memory` if fewer rows would have fitted, `device` if nothing will run any more, or `step`.

    Accelerators report an exhausted memory and their own death by exceptions of their own or by
    the text of a RuntimeError, depending on the library that met it.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "memory"
    if isinstance(error, RuntimeError):
        text = str(error).lower()
        if any(sign in text for sign in _MEMORY):
            return "memory"
        if isinstance(error, torch.AcceleratorError) or any(sign in text for sign in _DEVICE):
            return "device"
    return "step"
