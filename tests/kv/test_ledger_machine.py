"""The ledger against a slow model that keeps tables, fences and keys, and searches for everything.

Each rule is one call. After each call all of the ledger's public numbers are compared with the
model's, and `check()` must find nothing.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.kv.ledger import Ledger

SEQS = range(8)
KEYS = [bytes([i]) for i in range(24)]


def anything_open(machine: "LedgerMachine") -> bool:
    return bool(machine.tables)


def anything_owned(machine: "LedgerMachine") -> bool:
    return any(machine.slot_owner)


def anything_filled(machine: "LedgerMachine") -> bool:
    return any(machine.tables.values())


def holds(table: list[int]) -> bool:
    return bool(table) and table[-1] != -1


def anything_held(machine: "LedgerMachine") -> bool:
    return any(holds(table) for table in machine.tables.values())


def anything_to_share(machine: "LedgerMachine") -> bool:
    return bool(machine.keys) and not all(machine.tables.values())


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        total=st.integers(0, 40), block_size=st.sampled_from([1, 4, 16]), slots=st.integers(1, 6)
    )
    def start(self, total: int, block_size: int, slots: int) -> None:
        self.ledger = Ledger(total, block_size, slots)
        self.block_size = block_size
        self.total = total
        # An owner is None (free), ("held", seq) or ("fenced", step).
        self.slot_owner: list[tuple[str, int] | None] = [None] * slots
        self.tables: dict[int, list[int]] = {}  # -1 for a block that was dropped
        self.fences: list[tuple[int, list[int]]] = []
        self.keys: dict[int, bytes] = {}
        self.idle: set[int] = set()
        self.landed = -1
        self.peak = 0
        self.touched: set[int] = set()

    def state(self, block: int) -> str:
        if any(block in table for table in self.tables.values()):
            return "held"
        if any(block in table for _, table in self.fences):
            return "fenced"
        return "cached" if block in self.idle else "free"

    def states(self) -> list[str]:
        return [self.state(block) for block in range(self.total)]

    def forsake(self, blocks: list[int]) -> None:
        """The table with these blocks is gone: those with keys are idle."""
        for block in [block for block in blocks if block != -1]:
            if self.state(block) == "free" and block in self.keys:
                self.idle.add(block)

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
        free = self.states().count("free")
        added = self.ledger.grow(seq, tokens)
        if missing > free + len(self.idle):
            assert added is None
            return
        assert len(added) == len(set(added)) == missing
        evicted = added[min(free, missing) :]
        assert set(evicted) <= self.idle, "a block that was not idle was evicted"
        for block in evicted:
            del self.keys[block]
        self.idle.difference_update(evicted)
        assert all(self.state(block) == "free" for block in added), "a block in use was handed out"
        table.extend(added)
        self.touched.update(added)
        self.peak = max(self.peak, self.total - self.states().count("free"))

    @precondition(anything_held)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data: st.DataObject, key: bytes) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.tables if holds(self.tables[seq])]))
        first = data.draw(st.integers(self.tables[seq].count(-1), len(self.tables[seq]) - 1))
        self.ledger.publish(seq, [key], first)
        block = self.tables[seq][first]
        if key not in self.keys.values():
            self.keys.setdefault(block, key)

    @precondition(anything_to_share)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq, table in self.tables.items() if not table]))
        wanted = data.draw(st.lists(st.sampled_from(sorted(self.keys)), unique=True, min_size=1))
        unknown = [key for key in KEYS if key not in self.keys.values()]
        chain = [self.keys[block] for block in wanted] + unknown
        found = self.ledger.find(chain)
        assert found == wanted
        assert self.ledger.idle_among(found) == len(self.idle & set(found))
        holes = data.draw(st.sampled_from([0, 0, 1, 3]))
        found = [-1] * holes + found
        self.ledger.share(seq, found)
        self.tables[seq].extend(found)
        self.idle.difference_update(found)

    @precondition(anything_filled)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq, table in self.tables.items() if table]))
        count = data.draw(st.integers(0, len(self.tables[seq])))
        self.ledger.drop(seq, count)
        dropped = self.tables[seq][:count]
        self.tables[seq][:count] = [-1] * count
        self.forsake(dropped)

    @precondition(anything_open)
    @rule(data=st.data(), ahead=st.one_of(st.none(), st.integers(-3, 4)))
    def release(self, data: st.DataObject, ahead: int | None) -> None:
        seq = data.draw(st.sampled_from(list(self.tables)))
        fence = None if ahead is None else self.landed + ahead
        self.ledger.release(seq, fence)
        waits = fence is not None and fence > self.landed
        table = self.tables.pop(seq)
        if waits:
            self.fences.append((fence, table))
        else:
            self.forsake(table)
        slot = self.slot_owner.index(("held", seq))
        self.slot_owner[slot] = ("fenced", fence) if waits else None

    @precondition(anything_owned)
    @rule(steps=st.integers(1, 3))
    def land(self, steps: int) -> None:
        self.landed += steps
        self.ledger.land(self.landed)
        for fence in [fence for fence in self.fences if fence[0] <= self.landed]:
            self.fences.remove(fence)
            self.forsake(fence[1])
        self.slot_owner = [
            None if owner and owner[0] == "fenced" and owner[1] <= self.landed else owner
            for owner in self.slot_owner
        ]

    @invariant()
    def the_ledger_agrees_with_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        states = self.states()
        assert self.ledger.counts() == {
            "total": self.total,
            **{state: states.count(state) for state in ("free", "cached", "held", "fenced")},
        }
        assert self.ledger.available_blocks == states.count("free") + states.count("cached")
        assert self.ledger.free_slots == self.slot_owner.count(None)
        for seq, table in self.tables.items():
            assert self.ledger.lease(seq).blocks == table
            assert self.slot_owner[self.ledger.lease(seq).slot] == ("held", seq)
        for block, key in self.keys.items():
            assert self.ledger.find([key]) == [block]
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
        cached = len(self.keys)
        expected = {"total": self.total, "free": self.total - cached, "cached": cached}
        assert self.ledger.counts() == {**expected, "held": 0, "fenced": 0}
        assert self.ledger.free_slots == len(self.slot_owner)
        assert self.ledger.check() == []


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, derandomize=True
)
