"""From the C sources here to a loaded library: compiled once for a machine, then kept.

Called by `library`. Needs an x86-64 CPU with the vector instructions named below and a C compiler:
the system's, or the one in the Python package `ziglang`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCES = (
    "layer.c", "attention.h", "embed.h", "limits.h", "linear.h", "matrix.h", "noise.h",
    "rounds.h", "sample.h", "team.h", "vector.h", "workspace.h",
)  # fmt: skip
NEEDED = frozenset(
    ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "f16c", "fma")
)
# Contractions are written out: whoever compiles, a sum is rounded where it says so.
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-pthread")
_CC = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")
_ZIG = ("-mcpu=x86_64_v4+avx512vnni+avx512bf16",)
_SECONDS = 300


class Unavailable(RuntimeError):
    """Why there are no native kernels here, in a sentence."""


def obstacle(folder: Path) -> str | None:
    """Why `load` raises, in a sentence; None if it does not. Compiles, like it, the first time."""
    try:
        load(folder)
    except Unavailable as error:
        return str(error)
    return None


def load(folder: Path) -> ctypes.CDLL:
    """The library, compiled into `folder` unless it lies there. Raises Unavailable."""
    lacking = NEEDED - cpu_flags()
    if platform.machine() not in ("x86_64", "AMD64") or lacking:
        raise Unavailable(f"this CPU lacks {', '.join(sorted(lacking)) or 'x86-64'}")
    path = _path(folder)
    try:
        if not path.is_file():
            _compile(path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be made or loaded: {error}") from error


@cache
def cpu_flags() -> frozenset[str]:
    """What the CPU can do, in the kernel's words; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def compiler() -> list[str]:
    """The command that compiles C with the flags of its own for this CPU. Raises Unavailable."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name):
            return [found, *_CC]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", *_ZIG]
    raise Unavailable("there is no C compiler: install one, or the Python package ziglang")


def _path(folder: Path) -> Path:
    """Where what the sources and flags make is kept."""
    here, parts = Path(__file__).parent, [*_FLAGS, *_CC, *_ZIG, platform.libc_ver()[0]]
    parts += [(here / name).read_text(encoding="utf-8") for name in SOURCES]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return folder / f"paceline-{digest[:16]}.so"


def _compile(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent / SOURCES[0]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [*compiler(), *_FLAGS, "-o", str(made), str(source), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} took more than {_SECONDS} seconds") from error
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise Unavailable(f"{command[0]} cannot compile the native kernels: {last}")
        made.replace(path)  # of several processes that compile at once, any one's will do
