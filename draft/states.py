"""What a target thinks of its conversations: states of every token, computed once, read from disk.

A head draft learns from three things of each token: the states it will read, the state that the
target's own choice is made of, and whether the next token is one to guess. The states come from
the decoder that serves, in the form it serves them in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kv.capacity import KvShape
from ..kv.tensors import allocate
from ..models.decoder import Decoder
from ..models.progress import Progress, silent
from ..spec.batch import Feed, assemble
from .conversations import Conversation

BLOCK = 64
ROWS = 2048


@dataclass(frozen=True, slots=True)
class Lesson:
    """One conversation of L tokens as the target sees it.

    tokens: [L] int64. guess: [L] bool, whether the next token is one to guess. states: [L, S], the
    tapped layers side by side. final: [L, H], of which the target's logits are made.
    """

    tokens: Tensor
    guess: Tensor
    states: Tensor
    final: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class Lessons:
    """A folder of lessons, on disk: indexing reads one. Written by `write_lessons`.

    Attributes: taps, width (S), hidden (H), lengths (of each lesson).
    """

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError where nothing has been written."""
        kept = json.loads((folder / "index.json").read_text())
        self.taps = tuple(kept["taps"])
        self.width, self.hidden = kept["width"], kept["hidden"]
        self.lengths: list[int] = kept["lengths"]
        self._starts = np.concatenate(([0], np.cumsum(self.lengths)))
        rows = int(self._starts[-1])
        self._tokens = np.memmap(folder / "tokens.bin", np.int32, "r", shape=(rows,))
        self._guess = np.memmap(folder / "guess.bin", np.uint8, "r", shape=(rows,))
        shape = (rows, self.width + self.hidden)
        self._states = np.memmap(folder / "states.bin", np.int16, "r", shape=shape)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Lesson:
        rows = slice(int(self._starts[i]), int(self._starts[i + 1]))
        both = torch.from_numpy(np.array(self._states[rows])).view(torch.bfloat16)
        return Lesson(
            tokens=torch.from_numpy(self._tokens[rows].astype(np.int64)),
            guess=torch.from_numpy(self._guess[rows].astype(bool)),
            states=both[:, : self.width],
            final=both[:, self.width :],
        )

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """How often each token is one to guess [vocab_size]."""
        next_tokens = self._tokens[1:][self._guess[:-1].astype(bool)]
        return np.bincount(next_tokens, minlength=vocab_size)


def write_lessons(
    folder: Path,
    conversations: Sequence[Conversation],
    target: Decoder,
    taps: tuple[int, ...],
    progress: Progress = silent,
) -> Lessons:
    """Compute the states of all conversations into `folder` (bf16), going on where it stopped.

    Reports the stage "states" in tokens. A folder of other taps is refused with a ValueError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hidden = target.config.hidden_size
    index: dict[str, Any] = {
        "taps": list(taps), "width": hidden * len(taps), "hidden": hidden, "lengths": []
    }  # fmt: skip
    at = folder / "index.json"
    if at.exists():
        index = json.loads(at.read_text())
        if tuple(index["taps"]) != taps:
            raise ValueError(f"{folder} holds states after layers {index['taps']}, not {taps}")
    lengths: list[int] = index["lengths"]
    total = sum(len(it.tokens) for it in conversations)
    names = ("tokens.bin", "guess.bin", "states.bin")
    row_bytes = (4, 1, 2 * (index["width"] + hidden))
    files = [(folder / name).open("r+b" if at.exists() else "w+b") for name in names]
    for file, size in zip(files, row_bytes, strict=True):
        file.seek(sum(lengths) * size)
        file.truncate()
    progress("states", sum(lengths), total)
    for group in _groups(conversations[len(lengths) :]):
        states = compute_states(target, [it.tokens for it in group], taps)
        tokens = np.concatenate([np.array(it.tokens, np.int32) for it in group])
        guess = np.concatenate([_to_guess(it) for it in group])
        raw = states.to(torch.bfloat16).view(torch.int16).cpu().numpy()
        for file, part in zip(files, (tokens, guess, raw), strict=True):
            part.tofile(file)
            file.flush()
        lengths += [len(it.tokens) for it in group]
        draft = folder / "index.json.new"
        draft.write_text(json.dumps(index))
        draft.replace(at)
        progress("states", sum(lengths), total)
    for file in files:
        file.close()
    return Lessons(folder)


def _to_guess(conversation: Conversation) -> NDArray[np.uint8]:
    guess = np.zeros(len(conversation.tokens), np.uint8)
    for start, end in conversation.answers:
        guess[start - 1 : end - 1] = 1
    return guess


def _groups(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    """Consecutive ones that together fill a forward, or a single one that is longer."""
    group: list[Conversation] = []
    rows = 0
    for conversation in conversations:
        if group and rows + len(conversation.tokens) > ROWS:
            yield group
            group, rows = [], 0
        group.append(conversation)
        rows += len(conversation.tokens)
    if group:
        yield group


@torch.inference_mode()
def compute_states(
    target: Decoder, texts: Sequence[Sequence[int]], taps: tuple[int, ...]
) -> Tensor:
    """Tapped and final states of all texts' tokens [T, S + H], as a prefill computes them."""
    config = target.config
    needs = [-(-len(text) // BLOCK) for text in texts]
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, target.dtype.itemsize)
    kv = allocate(shape, sum(needs), BLOCK, target.dtype, target.device)
    firsts = np.cumsum([0, *needs[:-1]])
    feeds = [
        Feed(np.array(text, np.int64), 0, range(first, first + need))
        for text, first, need in zip(texts, firsts.tolist(), needs, strict=True)
    ]
    final, states = target.forward_tapped(assemble(feeds, target, kv), kv.layers, taps)
    return torch.cat((states, final), 1)
