"""A model directory's tensors: read from safetensors into memory, and written there by converters.

Called by whoever loads a decoder, and by `gguf`. Knows files and names, not what they mean: the
decoder checks that it got what it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelError
from .progress import Progress, silent

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_weights(directory: Path | str, progress: Progress = silent) -> dict[str, torch.Tensor]:
    """Every tensor of a Hugging Face directory by name, on the CPU, in the dtype it is stored in.

    Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Reports
    the stage "load" in bytes. Raises ModelError naming the file, shard or tensor that is missing
    or damaged.
    """
    shards = _shards(Path(directory))
    total = sum(path.stat().st_size for path in shards)
    tensors: dict[str, torch.Tensor] = {}
    done = 0
    progress("load", 0, total)
    for path, names in shards.items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in _wanted(path, names, file.keys()):
                    # a copy: views of the mapped file would fault in during the first steps
                    tensor = tensors[name] = file.get_tensor(name).clone()
                    done += tensor.nbytes
                    progress("load", done, total)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
    progress("load", total, total)
    return tensors


def stored_shapes(directory: Path | str) -> dict[str, tuple[int, ...]] | None:
    """Shapes of the tensors that `load_weights` would read, by name; None where the directory holds
    no weights at all. Reads headers only. Raises ModelError as `load_weights` does."""
    directory = Path(directory)
    if not ((directory / WEIGHTS).is_file() or (directory / INDEX).is_file()):
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for path, names in _shards(directory).items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in _wanted(path, names, file.keys()):
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
    return shapes


def _shards(directory: Path) -> dict[Path, set[str] | None]:
    """The files to read, with the tensors each must hold (None: whatever it holds)."""
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory")
    if (directory / WEIGHTS).is_file():
        return {directory / WEIGHTS: None}
    if not (directory / INDEX).is_file():
        raise ModelError(f"{directory} has neither {WEIGHTS} nor {INDEX}{_instead(directory)}")
    shards: dict[Path, set[str] | None] = {}
    for name, shard in _weight_map(directory / INDEX).items():
        names = shards.setdefault(directory / shard, set())
        assert names is not None
        names.add(name)
    for path in shards:
        if not path.is_file():
            raise ModelError(f"{directory / INDEX} names the shard {path.name}, which is missing")
    return shards


def _instead(directory: Path) -> str:
    found = sorted(p.name for p in directory.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    return f"; {found[0]} is a pickle file, which is not read: convert it" if found else ""


def _weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(shard) for name, shard in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} holds no weight_map of tensors to files: {error!r}") from error


def _wanted(path: Path, names: set[str] | None, held: Iterable[str]) -> list[str]:
    held = list(held)
    if names is None:
        return held
    if missing := sorted(names.difference(held)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{path} lacks the tensor {missing[0]}{more} that {INDEX} puts there")
    return [name for name in held if name in names]


def write_weights(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    slabs: Callable[[str], Iterable[torch.Tensor]],
    progress: Progress = silent,
) -> None:
    """Write a bf16 safetensors file without holding it in memory.

    `slabs(name)` yields the tensor's rows as consecutive bf16 pieces, together of `shapes[name]`.
    Reports the stage "convert" in bytes.
    """
    sizes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
    total, done = sum(sizes.values()), 0
    progress("convert", 0, total)
    with path.open("wb") as file:
        file.write(_header(shapes, sizes))
        for name in shapes:
            end = done + sizes[name]
            for slab in slabs(name):
                assert slab.dtype == torch.bfloat16, "write_weights writes bf16"
                done += file.write(slab.contiguous().view(torch.uint8).numpy().data)
                progress("convert", done, total)
            assert done == end, f"{name} came with another size than its shape says"


def _header(shapes: dict[str, tuple[int, ...]], sizes: dict[str, int]) -> bytes:
    """Safetensors: eight bytes of length, then JSON padded with spaces to a multiple of eight."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        span = [offset, offset := offset + sizes[name]]
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": span}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
