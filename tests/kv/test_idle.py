"""In which order idle blocks are evicted, against two plain lists."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kv.prefix import PrefixIndex

BLOCKS = range(30)
acts = st.lists(
    st.tuples(st.sampled_from(["rest", "rest", "use", "again", "evict"]), st.integers(1, 30)),
    min_size=20,
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(acts, st.integers(1, 30), st.integers(0, 2**20))
def test_the_next_to_go_is_the_one_that_two_lists_say(done, warm, dice):
    rng = random.Random(dice)
    index = PrefixIndex()
    new: list[int] = []
    proven: list[int] = []
    found: set[int] = set()
    for act, count in done:
        idle = new + proven
        if act in ("use", "again"):
            for block in rng.sample(idle, min(count, len(idle))):
                index.use(block)
                found.add(block)
                new = [it for it in new if it != block]
                proven = [it for it in proven if it != block]
        if act in ("rest", "again"):
            held = sorted(set(BLOCKS) - set(new + proven))
            chain = rng.sample(held, min(count, len(held)))
            for block in chain:
                index.bind(block, bytes([block]))
            index.rest(chain, warm)
            for block in chain[warm:]:
                new.insert(0, block)
            for block in reversed(chain[:warm]):
                (proven if block in found else new).append(block)
        if act == "evict" and idle:
            line = proven if 5 * len(proven) > 4 * len(idle) else new
            gone = line.pop(0)
            assert index.evict() == gone
            assert gone not in index.keys
            found.discard(gone)
        assert list(index.idle) == new + proven
        assert len(index.idle) == len(new + proven)
        assert all((block in index.idle) == (block in new + proven) for block in BLOCKS)
