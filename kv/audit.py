"""The audit: every block and every slot has exactly one owner, and the books say the same.

Called by the ledger's `check`. Trusts nothing that is maintained step by step: ownership is
re-derived from the free list, the leases and the fences, then compared with states, reference
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


class _Claim(NamedTuple):
    """Someone says that `blocks` are theirs, which puts those in `state`."""

    owner: str
    state: BlockState
    blocks: Sequence[int]


def audit(
    pool: BlockPool,
    *,
    leases: Mapping[int, Lease],
    fences: Sequence[Fence],
    landed: int,
    free_slots: Sequence[int],
    slots: int,
) -> list[str]:
    """Every discrepancy as a sentence that names the block or slot and its owners."""
    claims = [_Claim("the free list", BlockState.FREE, pool.free_list)]
    claims += [_Claim(_holder(x), BlockState.HELD, x.blocks) for x in leases.values()]
    claims += [_Claim(_waiter(x), BlockState.FENCED, x.lease.blocks) for x in fences]
    takers = [("the free list", slot) for slot in free_slots]
    takers += [(_holder(x), x.slot) for x in leases.values()]
    takers += [(_waiter(x), x.lease.slot) for x in fences]
    return [
        *_blocks(pool, claims),
        *_tally(pool),
        *_slots(takers, slots),
        *(
            f"the lease of sequence {x.seq} is filed under sequence {seq}"
            for seq, x in leases.items()
            if x.seq != seq
        ),
        *(f"{_waiter(x)} waits though it landed" for x in fences if x.step <= landed),
    ]


def _holder(lease: Lease) -> str:
    return f"sequence {lease.seq}"


def _waiter(fence: Fence) -> str:
    return f"sequence {fence.lease.seq} behind the fence of step {fence.step}"


def _blocks(pool: BlockPool, claims: Sequence[_Claim]) -> Iterator[str]:
    flat = array("q")
    for claim in claims:
        flat.extend(claim.blocks)
    ids = np.array(flat)
    states = np.repeat(
        np.array([x.state for x in claims], np.uint8), [len(x.blocks) for x in claims]
    )
    exists = (ids >= 0) & (ids < pool.total)
    if not exists.all():
        yield from (
            f"block {block} of {owner} does not exist"
            for owner, _, blocks in claims
            for block in blocks
            if not 0 <= block < pool.total
        )
        ids, states = ids[exists], states[exists]
    owners = np.bincount(ids, minlength=pool.total)
    refs = np.bincount(ids[states != BlockState.FREE], minlength=pool.total)
    derived = np.zeros(pool.total, np.uint8)
    derived[ids] = states
    wrong = owners != 1
    wrong |= refs != np.array(pool.refs)
    wrong |= derived != np.frombuffer(pool.states, np.uint8)
    for block in np.flatnonzero(wrong).tolist():
        named = [x for x in claims for _ in range(x.blocks.count(block))]
        yield from _block(block, BlockState(pool.states[block]), pool.refs[block], named)


def _block(block: int, marked: BlockState, refs: int, claims: Sequence[_Claim]) -> Iterator[str]:
    """What is wrong with one block, given everybody who claims it."""
    names = " and ".join(x.owner for x in claims)
    if not claims:
        yield f"block {block} is lost: it is marked {marked.name} but nobody owns it"
        return
    if len(claims) > 1:
        yield f"block {block} has {len(claims)} owners: {names}"
    elif claims[0].state is not marked:
        yield f"block {block} is marked {marked.name} but belongs to {names}"
    counted = sum(x.state is not BlockState.FREE for x in claims)
    if refs != counted:
        yield f"block {block} counts {refs} references, not {counted}: it belongs to {names}"


def _tally(pool: BlockPool) -> Iterator[str]:
    marked = np.bincount(np.frombuffer(pool.states, np.uint8), minlength=len(BlockState)).tolist()
    for state in BlockState:
        if pool.tally[state] != marked[state]:
            yield (
                f"the pool counts {pool.tally[state]} {state.name} blocks, "
                f"but {marked[state]} are marked so"
            )


def _slots(takers: Iterable[tuple[str, int]], slots: int) -> Iterator[str]:
    owners: defaultdict[int, list[str]] = defaultdict(list)
    for owner, slot in takers:
        owners[slot].append(owner)
    for slot in range(slots):
        if slot not in owners:
            yield f"slot {slot} is lost: nobody owns it"
    for slot, names in owners.items():
        if not 0 <= slot < slots:
            yield f"slot {slot} of {' and '.join(names)} does not exist"
        elif len(names) > 1:
            yield f"slot {slot} has {len(names)} owners: {' and '.join(names)}"
