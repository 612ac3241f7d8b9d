"""The ledger against a slow model that keeps one owner per block and searches for everything.

Each rule is one call. After each call all of the ledger's public numbers are compared with the
model's, and `check()` must find nothing.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.kv.ledger import Ledger

SEQS = range(8)


def anything_open(machine: "LedgerMachine") -> bool:
    return bool(machine.tables)


def anything_owned(machine: "LedgerMachine") -> bool:
    return any(machine.slot_owner)


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        total=st.integers(0, 40), block_size=st.sampled_from([1, 4, 16]), slots=st.integers(1, 6)
    )
    def start(self, total: int, block_size: int, slots: int) -> None:
        self.ledger = Ledger(total, block_size, slots)
        self.block_size = block_size
        # An owner is None (free), ("held", seq) or ("fenced", step).
        self.block_owner: list[tuple[str, int] | None] = [None] * total
        self.slot_owner: list[tuple[str, int] | None] = [None] * slots
        self.tables: dict[int, list[int]] = {}
        self.landed = -1
        self.peak = 0
        self.touched: set[int] = set()

    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq in SEQS if seq not in self.tables]))
        lease = self.ledger.open(seq)
        if None not in self.slot_owner:
            assert lease is None
            return
        assert (lease.seq, lease.blocks) == (seq, [])
        assert self.slot_owner[lease.slot] is None
        self.slot_owner[lease.slot] = ("held", seq)
        self.tables[seq] = []

    @precondition(anything_open)
    @rule(data=st.data(), more=st.integers(0, 9), spare=st.integers(0, 15))
    def grow(self, data: st.DataObject, more: int, spare: int) -> None:
        seq = data.draw(st.sampled_from(list(self.tables)))
        table = self.tables[seq]
        tokens = max(0, (len(table) + more) * self.block_size - spare)
        missing = 0
        while (len(table) + missing) * self.block_size < tokens:
            missing += 1
        added = self.ledger.grow(seq, tokens)
        if missing > self.block_owner.count(None):
            assert added is None
            return
        assert len(added) == missing
        for block in added:
            assert self.block_owner[block] is None, "a block in use was handed out"
            self.block_owner[block] = ("held", seq)
        table.extend(added)
        self.touched.update(added)
        used = len(self.block_owner) - self.block_owner.count(None)
        self.peak = max(self.peak, used)

    @precondition(anything_open)
    @rule(data=st.data(), ahead=st.one_of(st.none(), st.integers(-3, 4)))
    def release(self, data: st.DataObject, ahead: int | None) -> None:
        seq = data.draw(st.sampled_from(list(self.tables)))
        fence = None if ahead is None else self.landed + ahead
        self.ledger.release(seq, fence)
        after = ("fenced", fence) if fence is not None and fence > self.landed else None
        self._replace(lambda owner: owner == ("held", seq), after)
        del self.tables[seq]

    @precondition(anything_owned)
    @rule(steps=st.integers(1, 3))
    def land(self, steps: int) -> None:
        self.landed += steps
        self.ledger.land(self.landed)
        self._replace(lambda owner: owner[0] == "fenced" and owner[1] <= self.landed, None)

    def _replace(self, which, after) -> None:
        for owners in (self.block_owner, self.slot_owner):
            owners[:] = [after if x is not None and which(x) else x for x in owners]

    @invariant()
    def the_ledger_agrees_with_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        kinds = [owner[0] if owner else "free" for owner in self.block_owner]
        assert self.ledger.counts() == {
            "total": len(kinds),
            "free": kinds.count("free"),
            "cached": 0,
            "held": kinds.count("held"),
            "fenced": kinds.count("fenced"),
        }
        assert self.ledger.free_blocks == kinds.count("free")
        assert self.ledger.free_slots == self.slot_owner.count(None)
        for seq, table in self.tables.items():
            assert self.ledger.lease(seq).blocks == table
            assert self.slot_owner[self.ledger.lease(seq).slot] == ("held", seq)
        assert self.ledger.check() == []

    @invariant()
    def no_more_of_the_pool_is_touched_than_its_peak_use(self) -> None:
        if hasattr(self, "ledger"):
            assert self.touched == set(range(self.peak))

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for offset, seq in enumerate(list(self.tables)):
            self.ledger.release(seq, self.landed + offset)
        self.ledger.land(self.landed + 10)
        total = len(self.block_owner)
        expected = {"total": total, "free": total, "cached": 0, "held": 0, "fenced": 0}
        assert self.ledger.counts() == expected
        assert self.ledger.free_slots == len(self.slot_owner)
        assert self.ledger.check() == []


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, derandomize=True
)
