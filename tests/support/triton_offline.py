"""Triton without a device: kernels in its interpreter, and kernels compiled for devices elsewhere.

Triton decides when it is loaded whether it interprets, so both happen in child processes, which
this file is the program of. `interpreted` keeps one of them for the whole test run.
"""

from __future__ import annotations

import atexit
import importlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch import Tensor

from paceline.kernels.backend import Block, constexpr, jit, launch, tl
from paceline.kernels.share import odds_at

T = TypeVar("T")

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# Kernels with their arguments' types and constants, as the launchers pass them; BLOCK and WARPS are
# those of the module, unless it is said otherwise.
KERNELS = [
    (
        "limits._bounds_kernel",
        "*bf16 i32 *fp32 *fp32 *i64 *fp32 *fp32 *fp32 *fp32 i32",
        {},
    ),
    ("sample._choose_kernel", "*bf16 i32 *fp32 *i64 *fp32 *i64 *i64 i32", {}),
    ("noise._noise_kernel", "*i64 *i64 i32 *fp32 i32", {"AS_BITS": 0}),
    (
        "verify._reject_kernel",
        "*fp32 *fp32 *i64 *fp32 *i64 *i64 *i64 *i64 i32 i32",
        {"POINT": 0, "WINDOW": 16},
    ),
    ("verify._accept_kernel", "*i64 *i64 *i64 *i64 i32", {"WIDTH": 16, "WARPS": 1}),
]


def interpreted(function: Callable[..., T], *arguments: object, **settings: int) -> T:
    """What a launcher returns for CPU tensors when its kernels run in Triton's interpreter.
    settings: values of its module's globals during the call."""
    return _interpreter().call(function.__module__, function.__name__, arguments, settings)


def compiled(target: str) -> dict[str, dict[str, int]]:
    """What each kernel, compiled for one of TARGETS, uses: registers, bytes of stack and of local
    memory, spilled registers, and how many fused multiply-adds it has."""
    done = subprocess.run(
        [sys.executable, __file__, target], env=_environment("0"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    uses: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return uses


@jit
def _odds_kernel(values: Block, top: Block, out: Block, count: Block, BLOCK: constexpr) -> None:
    at = tl.arange(0, BLOCK)
    x = tl.load(values + at, mask=at < count, other=0.0)
    tl.store(out + at, odds_at(x, tl.load(top)), mask=at < count)


def triton_odds(values: Tensor, top: Tensor) -> Tensor:
    """kernels.share.odds by its Triton function. values [N], top [1], both float32."""
    out = torch.empty_like(values)
    launch(_odds_kernel, (1,), values, top, out, len(values), BLOCK=8192, warps=4)
    return out


def _environment(interpret: str) -> dict[str, str]:
    found = os.pathsep.join(filter(None, sys.path))
    own = {"TRITON_INTERPRET": interpret, "PYTHONPATH": found, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


class _Interpreter:
    """A child that answers calls one by one; it ends when its input does."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, __file__],
            env=_environment("1"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._close)

    def call(self, *job: object) -> Any:
        assert self._child.stdin
        assert self._child.stdout
        _send(self._child.stdin, job)
        ok, result = _receive(self._child.stdout)
        if not ok:
            raise AssertionError(result)
        return result

    def _close(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        self._child.wait(timeout=60)


_interpreter = cache(_Interpreter)


def _send(pipe: BinaryIO, thing: object) -> None:
    packed = io.BytesIO()
    torch.save(thing, packed)
    pipe.write(len(packed.getbuffer()).to_bytes(8, "little"))
    pipe.write(packed.getbuffer())
    pipe.flush()


def _receive(pipe: BinaryIO) -> tuple:
    size = int.from_bytes(pipe.read(8), "little")
    if not size:
        raise EOFError
    return torch.load(io.BytesIO(pipe.read(size)), weights_only=False)


def _answer(home: str, name: str, arguments: tuple, settings: dict[str, int]) -> object:
    module = importlib.import_module(home)
    before = {key: getattr(module, key) for key in settings}
    vars(module).update(settings)
    try:
        return getattr(module, name)(*arguments)
    finally:
        vars(module).update(before)


def _serve() -> None:
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    torch.set_num_threads(1)
    while True:
        try:
            job = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _send(out, (True, _answer(*job)))
        except Exception:
            _send(out, (False, traceback.format_exc()))


def _compile(target: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    uses = {}
    for name, types, extra in KERNELS:
        home, _, function = name.partition(".")
        module = importlib.import_module(f"paceline.kernels.{home}")
        kernel = getattr(module, function)
        given = iter(types.split())
        signature = {p.name: "constexpr" if p.is_constexpr else next(given) for p in kernel.params}
        constants = {"BLOCK": module.BLOCK, "WARPS": module.WARPS, **extra}
        warps = constants.pop("WARPS")
        if "BLOCK" not in signature:
            del constants["BLOCK"]
        built = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=constants),
            target=GPUTarget(*TARGETS[target]),
            options={"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False},
        )
        uses[name] = _of_ptx(built, tools) if "ptx" in built.asm else _of_amd(built.asm["amdgcn"])
    print(json.dumps(uses))


def _of_ptx(built: object, tools: Path) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tools / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    counts = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", said))
    names = {"registers": "REG", "stack": "STACK", "local": "LOCAL"}
    found = {name: int(counts[key]) for name, key in names.items()}
    return {**found, "fused": len(re.findall(r"\bfma\.", built.asm["ptx"]))}


def _of_amd(assembly: str) -> dict[str, int]:
    counts = {key: int(n) for key, n in re.findall(r"\.(\w+_count):\s+(\d+)", assembly)}
    spills = counts["vgpr_spill_count"] + counts["sgpr_spill_count"]
    return {"registers": counts["vgpr_count"], "spills": spills}


if __name__ == "__main__":
    _compile(sys.argv[1]) if sys.argv[1:] else _serve()
