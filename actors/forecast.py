"""What a configuration will hold: weights, KV, requests side by side, tokens a second.

Made by the composition root for the running server and by `paceline plan` for any other, by the
arithmetic of `kv.budget`. `GET /v1/plan` and `--json` give it as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..kv.block_size import Kept, Lengths
from ..kv.budget import (
    MARGIN,
    Footprint,
    Held,
    Machine,
    Wish,
    blocks_of,
    drafted_seconds,
    largest_batch,
    pass_seconds,
    pool_size,
    with_margin,
)
from ..kv.capacity import concurrency
from .settings import TILE, Settings
from .traffic import block_size, typical

MemorySource = Literal["given", "found on this machine"]
LengthSource = Literal["given", "traffic", "max_model_len"]
BandwidthSource = Literal["given", "measured here"]


class Part(msgspec.Struct, frozen=True):
    """A model, or a draft, by name. read_bytes: of the weights, what one pass reads.
    kv_block_bytes: what a draft keeps of a block beside its tokens' KV is included. pool_share: 0
    to 1."""

    name: str
    weight_bytes: int
    read_bytes: int
    kv_token_bytes: int
    kv_block_bytes: int
    pool_share: float


class Pool(msgspec.Struct, frozen=True):
    block_size: int
    block_bytes: int
    blocks: int
    tokens: int
    bytes: int


class Typical(msgspec.Struct, frozen=True):
    """The request that is planned for. source: where its lengths come from; where nothing is known
    of the traffic it is as long as a sequence may be, and has no prompt to tell apart."""

    source: LengthSource
    prompt: int | None
    output: int | None
    tokens: int
    blocks: int
    bytes: int


class Concurrency(msgspec.Struct, frozen=True):
    """Typical requests side by side. in_memory: if all memory beside weights and activations were
    pool. planned: the same with a fifth less, what to plan with. in_pool, planned_in_pool: in the
    pool as it is. max_num_seqs: sequences that run at once at most, by the settings."""

    in_memory: int
    planned: int
    in_pool: float
    planned_in_pool: int
    max_num_seqs: int


class DraftedRate(msgspec.Struct, frozen=True):
    """The rate with `k` guesses a step. seconds: of a step. tokens_per_second: when every guess
    holds. pays_above: tokens a step above which guessing is faster than not."""

    k: int
    seconds: float
    tokens_per_second: float
    pays_above: float


class Rate(msgspec.Struct, frozen=True):
    """What memory bandwidth (bytes a second) allows at most. seconds: the least of a step, which
    reads the weights once. tokens_per_second: of one request. together: of the planned concurrency,
    whose steps also read each request's KV."""

    source: BandwidthSource
    bandwidth: float
    seconds: float
    tokens_per_second: float
    together: float
    drafted: DraftedRate | None


class Forecast(msgspec.Struct, frozen=True):
    """All of it. draft: None without one. draft_tokens: guesses a step. advice: sentences
    that name what to change."""

    target: Part
    draft: Part | None
    device: str
    dtype: str
    memory_source: MemorySource
    memory_bytes: int
    activation_bytes: int
    max_model_len: int
    draft_tokens: int
    pool: Pool
    typical: Typical
    concurrency: Concurrency
    rate: Rate | None = None
    advice: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        return self.target.weight_bytes + (self.draft.weight_bytes if self.draft else 0)


class Subject(msgspec.Struct, frozen=True):
    """What a forecast is of. draft_tokens: guesses a step, 0 without a draft."""

    model: str
    draft: str | None
    dtype: str
    memory_source: MemorySource
    draft_tokens: int = 0


def wish_of(
    settings: Settings, length: int, footprint: Footprint, lengths: Sequence[Lengths]
) -> Wish:
    """The pool that the settings ask for. length: of the longest sequence. lengths: of traffic."""
    kept = Kept.of(footprint.target.kv, footprint.draft.kv if footprint.draft else None)
    return Wish(
        block_size(settings, lengths, kept),
        settings.max_num_seqs,
        length,
        None if settings.kv_memory == "auto" else int(settings.kv_memory),
    )


