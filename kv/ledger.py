"""The ledger: who owns which blocks and slots, and when what was released may be used again.

Owned and called by the scheduler alone. It counts and never touches a tensor: one block id stands
for `block_size` tokens of target *and* draft KV, so one release returns both.
"""

from __future__ import annotations

from collections.abc import Sequence

from .audit import Finding, audit
from .blocks import BlockPool, BlockState
from .lease import Fence, Lease
from .window import HOLE, Window, longest_known

__all__ = ["Fence", "Lease", "Ledger"]


class Ledger:
    """Leases over `total_blocks` blocks of `block_size` tokens and over `slots` slots.

    Life of a lease: `open` takes a slot, `share` starts its table with blocks that others have
    computed, `grow` adds blocks, `publish` lets others find those that are complete, `drop` gives
    up the first ones, `release` ends it. Released blocks and slot are reusable when the last step
    that had a row of the sequence has landed: at once, or after a fence. A sequence may be opened
    again (after a preemption) while its earlier lease still waits behind one. Misuse is an
    assertion.
    """

    __slots__ = ("_free_slots", "block_size", "fences", "landed", "leases", "pool", "slots")

    def __init__(self, total_blocks: int, block_size: int, slots: int) -> None:
        assert block_size > 0, f"a block cannot hold {block_size} tokens"
        assert slots >= 0, f"there cannot be {slots} slots"
        self.pool = BlockPool(total_blocks)
        self.block_size = block_size
        self.slots = slots
        self.leases: dict[int, Lease] = {}
        self.fences: list[Fence] = []
        self.landed = -1
        self._free_slots = list(range(slots - 1, -1, -1))

    @property
    def available_blocks(self) -> int:
        """Blocks that `grow` can hand out now: free ones, and cached ones that it would evict."""
        return self.pool.available

    @property
    def total_blocks(self) -> int:
        return self.pool.total

    @property
    def fair_share(self) -> int:
        """Blocks that each sequence has if every slot is taken: at least one. What a lease leaves
        in the prefix cache beyond it is evicted before anything else."""
        return max(1, self.pool.total // max(1, self.slots))

    @property
    def free_slots(self) -> int:
        """Slots that `open` can hand out now."""
        return len(self._free_slots)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens of one sequence."""
        return -(-tokens // self.block_size)

    def lease(self, seq: int) -> Lease:
        """The open lease of `seq`, which must have one."""
        lease = self.leases.get(seq)
        assert lease is not None, f"sequence {seq} has no open lease"
        return lease

    def open(self, seq: int) -> Lease | None:
        """Give `seq` a slot and no blocks yet; None when no slot is free."""
        assert seq not in self.leases, f"sequence {seq} is open already"
        if not self._free_slots:
            return None
        lease = self.leases[seq] = Lease(seq, self._free_slots.pop())
        return lease

    def find(self, keys: Sequence[bytes], window: Window | None = None) -> list[int]:
        """Blocks that hold the longest known beginning of a sequence, whose blocks go by these
        keys. Through a window only the last of them are needed, and holes stand for those before.
        """
        known, found = self.pool.prefixes.blocks, []
        for key in keys:
            block = known.get(key, HOLE)
            if block == HOLE and window is None:
                break
            found.append(block)
        if window is None:
            return found
        del found[longest_known([block != HOLE for block in found], window) :]
        unread = window.first_block(len(found) * self.block_size)
        return [HOLE] * unread + found[unread:]

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of the blocks are available as long as nobody shares them."""
        return sum(block in self.pool.prefixes.idle for block in blocks)

    def sole_blocks(self, seq: int) -> int:
        """Blocks that become available when the lease of `seq` ends: nobody else refers to them."""
        return sum(self.pool.refs[block] == 1 for block in self.lease(seq).held)

    def share(self, seq: int, blocks: Sequence[int]) -> None:
        """Start the block table of `seq`, which has no blocks yet, with what `find` found. Nobody
        may write the target's KV in those blocks from now on."""
        lease = self.lease(seq)
        assert not lease.blocks, f"sequence {seq} has blocks already"
        lease.blocks.extend(blocks)
        lease.dropped = blocks.count(HOLE)
        self.pool.share(lease.held)

    def publish(self, seq: int, keys: Sequence[bytes], first: int) -> None:
        """Blocks `first`, `first + 1`, … of the table of `seq` are full of the target's KV: they
        can be found by these keys. Nobody may write to that from now on."""
        lease = self.lease(seq)
        assert first >= lease.dropped, f"sequence {seq} publishes blocks that it has dropped"
        blocks = lease.blocks[first : first + len(keys)]
        for block, key in zip(blocks, keys, strict=True):
            self.pool.publish(block, key)

    def grow(self, seq: int, tokens: int) -> tuple[int, ...] | None:
        """Extend the block table of `seq` so that `tokens` tokens fit in all.

        Returns the blocks appended (none if they fit already), or None with nothing changed if
        the pool lacks them: it never succeeds in part.
        """
        lease = self.lease(seq)
        missing = self.blocks_for(tokens) - len(lease.blocks)
        if missing <= 0:
            return ()
        added = self.pool.take(missing)
        if added is not None:
            lease.blocks.extend(added)
        return added

    def drop(self, seq: int, count: int) -> None:
        """End the references of `seq` to the first `count` blocks of its table, or to those of them
        that are left: no row of it reads them again, in the air or later. Their places stay."""
        lease = self.lease(seq)
        assert count <= len(lease.blocks), f"sequence {seq} has no {count} blocks to drop"
        if count > lease.dropped:
            freed = lease.blocks[lease.dropped : count]
            lease.blocks[lease.dropped : count] = [HOLE] * len(freed)
            lease.dropped = count
            self.pool.drop(freed, BlockState.HELD)

    def release(self, seq: int, fence: int | None) -> None:
        """End the lease of `seq`, whose last row was in step `fence` (None: it had no row).

        If that step has landed, blocks and slot are free at once; else when it lands.
        """
        lease = self.lease(seq)
        del self.leases[seq]
        if fence is None or fence <= self.landed:
            self._return(lease, BlockState.HELD)
        else:
            self.pool.fence(lease.held)
            self.fences.append(Fence(fence, lease))

    def land(self, step: int) -> None:
        """Step `step` and all before it have landed: free what waited for them, oldest first."""
        assert step > self.landed, f"step {step} landed after step {self.landed}"
        self.landed = step
        waiting: list[Fence] = []
        for fence in self.fences:
            if fence.step > step:
                waiting.append(fence)
            else:
                self._return(fence.lease, BlockState.FENCED)
        self.fences = waiting

    def counts(self) -> dict[str, int]:
        """Blocks by state: free + cached + held + fenced = total."""
        tally = self.pool.tally
        return {
            "total": self.pool.total,
            "free": tally[BlockState.FREE],
            "cached": tally[BlockState.CACHED],
            "held": tally[BlockState.HELD],
            "fenced": tally[BlockState.FENCED],
        }

    def check(self) -> list[str]:
        """A sentence for each of the `findings`, [] if the books are sound."""
        return [finding.text for finding in self.findings()]

    def findings(self) -> list[Finding]:
        """Re-derive every state from leases and fences, and find every discrepancy."""
        return audit(
            self.pool,
            leases=self.leases,
            fences=self.fences,
            landed=self.landed,
            free_slots=self._free_slots,
            slots=self.slots,
        )

    def _return(self, lease: Lease, state: BlockState) -> None:
        self.pool.drop(lease.held, state, warm=self.fair_share)
        self._free_slots.append(lease.slot)
