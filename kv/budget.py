"""What a machine's memory buys: the blocks of a pool, requests side by side, tokens a second.

Pure, and the one place of this arithmetic: the composition root sizes the pool with it, and
`paceline plan` and `GET /v1/plan` foretell with it. Amounts are bytes; errors are ValueErrors with
a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .capacity import KvShape, block_bytes, cpu_budget, gpu_budget, pool_blocks

POOL_LENGTH = 2048
"""Tokens per sequence that the default pool on a CPU has room for, times max_num_seqs."""

ACTIVATIONS_PER_TOKEN = 24
"""Bytes kept free for each hidden unit and each logit of a step's token, generously."""

MARGIN = 20
"""Of 100 requests that fit, how many not to plan with: lengths vary, and so does what else there is
in memory."""


@dataclass(frozen=True, slots=True)
class Held:
    """A model, or a draft, in memory. weights: what its weights occupy. read: how much of that one
    pass over it reads. kv: what it keeps of a token."""

    weights: int
    read: int
    kv: KvShape


@dataclass(frozen=True, slots=True)
class Footprint:
    """A target and its draft, if it has one. activations: what a step needs beside them."""

    target: Held
    draft: Held | None
    activations: int

    @property
    def weights(self) -> int:
        return self.target.weights + (self.draft.weights if self.draft else 0)

    def holding(self, weights: int) -> Footprint:
        """The same with so many bytes of weights in all, as they turned out."""
        drafts = self.draft.weights if self.draft else 0
        return replace(self, target=replace(self.target, weights=weights - drafts))

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block of both models."""
        return block_bytes(block_size, self.target.kv, self.draft.kv if self.draft else None)

    def stage_bytes(self, block_size: int, slots: int) -> int:
        """What both keep beside their blocks for so many sequences at once."""
        models = [self.target, self.draft] if self.draft else [self.target]
        return sum(model.kv.stage_bytes(block_size, slots) for model in models)

    def draft_share(self, block_size: int) -> float:
        """The draft's share of the pool, 0 to 1."""
        mine = self.draft.kv.block_bytes(block_size) if self.draft else 0
        return mine / self.block_bytes(block_size)


@dataclass(frozen=True, slots=True)
class Machine:
    """memory: on a GPU all it has; on a CPU all that this process may have, its weights included.
    utilization: share of a GPU's memory that weights and KV may take."""

    kind: Literal["cpu", "cuda"]
    memory: int
    utilization: float = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the pool is for. length: of the longest sequence. kv_memory: None for what fits."""

    block_size: int
    max_num_seqs: int
    length: int
    kv_memory: int | None = None


def pool_size(machine: Machine, footprint: Footprint, wish: Wish) -> int:
    """Blocks of the pool. ValueError when not even two of them fit.

    Never more than every sequence could use. A CPU's pool, unless it is told how much, has room for
    POOL_LENGTH tokens of each sequence, or one of the longest, in half of what the weights leave.
    """
    per_block = footprint.block_bytes(wish.block_size)
    longest = blocks_of(wish.length, wish.block_size)
    stages = footprint.stage_bytes(wish.block_size, wish.max_num_seqs)
    if wish.kv_memory is not None:
        budget = wish.kv_memory
    elif machine.kind == "cpu":
        usual = wish.max_num_seqs * min(wish.length, POOL_LENGTH) // wish.block_size
        left = max(0, machine.memory - footprint.weights)
        budget = cpu_budget(left, max(usual, longest) * per_block + stages)
    else:
        budget = gpu_budget(
            machine.memory, machine.utilization, footprint.weights, footprint.activations
        )
    draft = footprint.draft.kv if footprint.draft else None
    blocks = pool_blocks(budget - stages, wish.block_size, footprint.target.kv, draft)
    if blocks < 2:
        raise ValueError(
            f"{budget} bytes for KV are too few: two blocks take {2 * per_block + stages}. The "
            f"weights take {footprint.weights} of {machine.memory}"
        )
    return min(blocks, longest * wish.max_num_seqs)


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens of a sequence."""
    return -(-tokens // block_size)


def activation_bytes(step_tokens: int, hidden: int, intermediate: int, vocab: int) -> int:
    """What a step of so many tokens needs beside weights and KV, by a generous rule:
    tokens · (hidden + intermediate + vocabulary) · ACTIVATIONS_PER_TOKEN."""
    return step_tokens * (hidden + intermediate + vocab) * ACTIVATIONS_PER_TOKEN


def largest_batch(memory: int, weights: int, activations: int, per_request: int) -> int:
    """Requests of `per_request` bytes of KV that memory holds beside the rest, all of it used."""
    return max(0, memory - weights - activations) // per_request


def with_margin(count: float) -> int:
    """How many of `count` to plan with: MARGIN in 100 less, in whole ones."""
    return int(count * (100 - MARGIN)) // 100


def pass_seconds(read: int, bandwidth: float) -> float:
    """The least time to read so many bytes at `bandwidth` bytes a second.

    A decoding step is at least this long however little it computes: one request's tokens come no
    faster, and only more requests, or several tokens a request, share the time.
    """
    return read / bandwidth


def drafted_seconds(target_read: int, draft_read: int, k: int, bandwidth: float) -> float:
    """The same for a step with `k` guesses: the target is read once, the draft once for each guess,
    since it needs its last guess for the next."""
    return pass_seconds(target_read + k * draft_read, bandwidth)
