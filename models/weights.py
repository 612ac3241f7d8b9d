"""A model directory's tensors: read from safetensors into memory, and written there by converters.

Called by whoever loads a decoder, by `checkpoint` and by `gguf`. Knows files and names, not what
they mean: the decoder checks that it got what it needs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelError
from .progress import Progress, silent

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CODES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


class Entry(NamedTuple):
    """What a file's header says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def load_weights(directory: Path | str, progress: Progress = silent) -> dict[str, torch.Tensor]:
    """Every tensor of a Hugging Face directory by name, on the CPU, in the dtype it is stored in.

    Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names. Reports
    the stage "load" in bytes. Raises ModelError naming the file, shard or tensor that is missing
    or damaged.
    """
    return dict(read_weights(directory, progress))


def weights_bytes(directory: Path | str) -> int:
    """Bytes of the files that `load_weights` reads: the total that it reports."""
    return sum(path.stat().st_size for path in _shards(Path(directory)))


def read_weights(
    directory: Path | str, progress: Progress = silent, skip: Collection[str] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    """`load_weights` one tensor at a time; those of `skip` are not read, and count as if."""
    shards = _shards(Path(directory))
    total = sum(path.stat().st_size for path in shards)
    done = 0
    progress("load", 0, total)
    for path, names in shards.items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in _wanted(path, names, file.keys()):
                    if name in skip:
                        done += _nbytes(file.get_slice(name))
                        continue
                    # a copy: views of the mapped file would fault in during the first steps
                    tensor = file.get_tensor(name).clone()
                    yield name, tensor
                    done += tensor.nbytes
                    progress("load", done, total)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
    progress("load", total, total)


def _nbytes(unread: Any) -> int:
    """Of a tensor that stays in its file, whose dtype is written like BF16 or F8_E4M3."""
    bits = re.search("[0-9]+", unread.get_dtype())
    return math.prod(unread.get_shape()) * (int(bits[0]) // 8 if bits else 1)


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
) -> int:
    """Write a bf16 safetensors file without holding it in memory.

    `slabs(name)` yields the tensor's rows as consecutive bf16 pieces, together of `shapes[name]`.
    Reports the stage "convert" in bytes, and returns their sum.
    """
    entries = {name: Entry(torch.bfloat16, shape) for name, shape in shapes.items()}
    total, done = sum(entry.nbytes for entry in entries.values()), 0
    progress("convert", 0, total)
    with path.open("wb") as file:
        file.write(header(entries, {"format": "pt"}))
        for name, entry in entries.items():
            end = done + entry.nbytes
            for slab in slabs(name):
                assert slab.dtype == torch.bfloat16, "write_weights writes bf16"
                done += file.write(slab.contiguous().view(torch.uint8).numpy().data)
                progress("convert", done, total)
            assert done == end, f"{name} came with another size than its shape says"
    return done


def header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """Safetensors: eight bytes of length, then JSON padded with spaces to a multiple of eight."""
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, entry in entries.items():
        span = [offset, offset := offset + entry.nbytes]
        shape = list(entry.shape)
        described[name] = {"dtype": CODES[entry.dtype], "shape": shape, "data_offsets": span}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
