"""A GGUF file opened for reading: its metadata by key, its tensors by name.

Owns the refusal of files that cannot be read at all; what the metadata means is for
`gguf_config` and `gguf_tokenizer`, what the tensors mean for `gguf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFEndian, GGUFReader, GGUFValueType, ReaderTensor

from .errors import ModelError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")


class GgufFile:
    """One memory-mapped GGUF file of a supported architecture.

    Raises ModelError for anything else: not GGUF, damaged, split, big-endian, an unknown
    architecture or tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        except Exception as error:  # the reader indexes into a damaged file however it likes
            raise ModelError(f"{path} is not a GGUF file that can be read: {error}") from error
        self.arch: str = self.need("general.architecture")
        self.tensors: dict[str, ReaderTensor] = {t.name: t for t in self._reader.tensors}
        self._refuse_unsupported()

    def _refuse_unsupported(self) -> None:
        if self.arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(
                f"unsupported GGUF architecture {self.arch!r} in {self.path}; supported: {known}"
            )
        if self._reader.endianess is not GGUFEndian.LITTLE:
            raise ModelError(f"{self.path} is a big-endian GGUF file, which is not supported")
        if (parts := self.get("split.count", 1)) > 1:
            raise ModelError(
                f"{self.path} is one of {parts} parts; join them first (llama-gguf-split --merge)"
            )

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key as Python values, or `default`."""
        field = self._reader.get_field(key)
        if field is None:
            return default
        value = field.contents()
        if field.types == [GGUFValueType.FLOAT32]:
            # the decimal that was meant: 1e-05 rather than 9.999999747378752e-06
            return float(str(np.float32(value)))
        return value

    def need(self, key: str) -> Any:
        """The value of a metadata key; ModelError when the file lacks it."""
        if (value := self.get(key)) is None:
            raise ModelError(f"{self.path} lacks the metadata key {key}")
        return value

    def of_arch(self, key: str, default: Any = None) -> Any:
        """The value of an architecture's own key, `rope.freq_base` for `llama.rope.freq_base`."""
        return self.get(f"{self.arch}.{key}", default)

    def need_int(self, key: str) -> int:
        """A whole number the architecture must state once for all layers."""
        value = self.need(f"{self.arch}.{key}")
        if not isinstance(value, int):
            raise ModelError(f"{self.path}: {self.arch}.{key} varies by layer, unsupported")
        return value

    def has(self, suffix: str) -> bool:
        """Whether any tensor's name ends so."""
        return any(name.endswith(suffix) for name in self.tensors)
