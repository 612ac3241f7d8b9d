"""How far a failed step reaches is read off the exception, whoever raised it."""

from __future__ import annotations

import pytest
import torch

from paceline.spec.failure import classify


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
            "memory",
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (RuntimeError("HIP error: invalid device function"), "device"),
        (RuntimeError("CUDA error: device-side assert triggered"), "device"),
        (torch.AcceleratorError("unspecified launch failure"), "device"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "step"),
        (AssertionError("slot 3 holds sequence 4, not 5"), "step"),
        (ValueError("CUDA error in a message of our own"), "step"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert classify(error) == kind


def test_the_real_exhaustion_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert classify(caught.value) == "memory"
