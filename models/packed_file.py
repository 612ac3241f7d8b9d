"""`packed.safetensors` in a model directory: matrices in few bits beside those in bf16.

Written by `gguf` in slabs, read by `checkpoint`. A matrix `NAME` is three tensors, `NAME.codes`,
`NAME.scales` and `NAME.minima`; the file's metadata says of each name how many bits a code has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelError
from .packed import GROUP, PackedMatrix
from .progress import Progress, silent
from .weights import Entry, header

PACKED = "packed.safetensors"
PARTS = ("codes", "scales", "minima")


def packed_bytes(bits: int, shape: tuple[int, int]) -> int:
    """What a matrix of this shape occupies."""
    outputs, inputs = shape
    return outputs * inputs * bits // 8 + 4 * outputs * (inputs // GROUP)


def write_packed(
    path: Path,
    kinds: Mapping[str, tuple[int, tuple[int, int]]],
    slabs: Callable[[str], Iterable[PackedMatrix]],
    progress: Progress = silent,
) -> None:
    """Write matrices without holding one in memory.

    kinds: bits and shape of each. `slabs(name)` yields consecutive rows of the matrix. Reports the
    stage "convert" in bytes.
    """
    entries = {
        f"{name}.{part}": entry
        for name, (bits, shape) in kinds.items()
        for part, entry in zip(PARTS, _entries(bits, shape), strict=True)
    }
    bits_of = json.dumps({name: bits for name, (bits, _) in kinds.items()})
    top = header(entries, {"format": "pt", "bits": bits_of})
    total, done, end = sum(packed_bytes(*kind) for kind in kinds.values()), 0, len(top)
    progress("convert", 0, total)
    with path.open("wb") as file:
        file.write(top)
        for name, (bits, shape) in kinds.items():
            places = []
            for entry in _entries(bits, shape):
                places.append(end)
                end += entry.nbytes
            stops = (*places[1:], end)
            for slab in slabs(name):
                assert slab.bits == bits, f"{name} came with codes of other bits"
                for i, part in enumerate((slab.codes, slab.scales, slab.minima)):
                    file.seek(places[i])
                    raw = part.contiguous().view(torch.uint8).numpy().data
                    places[i] += file.write(raw)
                done += slab.nbytes
                progress("convert", done, total)
            assert tuple(places) == stops, f"{name} came with another size than its shape says"


def _entries(bits: int, shape: tuple[int, int]) -> tuple[Entry, Entry, Entry]:
    outputs, inputs = shape
    scales = Entry(torch.float16, (outputs, inputs // GROUP))
    return Entry(torch.uint8, (outputs, inputs * bits // 8)), scales, scales


def packed_names(directory: Path) -> dict[str, int]:
    """The matrices that a model directory holds in few bits, and their bits; {} for most.

    Raises ModelError for a file that cannot be read.
    """
    path = directory / PACKED
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            bits = json.loads((file.metadata() or {})["bits"])
            return {str(name): int(count) for name, count in bits.items()}
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"cannot read {path}: {error!r}") from error


def load_packed(
    directory: Path, names: Collection[str], progress: Progress = silent
) -> dict[str, PackedMatrix]:
    """The matrices `names` of a directory that has them, in memory.

    Reports the stage "load" in bytes. Raises ModelError for a file that is damaged.
    """
    found: dict[str, PackedMatrix] = {}
    if not names:
        return found
    path, bits = directory / PACKED, packed_names(directory)
    try:
        with safe_open(path, framework="pt") as file:
            slices = [file.get_slice(f"{name}.scales").get_shape() for name in names]
            shapes = [(rows, groups * GROUP) for rows, groups in slices]
            sizes = [packed_bytes(bits[n], s) for n, s in zip(names, shapes, strict=True)]
            done, total = 0, sum(sizes)
            progress("load", 0, total)
            for name in names:
                # copies: views of the mapped file would fault in during the first steps
                parts = (file.get_tensor(f"{name}.{part}").clone() for part in PARTS)
                found[name] = PackedMatrix(bits[name], *parts)
                done += found[name].nbytes
                progress("load", done, total)
    except (SafetensorError, OSError, KeyError, ValueError, AssertionError) as error:
        raise ModelError(f"cannot read {path}: {error!r}") from error
    return found
