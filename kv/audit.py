"""The audit: who owns every block and every slot, and whether the books say the same.

A block has one owner, unless it can be found by a key: then several tables may share it. Called by
the ledger's `check`. Trusts nothing that is maintained step by step: ownership is re-derived from
the free list, the leases, the fences and the prefix index, then compared with states, reference
counts and tally. One pass of array arithmetic over the pool, so that an idle moment can afford it;
sentences are only made for what is wrong.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .blocks import BlockPool, BlockState
from .lease import Fence, Lease
from .prefix import PrefixIndex
from .window import HOLE

_REFERENCES = (BlockState.HELD, BlockState.FENCED)
_RANKS = (BlockState.FREE, BlockState.CACHED, BlockState.FENCED, BlockState.HELD)
"""States of what claims a block, each overruled by those behind it."""


class Finding(NamedTuple):
    """Something that is wrong: a sentence that names it and its owners, the blocks that it is
    about, and the leases, open or behind a fence, among the owners. lost: nobody owns the block."""

    text: str
    blocks: tuple[int, ...] = ()
    leases: tuple[Lease, ...] = ()
    lost: bool = False


class _Claim(NamedTuple):
    """Someone says that `blocks` are theirs, which puts those in `state`, unless another claim of
    them overrules it. lease: whose table they stand in, if it is one."""

    owner: str
    state: BlockState
    blocks: Sequence[int]
    lease: Lease | None = None


_Taker = tuple[str, int, Lease | None]
"""Someone says that a slot is theirs, and by which lease."""


def audit(
    pool: BlockPool,
    *,
    leases: Mapping[int, Lease],
    fences: Sequence[Fence],
    landed: int,
    free_slots: Sequence[int],
    slots: int,
) -> list[Finding]:
    """Every discrepancy."""
    claims = [
        _Claim("the free list", BlockState.FREE, pool.free_list),
        _Claim("the prefix cache", BlockState.CACHED, list(pool.prefixes.idle)),
    ]
    claims += [_Claim(_holder(x), BlockState.HELD, x.held, x) for x in leases.values()]
    claims += [_Claim(_waiter(x), BlockState.FENCED, x.lease.held, x.lease) for x in fences]
    takers: list[_Taker] = [("the free list", slot, None) for slot in free_slots]
    takers += [(_holder(x), x.slot, x) for x in leases.values()]
    takers += [(_waiter(x), x.lease.slot, x.lease) for x in fences]
    return [
        *_blocks(pool, claims),
        *map(Finding, _keys(pool.prefixes)),
        *map(Finding, _tally(pool)),
        *_slots(takers, slots),
        *(
            Finding(f"the lease of sequence {x.seq} is filed under sequence {seq}", leases=(x,))
            for seq, x in leases.items()
            if x.seq != seq
        ),
        *(
            Finding(f"{_waiter(x)} waits though it landed", tuple(x.lease.held), (x.lease,))
            for x in fences
            if x.step <= landed
        ),
        *_holes([*leases.values(), *(x.lease for x in fences)]),
    ]


def _holes(leases: Iterable[Lease]) -> Iterator[Finding]:
    for lease in leases:
        if any(block != HOLE for block in lease.blocks[: lease.dropped]):
            text = f"{_holder(lease)} has dropped blocks that its table still names"
            yield Finding(text, leases=(lease,))


def _holder(lease: Lease) -> str:
    return f"sequence {lease.seq}"


def _waiter(fence: Fence) -> str:
    return f"sequence {fence.lease.seq} behind the fence of step {fence.step}"


def _blocks(pool: BlockPool, claims: Sequence[_Claim]) -> Iterator[Finding]:
    flat = array("q")
    for claim in claims:
        if isinstance(claim.blocks, list):
            flat.fromlist(claim.blocks)  # many times faster
        else:
            flat.extend(claim.blocks)
    ids = np.array(flat)
    places = np.repeat(np.arange(len(claims)), [len(x.blocks) for x in claims])
    states = np.array([x.state for x in claims])[places]
    exists = (ids >= 0) & (ids < pool.total)
    if not exists.all():
        yield from (
            Finding(f"block {block} of {claim.owner} does not exist", leases=_leases([claim]))
            for claim in claims
            for block in claim.blocks
            if not 0 <= block < pool.total
        )
        ids, states, places = ids[exists], states[exists], places[exists]
    size = (len(BlockState), pool.total)
    claimed = np.bincount(states * pool.total + ids, minlength=size[0] * size[1]).reshape(size)
    fences = claimed[BlockState.FENCED]
    refs = claimed[BlockState.HELD] + fences
    owners = refs + claimed[BlockState.CACHED] + claimed[BlockState.FREE]
    keyed = np.zeros(pool.total, bool)
    known = np.fromiter(pool.prefixes.keys, np.int64, len(pool.prefixes.keys))
    keyed[known[(known >= 0) & (known < pool.total)]] = True
    derived = np.zeros(pool.total, np.uint8)
    for state in _RANKS:
        derived[claimed[state] > 0] = state
    wrong = (owners == 0) | ((owners > 1) & ~(keyed & (owners == refs)))
    wrong |= (derived == BlockState.CACHED) & ~keyed | (derived == BlockState.FREE) & keyed
    wrong |= refs != np.array(pool.refs)
    wrong |= fences != np.array(pool.fences)
    wrong |= derived != np.frombuffer(pool.states, np.uint8)
    crowded = np.unique(places[owners[ids] > 1]).tolist()
    for block in _twice([claims[i] for i in crowded], pool.total):
        wrong[block] = True
    for block in np.flatnonzero(wrong).tolist():
        named = [x for x in claims for _ in range(x.blocks.count(block))]
        for text in _block(pool, block, named):
            yield Finding(text, (block,), _leases(named), lost=not named)


def _leases(claims: Iterable[_Claim]) -> tuple[Lease, ...]:
    """The leases among those who claim, each once."""
    return tuple({id(x.lease): x.lease for x in claims if x.lease is not None}.values())


def _twice(claims: Sequence[_Claim], total: int) -> Iterator[int]:
    """Blocks that one claim has more than once."""
    for claim in claims:
        if len(set(claim.blocks)) < len(claim.blocks):
            seen: set[int] = set()
            for block in claim.blocks:
                if block in seen and 0 <= block < total:
                    yield block
                seen.add(block)


def _block(pool: BlockPool, block: int, claims: Sequence[_Claim]) -> Iterator[str]:
    """What is wrong with one block, given everybody who claims it."""
    marked, keyed = BlockState(pool.states[block]), block in pool.prefixes.keys
    names = " and ".join(x.owner for x in claims)
    if not claims:
        yield f"block {block} is lost: it is marked {marked.name} but nobody owns it"
        return
    states = [x.state for x in claims]
    counted = sum(state in _REFERENCES for state in states)
    shared = keyed and counted == len(claims) == len({id(x) for x in claims})
    if len(claims) > 1 and not shared:
        yield f"block {block} has {len(claims)} owners: {names}"
    elif max(states, key=_RANKS.index) is not marked:
        yield f"block {block} is marked {marked.name} but belongs to {names}"
    if keyed and BlockState.FREE in states:
        yield f"block {block} has a key but belongs to {names}"
    if not keyed and BlockState.CACHED in states:
        yield f"block {block} has no key but belongs to {names}"
    fenced = states.count(BlockState.FENCED)
    for what, marks, true in (
        ("references", pool.refs[block], counted),
        ("fences", pool.fences[block], fenced),
    ):
        if marks != true:
            yield f"block {block} counts {marks} {what}, not {true}: it belongs to {names}"


def _keys(index: PrefixIndex) -> Iterator[str]:
    stands = list(map(index.blocks.get, index.keys.values()))
    if stands != list(index.keys):
        for block, other in zip(index.keys, stands, strict=True):
            if other != block:
                yield f"block {block} has a key that stands for block {other}"
    if len(index.blocks) != len(index.keys):
        yield f"{len(index.blocks)} keys stand for blocks, but {len(index.keys)} blocks have one"


def _tally(pool: BlockPool) -> Iterator[str]:
    marked = np.bincount(np.frombuffer(pool.states, np.uint8), minlength=len(BlockState)).tolist()
    for state in BlockState:
        if pool.tally[state] != marked[state]:
            yield (
                f"the pool counts {pool.tally[state]} {state.name} blocks, "
                f"but {marked[state]} are marked so"
            )


def _slots(takers: Iterable[_Taker], slots: int) -> Iterator[Finding]:
    owners: defaultdict[int, list[str]] = defaultdict(list)
    leases: defaultdict[int, list[Lease]] = defaultdict(list)
    for owner, slot, lease in takers:
        owners[slot].append(owner)
        leases[slot] += [lease] if lease is not None else []
    for slot in range(slots):
        if slot not in owners:
            yield Finding(f"slot {slot} is lost: nobody owns it")
    for slot, names in owners.items():
        if not 0 <= slot < slots:
            text = f"slot {slot} of {' and '.join(names)} does not exist"
        elif len(names) > 1:
            text = f"slot {slot} has {len(names)} owners: {' and '.join(names)}"
        else:
            continue
        yield Finding(text, leases=tuple(leases[slot]))
