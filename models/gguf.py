"""Convert a GGUF file into a Hugging Face directory, once: names translated, dequantised to bf16,
and quantised matrices once more in few bits.

Called by `source`. Reading, the config and the tokenizer are in `gguf_file`, `gguf_config` and
`gguf_tokenizer`; here are the tensors. Memory in use stays at a slab of rows, whatever the size
of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, ReaderTensor, get_tensor_name_map
from gguf.quants import dequantize

from . import gguf_config
from .cache import publish
from .errors import ModelError
from .gguf_blocks import FLOATS, bits_of, packed
from .gguf_file import GgufFile
from .gguf_tokenizer import write_tokenizer
from .layout import MODEL_EMBEDDING, OUTPUT
from .packed import PackedMatrix, fits
from .packed_file import PACKED, packed_bytes, write_packed
from .progress import Progress, part_of, silent
from .weights import WEIGHTS, write_weights

_ARCHS = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3": MODEL_ARCH.GEMMA3,
    "phi3": MODEL_ARCH.PHI3,
}
_GEMMA = ("gemma2", "gemma3")
_SINGLE = ("model.embed_tokens", "model.norm", "lm_head")
_PER_LAYER = (
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *("self_attn.q_norm", "self_attn.k_norm"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
_FUSED = (
    *("input_layernorm", "post_attention_layernorm"),
    *("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"),
)
_IGNORED = ("rope_freqs.weight", gguf_config.LONG, gguf_config.SHORT)  # told by the config
_SLAB = 1 << 23  # elements dequantised at a time: 32 MiB in fp32


def convert(gguf_path: Path, out_dir: Path, progress: Progress = silent) -> Path:
    """Make `out_dir` the Hugging Face directory of a GGUF file, and return it.

    Does nothing when `out_dir` exists; see `cache.publish` for crashes and concurrent starts.
    Reports the stage "convert" in bytes written. Raises ModelError naming what is not supported.
    """

    def build(partial: Path) -> None:
        file = GgufFile(gguf_path)
        _write_json(partial / "config.json", gguf_config.config(file))
        _write_json(partial / "generation_config.json", gguf_config.generation_config(file))
        write_tokenizer(file, partial)
        small = packed_kinds(file)
        rest = sum(packed_bytes(*kind) for kind in small.values())
        done = write_tensors(file, partial / WEIGHTS, part_of(progress, 0, rest))
        if small:
            write_matrices(file, small, partial / PACKED, part_of(progress, done, 0))

    return publish(out_dir, build)


def write_tensors(file: GgufFile, path: Path, progress: Progress) -> int:
    """Write every tensor of the file under its Hugging Face name, in bf16: so many bytes."""
    names = tensor_names(file)
    shapes = {
        names[name]: tuple(int(n) for n in reversed(tensor.shape))
        for name, tensor in file.tensors.items()
        if name in names
    }
    source = {hf: name for name, hf in names.items()}
    return write_weights(path, shapes, lambda hf: _slabs(file, source[hf]), progress)


def packed_kinds(file: GgufFile) -> dict[str, tuple[int, tuple[int, int]]]:
    """Bits and shape of every matrix that is kept in few bits too, by its Hugging Face name: those
    that are quantised and multiplied, so not an embedding that has an output beside it."""
    kinds = {}
    names = tensor_names(file)
    for name, hf in names.items():
        tensor = file.tensors[name]
        shape = tuple(int(n) for n in reversed(tensor.shape))
        looked_up = hf == MODEL_EMBEDDING and OUTPUT in names.values()
        if tensor.tensor_type not in FLOATS and fits(shape) and not looked_up:
            kinds[hf] = (bits_of(tensor.tensor_type), (shape[0], shape[1]))
    return kinds


def write_matrices(
    file: GgufFile,
    kinds: Mapping[str, tuple[int, tuple[int, int]]],
    path: Path,
    progress: Progress,
) -> None:
    """Write the matrices `kinds` in few bits."""
    source = {hf: name for name, hf in tensor_names(file).items()}

    def slabs(hf: str) -> Iterator[PackedMatrix]:
        tensor = file.tensors[source[hf]]
        data, rows = _unpermuted(file, tensor), max(1, _SLAB // kinds[hf][1][1])
        for start in range(0, len(data), rows):
            yield packed(data[start : start + rows], tensor.tensor_type)

    write_packed(path, kinds, slabs, progress)


def tensor_names(file: GgufFile) -> dict[str, str]:
    """Hugging Face name of every tensor in the file; ModelError for one that has none."""
    layers = file.need_int("block_count")
    table = get_tensor_name_map(_ARCHS[file.arch], layers)
    parts = _FUSED if file.arch == "phi3" else _PER_LAYER
    modules = [*_SINGLE, *(f"model.layers.{i}.{part}" for i in range(layers) for part in parts)]
    known = {table.get_name(module): module for module in modules}
    names = {}
    for name in file.tensors:
        stem, _, kind = name.rpartition(".")
        if name in _IGNORED:
            continue
        if stem not in known:
            raise ModelError(f"{file.path} holds the unknown tensor {name}")
        names[name] = f"{known[stem]}.{kind}"
    return names


def _slabs(file: GgufFile, name: str) -> Iterator[torch.Tensor]:
    """The rows of a tensor in Hugging Face order, dequantised in bf16, a slab at a time."""
    tensor = file.tensors[name]
    data = np.atleast_1d(_unpermuted(file, tensor))
    width = int(tensor.shape[0]) if data.ndim > 1 else 1
    rows = max(1, _SLAB // width) if data.ndim > 1 else len(data)
    for start in range(0, len(data), rows):
        slab = _dequantised(data[start : start + rows], tensor.tensor_type, file, name)
        if file.arch in _GEMMA and name.endswith("norm.weight"):
            slab -= 1.0  # llama.cpp multiplies by what is stored, transformers by one more
        yield torch.from_numpy(slab).to(torch.bfloat16)


def _dequantised(
    data: np.ndarray, kind: GGMLQuantizationType, file: GgufFile, name: str
) -> np.ndarray:
    try:
        return np.require(dequantize(data, kind), np.float32, ("C", "W"))
    except NotImplementedError as error:
        raise ModelError(
            f"{file.path}: unsupported quantisation {kind.name} of tensor {name}"
        ) from error


def _unpermuted(file: GgufFile, tensor: ReaderTensor) -> np.ndarray:
    """The stored rows, in Hugging Face's order.

    The llama architecture keeps the two halves of each rotated head interleaved, in q and k. Rows
    are quantised one by one, so they can be moved before they are dequantised.
    """
    key = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(tensor.name.split(".")[-2])
    if file.arch != "llama" or key is None:
        return tensor.data
    heads = file.of_arch(f"attention.{key}") or file.need_int("attention.head_count")
    rows = np.arange(len(tensor.data)).reshape(heads, -1, 2)
    return tensor.data[rows.swapaxes(1, 2).ravel()]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
