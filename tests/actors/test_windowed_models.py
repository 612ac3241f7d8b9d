"""Real models that see through a window, with planner and ledger: blocks are given back while
their sequence runs, and the text is that of a pool in which nothing ever is.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from harness import Harness
from torch import Tensor

from paceline.actors.planner import Limits
from paceline.kv.blocks import BlockState
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import KvStore, allocate
from paceline.kv.window import reach
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.weights import load_weights
from paceline.spec.draft_model import DraftModel
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pair import ModelPair
from support.tiny_pair import VOCAB, save_models

LENGTH, SLOTS, BLOCK_SIZE, STEP = 640, 3, 16, 48
WINDOW = 65  # rows at the end of a tile see the tile that those of the next do not


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    files = save_models(tmp_path_factory.mktemp("windowed"), "mistral", sliding_window=WINDOW)
    return files / "target"


class Bench:
    """A harness around a real pair. The draft is the target again: its guesses hold where both read
    the same, which is all but what the draft could not follow before it was given back."""

    def __init__(
        self, files: Path, dtype: torch.dtype, blocks: int, window: int | None, **limits: int
    ) -> None:
        self.cells: list[Tensor] = []
        self.blocks = blocks
        target, draft = self._load(files, dtype), self._load(files, dtype)
        pair = ModelPair(
            target,
            self._place(target),
            {
                "ngram": NgramDrafter(),
                "draft": DraftModel(draft, self._place(draft), BLOCK_SIZE, VOCAB),
            },
            slots=SLOTS,
            max_len=LENGTH,
            block_size=BLOCK_SIZE,
        )
        limits = Limits(STEP, LENGTH, window=window, **limits)
        self.harness = Harness(blocks, BLOCK_SIZE, SLOTS, limits)
        self.harness.pair = pair

    def _load(self, directory: Path, dtype: torch.dtype) -> Decoder:
        return Decoder(load_config(directory), load_weights(directory), device="cpu", dtype=dtype)

    def _place(self, model: Decoder) -> KvStore:
        c = model.config
        shape = KvShape(c.layers, c.kv_heads, c.head_dim, model.dtype.itemsize)
        kv = allocate(shape, self.blocks, BLOCK_SIZE, model.dtype, "cpu")
        self.cells += [layer.cells for layer in kv.layers]
        return kv

    def run(self, requests: list[tuple], poison: float | None = None) -> dict[int, list[int]]:
        """The answers. poison: what free blocks are filled with before every step but the first,
        in all caches."""
        h = self.harness
        for seq, (prompt, tokens, k, method, seed) in enumerate(requests):
            h.add(seq, prompt, seed, tokens, k, method, temperature=0.7)
        for _ in range(4000):
            while h.launch():
                if poison is not None:
                    states = h.ledger.pool.states
                    free = [i for i, state in enumerate(states) if state == BlockState.FREE]
                    for cells in self.cells:
                        cells[:, free] = poison
            if not h.air:
                break
            h.land()
        assert h.planner.idle
        assert set(h.reasons.values()) <= {"length", "stop"}, h.errors
        for seq, (*_, method, _) in enumerate(requests):
            used = h.usage[seq].speculation
            assert method != "draft" or used.accepted > 0
        return h.answers

    @property
    def accepted(self) -> dict[int, tuple[int, int]]:
        """How many of how many guesses held, by sequence."""
        used = {seq: usage.speculation for seq, usage in self.harness.usage.items()}
        return {seq: (it.accepted, it.drafted) for seq, it in used.items()}


def requests() -> list[tuple]:
    random = Random(4)
    stem = [random.randrange(4, VOCAB) for _ in range(300)]
    made = []
    for i, length in enumerate((290, 40, 200, 290)):
        prompt = stem[: length // 2] + [
            random.randrange(4, VOCAB) for _ in range(length - length // 2)
        ]
        method = ("draft", "ngram")[i % 2]
        made.append((stem[:length] if i == 3 else prompt, 200, (3, 2, 4, 4)[i % 4], method, i))
    return made


@pytest.mark.parametrize(
    ("dtype", "flights"), [(torch.float32, 1), (torch.bfloat16, 2)], ids=["fp32", "bf16, ahead"]
)
def test_the_text_is_that_of_a_pool_where_nothing_is_given_back(
    files: Path, dtype: torch.dtype, flights: int
) -> None:
    wanted = Bench(files, dtype, 6 * LENGTH // BLOCK_SIZE, None).run(requests())
    assert sum(len(answer) for answer in wanted.values()) > 500
    most = reach(Limits(STEP, LENGTH, flights, window=WINDOW), BLOCK_SIZE).most_blocks
    assert most < LENGTH // BLOCK_SIZE
    guesses = []
    for blocks, poison, caching in (
        (most, None, True),
        # what is kept for others could be read in vain and not be missed
        (2 * most, None, False),
        (2 * most, 1e4, False),
    ):
        bench = Bench(files, dtype, blocks, WINDOW, flights=flights, caching=caching)
        assert bench.run(requests(), poison) == wanted
        counts = bench.harness.ledger.counts()
        assert counts["free"] + counts["cached"] == blocks
        guesses.append(bench.accepted)
    assert guesses[1] == guesses[2]
