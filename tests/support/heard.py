"""A drafter that is listened to, and a head draft of random weights to listen to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.config import load_config
from paceline.models.head import Head, load_head_tensors, output_matrix
from paceline.models.head_config import load_head_config
from paceline.models.layout import OUTPUT
from paceline.models.weights import load_weights
from paceline.spec.drafter import Drafter, Window
from paceline.spec.head import HeadDrafter
from paceline.spec.params import Method
from support.tiny_pair import BLOCK_SIZE, BLOCKS, SLOTS, Models


class Heard:
    """A drafter that is listened to: what it guessed behind which tokens."""

    method: Method = "draft"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.guesses: dict[tuple[int, ...], list[int]] = {}
        self.open = drafter.open
        if isinstance(drafter, HeadDrafter):
            self.taps, self.learn = drafter.taps, drafter.learn

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        drafts = self.drafter.propose(windows)
        for window, draft in zip(windows, drafts, strict=True):
            if window.k:
                self.guesses[tuple(window.slot.tokens[: window.upto])] = draft
        return drafts


def head_drafter(models: Models, files: Path) -> HeadDrafter:
    """The head in `files`, for the target of `models`, with KV of its own."""
    target = models.directory / "target"
    config = load_head_config(files, load_config(target))
    tensors = load_head_tensors(files, config)
    tied = load_config(target).tie_head
    tensors[OUTPUT] = output_matrix(load_weights(target), tied)[tensors["d2t"]]
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, models.dtype.itemsize)
    shape = shape.in_format(models.kv_dtype)
    kv = allocate(shape, BLOCKS, BLOCK_SIZE, models.dtype, "cpu", slots=SLOTS)
    return HeadDrafter(Head(config, tensors, models.target), kv, BLOCK_SIZE)