def forecast(
    subject: Subject,
    machine: Machine,
    footprint: Footprint,
    wish: Wish,
    lengths: Sequence[Lengths] = (),
) -> Forecast:
    """The forecast, for what is typical of the lengths of traffic; without any, for requests as
    long as they may be. ValueError where the pool has no room."""
    size, per_block = wish.block_size, footprint.block_bytes(wish.block_size)
    blocks = pool_size(machine, footprint, wish)
    share = footprint.draft_share(size)
    made = Forecast(
        target=_part(subject.model, footprint.target, size, 1 - share),
        draft=_part(subject.draft or "", footprint.draft, size, share) if footprint.draft else None,
        device=machine.kind,
        dtype=subject.dtype,
        memory_source=subject.memory_source,
        memory_bytes=machine.memory,
        activation_bytes=footprint.activations,
        max_model_len=wish.length,
        draft_tokens=subject.draft_tokens,
        pool=Pool(size, per_block, blocks, blocks * size, blocks * per_block),
        typical=Typical("max_model_len", None, None, 0, 0, 0),
        concurrency=Concurrency(0, 0, 0.0, 0, wish.max_num_seqs),
    )
    if lengths:
        return for_requests(made, *typical(lengths), "traffic")
    return _sized(made, "max_model_len", None, None, wish.length)


def for_requests(known: Forecast, prompt: int, output: int, source: LengthSource) -> Forecast:
    """The forecast for requests of so many tokens, without rate: that depends on them."""
    return _sized(known, source, prompt, output, prompt + output)


def with_bandwidth(known: Forecast, bandwidth: float, source: BandwidthSource) -> Forecast:
    """The forecast with what `bandwidth` bytes a second allow."""
    read = known.target.read_bytes
    seconds = pass_seconds(read, bandwidth)
    many = max(1, known.concurrency.planned)
    together = seconds + pass_seconds(many * known.typical.bytes, bandwidth)
    drafted = None
    if known.draft is not None and known.draft_tokens:
        k = known.draft_tokens
        step = drafted_seconds(read, known.draft.read_bytes, k, bandwidth)
        drafted = DraftedRate(k, step, (k + 1) / step, step / seconds)
    return replace(
        known, rate=Rate(source, bandwidth, seconds, 1 / seconds, many / together, drafted)
    )


def _part(name: str, held: Held, block_size: int, share: float) -> Part:
    kv = held.kv
    return Part(
        name,
        held.weights,
        held.read,
        kv.bytes_per_token,
        kv.block_bytes(block_size),
        round(share, 6),
    )


def _sized(
    known: Forecast, source: LengthSource, prompt: int | None, output: int | None, tokens: int
) -> Forecast:
    pool, seqs = known.pool, known.concurrency.max_num_seqs
    blocks = blocks_of(tokens, pool.block_size)
    typical = Typical(source, prompt, output, tokens, blocks, blocks * pool.block_bytes)
    in_memory = largest_batch(
        known.memory_bytes, known.weight_bytes, known.activation_bytes, typical.bytes
    )
    in_pool = concurrency(pool.blocks, pool.block_size, tokens)
    found = Concurrency(
        in_memory, with_margin(in_memory), round(in_pool, 2), with_margin(in_pool), seqs
    )
    sized = replace(known, typical=typical, concurrency=found, rate=None)
    return replace(sized, advice=tuple(_advice(sized)))


def _advice(known: Forecast) -> list[str]:
    """What to change, if anything."""
    usual, found = known.typical, known.concurrency
    told = usual.source != "max_model_len"
    limit = blocks_of(usual.tokens, TILE) * TILE
    planned = max(1, found.planned)
    advice = []
    if told and limit < known.max_model_len:
        advice.append(
            f"max_model_len {limit} covers prompts and answers up to their 95th percentile; "
            f"{known.max_model_len} lets one take {known.max_model_len / usual.tokens:.1f} times "
            f"their room"
        )
    if usual.tokens > known.max_model_len:
        return [f"max_model_len {known.max_model_len} refuses such requests"]
    if found.in_memory < 1:
        advice.append("memory holds no such request: use a smaller model, dtype or max_model_len")
    elif found.max_num_seqs > planned:
        advice.append(f"max_num_seqs {planned} is what memory can be planned with")
    wanted = min(planned, found.max_num_seqs)
    if told and found.in_pool < wanted <= found.in_memory:
        room = wanted * usual.bytes * 100 // (100 - MARGIN)
        advice.append(
            f"kv_memory {(room >> 20) + 1}MiB holds {wanted} such requests with room to spare"
        )
    return advice
