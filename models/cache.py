"""Where prepared models lie on disk, and how a directory gets there: whole, or not at all.

Called by `gguf` and `source`. A directory below the cache is never changed once it has its name,
so its existence is all a later start has to check.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from .errors import ModelError

ENVIRONMENT = "PACELINE_CACHE_DIR"


def default_cache_dir() -> Path:
    """`$PACELINE_CACHE_DIR`, or `.cache` of a writable source checkout, or `~/.cache/paceline`."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(chosen).expanduser()
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file() and os.access(root, os.W_OK):
        return root / ".cache"
    return Path.home() / ".cache" / "paceline"


def publish(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the directory `target`; if it is not there, have `build(empty_directory)` fill it.

    Of several processes one builds while the others wait, then find it done. The directory gets
    its name by a rename, after its files are on disk: a crash leaves at most a `.partial` beside
    it, which the next attempt removes. Raises ModelError when the disk refuses, and what `build`
    raises.
    """
    if target.is_dir():
        return target
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(target.with_name(f".{target.name}.lock")):
            if not target.is_dir():
                _build(target, build)
    except OSError as error:
        raise ModelError(
            f"cannot write {target}: {error}; {ENVIRONMENT} chooses another place"
        ) from error
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        for path in partial.iterdir():
            _flush(path)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
