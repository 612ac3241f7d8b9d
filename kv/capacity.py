"""Capacity arithmetic: bytes of KV a token costs, blocks a budget buys, memory there is to spend.

Pure but for `read_available_memory`. Called by the composition root, which sizes the pool, and by
the `plan` command. All amounts are bytes and all errors are ValueErrors with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

KvDtype = Literal["auto", "int8"]

# cgroup v1 writes "no limit" as the largest page-aligned 63-bit number.
_UNLIMITED = 2**62

STAGED_AHEAD = 16
"""Tokens behind the last one that counts whose keys may have been staged: a draft's, at most."""


@dataclass(frozen=True, slots=True)
class KvFormats:
    """What the settings say of both models' KV. full_layers: so many of the target's layers at
    either end stay in full precision."""

    target: KvDtype = "auto"
    draft: KvDtype = "auto"
    full_layers: int = 0


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a model keeps of one token: a key and a value for each layer and KV head.

    element_bytes: of a number in full precision. block_state: bytes that it keeps of each block
    beside that of its tokens. int8: the layers that keep eight bits of a number, and a scale of two
    bytes for each token and head, and of one byte for each block and channel of a key.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2
    block_state: int = 0
    int8: range = range(0)

    def in_format(self, kv_dtype: KvDtype, full_layers: int = 0) -> KvShape:
        """The same as the settings say: "int8" is eight bits, but for so many first and as many
        last layers. ValueError where none is left for them."""
        if kv_dtype == "auto":
            return self
        layers = range(full_layers, self.layers - full_layers)
        if not layers:
            raise ValueError(f"none of {self.layers} layers is between {full_layers} at either end")
        return replace(self, int8=layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes in a block: for each layer and KV head, 2 (key and value)
        · head size · bytes of an element, and 2 for the scale of an eight-bit value. It does not
        depend on the size of blocks: what is kept once for each, as the scales of eight-bit keys
        are, is in `block_bytes` alone."""
        full = self.layers - len(self.int8)
        numbers = full * self.element_bytes + len(self.int8)
        return self.kv_heads * (2 * self.head_dim * numbers + 2 * len(self.int8))

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block of `block_size` tokens: theirs, the scales of keys, and its state."""
        scales = len(self.int8) * self.kv_heads * self.head_dim
        return block_size * self.bytes_per_token + scales + self.block_state

    def stage_bytes(self, block_size: int, slots: int) -> int:
        """Bytes beside the blocks, for `slots` sequences at once: the keys of blocks that are not
        full, twice, in full precision."""
        cells = 2 * slots * (block_size + STAGED_AHEAD)
        return cells * len(self.int8) * self.kv_heads * self.head_dim * self.element_bytes


def format_names(plain: str, target: KvShape, draft: KvShape | None = None) -> str:
    """The number formats of both models' KV in words, as one where they are the same. `plain`: that
    of full precision."""
    names = ["int8" if shape.int8 else plain for shape in (target, draft) if shape is not None]
    return names[0] if len(set(names)) == 1 else f"{names[0]}, draft {names[1]}"


def block_bytes(block_size: int, target: KvShape, draft: KvShape | None = None) -> int:
    """Bytes of a block in both models: they share block ids, so each token is kept by both."""
    return target.block_bytes(block_size) + (draft.block_bytes(block_size) if draft else 0)


def pool_blocks(budget: int, block_size: int, target: KvShape, draft: KvShape | None = None) -> int:
    """Blocks of `block_size` tokens for both models that `budget` bytes buy."""
    return max(0, budget) // block_bytes(block_size, target, draft)


def concurrency(blocks: int, block_size: int, length: int) -> float:
    """How many sequences of `length` tokens the pool holds at once.

    Whole sequences are its floor. The fraction is the share of one more that would fit.
    """
    return blocks / -(-length // block_size)


def cpu_budget(available: int, wanted: int) -> int:
    """The bytes wanted, but at most half of the memory that is available.

    The other half is for activations, for the machine's other work, and for being wrong.
    """
    return min(wanted, available // 2)


def gpu_budget(total: int, utilization: float, weights: int, activations: int) -> int:
    """What is left of the share `utilization` (0 to 1) of a device after weights and activations.

    0 if nothing is left.
    """
    if not 0.0 < utilization <= 1.0:
        raise ValueError(f"memory utilization must be above 0 and at most 1, got {utilization}")
    return max(0, int(total * utilization) - weights - activations)


def meminfo_available(meminfo: str) -> int:
    """Memory that new work can have without swapping, by the text of /proc/meminfo."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise ValueError("the kernel's meminfo has no MemAvailable line")
    return int(match[1]) * 1024


def cgroup_available(limit: str, usage: str, stat: str = "") -> int | None:
    """Memory that a control group has left, by the texts of its files; None without a limit.

    File cache that is not in active use counts as usage and is given back under pressure, so it
    is added again. Version 1 names it `total_inactive_file`, version 2 `inactive_file`.
    """
    if limit.strip() == "max" or int(limit) >= _UNLIMITED:
        return None
    amounts = dict(re.findall(r"^(\w+) (\d+)$", stat, re.MULTILINE))
    cache = int(amounts.get("total_inactive_file") or amounts.get("inactive_file") or 0)
    return max(0, int(limit) - max(0, int(usage) - cache))


def cgroup_folders(membership: str, root: Path) -> Iterator[tuple[Path, str, str]]:
    """Where a process's memory may be limited: (folder, limit file, usage file) of each level.

    membership: text of /proc/self/cgroup. Every ancestor can limit, so each path is followed up
    to its mount. Inside a container the path may not exist below the mount; its top then does.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = mount / path.lstrip("/")
        for level in [folder, *folder.parents]:
            yield level, limit, usage
            if level == mount:
                break


def read_available_memory(root: Path = Path("/")) -> int:
    """Bytes this process can still have: the least of the machine's and its control groups'.

    Raises OSError where there is no /proc: there a budget must be given by hand.
    """
    amounts = [meminfo_available((root / "proc/meminfo").read_text())]
    membership = root / "proc/self/cgroup"
    lines = membership.read_text() if membership.exists() else ""
    for folder, limit, usage in cgroup_folders(lines, root / "sys/fs/cgroup"):
        if (folder / limit).exists() and (folder / usage).exists():
            stat = folder / "memory.stat"
            left = cgroup_available(
                (folder / limit).read_text(),
                (folder / usage).read_text(),
                stat.read_text() if stat.exists() else "",
            )
            if left is not None:
                amounts.append(left)
    return min(amounts)
