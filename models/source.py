"""From what a user calls a model to the Hugging Face directory that holds it.

Called at start by whoever serves or measures a model, and by `python -m paceline.models.source
demo`, which prepares the demo model with a progress bar.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from . import demo, hub
from .cache import default_cache_dir
from .errors import ModelError
from .progress import Progress, silent, terminal_progress

# Part of a converted directory's name: raise it when conversion writes something else.
CONVERSION = 2

ACCEPTED = (
    f"the demo model ({' or '.join(demo.ALIASES)}), a Hugging Face directory (config.json, "
    "safetensors, tokenizer.json), a .gguf file, or a hub id such as org/name"
)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def resolve(model: str, cache_dir: Path | None = None, progress: Progress = silent) -> Path:
    """The Hugging Face directory of `model`, fetched and converted if need be.

    Downloads and conversions are kept below `cache_dir` (None: `default_cache_dir()`), but for
    models of the hub, which are kept in the hub's own cache. Raises ModelError, saying what to do.
    """
    cache_dir = cache_dir or default_cache_dir()
    if model.lower() in demo.ALIASES:
        return _demo(cache_dir, progress)
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory(path)
    if path.suffix.lower() == ".gguf":
        return _gguf(path, cache_dir, progress)
    if _HUB_ID.fullmatch(model):
        return _directory(hub.snapshot(model, progress))
    raise ModelError(f"there is no model {model!r} here; accepted: {ACCEPTED}")


def companion(model: str) -> str | None:
    """The draft that comes with Paceline for a model, as `resolve` takes it; None for most."""
    own = Path(__file__).parent / "demo_draft"
    return str(own) if model.lower() in demo.ALIASES and own.is_dir() else None


def demo_directory(cache_dir: Path) -> Path:
    """Where the demo model is once it has been prepared."""
    return _converted(cache_dir, demo.GGUF, demo.SHA256)


def _demo(cache_dir: Path, progress: Progress) -> Path:
    target = demo_directory(cache_dir)
    if target.is_dir():
        return target
    return _convert(demo.fetch(cache_dir, progress), target, progress)


def _directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path.resolve()
    ggufs = sorted(path.glob("*.gguf"))
    hint = f"; for a GGUF file give its path, {ggufs[0]}" if ggufs else ""
    raise ModelError(f"{path} has no config.json, so it is not a model directory{hint}")


def _gguf(path: Path, cache_dir: Path, progress: Progress) -> Path:
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    # resolved: the snapshot of a hub cache is full of links, whose own dates say nothing
    stat = path.resolve().stat()
    target = _converted(cache_dir, path.name, f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return _convert(path, target, progress)


def _converted(cache_dir: Path, name: str, identity: str) -> Path:
    """Where the conversion of a file of this name and identity is kept."""
    digest = hashlib.sha256(f"{CONVERSION} {identity}".encode()).hexdigest()
    return (cache_dir / "converted" / f"{Path(name).stem}-{digest[:12]}").resolve()


def _convert(path: Path, target: Path, progress: Progress) -> Path:
    if target.is_dir():
        return target
    from .gguf import convert

    return convert(path, target, progress)


def main() -> int:
    """Prepare the models named on the command line; print the directory of each."""
    for model in sys.argv[1:] or ["demo"]:
        try:
            with terminal_progress() as progress:
                directory = resolve(model, progress=progress)
        except ModelError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
