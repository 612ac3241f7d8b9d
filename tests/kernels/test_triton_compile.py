"""The kernels compile for devices that are not here, and keep to the registers there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from support.triton_offline import KERNELS, compiled

pytest.importorskip("triton")


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_kernels_compile_for_nvidia_without_spilling(target: str) -> None:
    uses = compiled(target)
    assert set(uses) == {name for name, _, _ in KERNELS}
    for name, use in uses.items():
        assert use["local"] == use["stack"] == 0, f"{name} on {target}: {use}"
        assert use["registers"] <= 128, f"{name} on {target}: {use}"
    # Its bits must be those of the reference, and a fused product has others.
    assert uses["limits._bounds_kernel"]["fused"] == 0


def test_kernels_compile_for_amd_without_spilling() -> None:
    uses = compiled("gfx942")
    assert set(uses) == {name for name, _, _ in KERNELS}
    assert all(use["spills"] == 0 for use in uses.values()), uses


@pytest.mark.skipif(torch.cuda.is_available(), reason="here Triton is wanted")
def test_triton_is_not_loaded_where_nothing_runs_on_it() -> None:
    script = "import sys, paceline.kernels.verify; assert 'triton' not in sys.modules"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=120)
