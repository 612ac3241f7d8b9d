"""A model that drafts follows its sequences as late as it likes: whenever guesses are wanted, they
are those of one that has followed all the while, and nothing is read that belongs to other tokens.
"""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.kv.tensors import KvStore
from paceline.spec import head as head_module
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Window
from paceline.spec.head import HeadDrafter
from paceline.spec.plan import Opening
from paceline.spec.slots import Slot, Slots
from support.heard import head_drafter
from support.tiny_heads import save_head
from support.tiny_pair import BLOCK_SIZE, BLOCKS, GREEDY, MAX_LEN, SLOTS, VOCAB, Models

TEXTS = [tuple(Random(i).randrange(3, VOCAB) for _ in range(MAX_LEN)) for i in range(2)]
EACH = MAX_LEN // BLOCK_SIZE
JUNK = 3.0


@pytest.fixture(scope="module", params=["auto", "int8"])
def fp32(request, directory) -> Models:
    return Models(directory, torch.float32, request.param)


@pytest.fixture(scope="module", params=["model", "head"])
def make(request, fp32, tmp_path_factory):
    """Fresh drafters of one kind, which share their weights."""
    files = save_head(tmp_path_factory.mktemp("head"), fp32.directory / "target")
    first = head_drafter(fp32, files) if request.param == "head" else None

    def build():
        if first is None:
            return DraftModel(fp32.first, fp32.kv_for(fp32.first), BLOCK_SIZE, VOCAB)
        fresh = head_drafter(fp32, files)
        fresh._head = first._head
        return fresh

    return build


def states_of(text: int, width: int, changed: int = MAX_LEN) -> Tensor:
    """What a target might make of a text; of another one that differs from token `changed` on."""
    made = torch.randn(MAX_LEN, width, generator=torch.Generator().manual_seed(text))
    other = torch.randn(MAX_LEN, width, generator=torch.Generator().manual_seed(99 + text))
    return torch.cat((made[:changed], other[changed:]))


class Stage:
    """Sequences of known texts in a drafter's slots: the target is played, its states made up."""

    def __init__(self, drafter, junk: bool = False) -> None:
        self.drafter = drafter
        self.slots = Slots(SLOTS, MAX_LEN)
        self.head = isinstance(drafter, HeadDrafter)
        self.states = {}
        if junk:
            spoil(drafter._kv, range(BLOCKS))

    def open(self, index: int, text: int, known: int, blocks: list[int], cached: int = 0) -> Slot:
        slot = self.slots.open(
            Opening(index, index, TEXTS[text][:known], GREEDY, "draft", cached=cached)
        )
        self.drafter.open(slot)
        slot.blocks.extend(blocks)
        if self.head:
            self.states[index] = states_of(text, self.drafter._unknown.shape[1])
        return slot

    @torch.inference_mode()
    def step(self, index: int, count: int, k: int, text: int) -> list[int]:
        """`count` more tokens are computed; where these are all, another is known behind them."""
        slot = self.slots[index]
        start, end = slot.computed, slot.computed + count
        (draft,) = self.drafter.propose([Window(slot, end, k)])
        slot.advance(count, [TEXTS[text][slot.known]] if end == slot.known else [])
        if self.head:
            self.drafter.learn(slot, self.states[index][start:end])
        return draft


def spoil(kv: KvStore, blocks) -> None:
    for layer in kv.layers:
        for tensor in layer.tensors:
            tensor[:, list(blocks)] = JUNK if tensor.is_floating_point() else 3


def follow(stage: Stage, index: int, text: int, to: int) -> dict[int, list[int]]:
    """Decode up to so many known tokens, three guesses wanted in every step; by known tokens."""
    heard = {}
    slot = stage.slots[index]
    while slot.known < to:
        count, known = slot.known - slot.computed, slot.known
        heard[known] = stage.step(index, count, 3, text)
    return heard


@pytest.fixture(scope="module")
def wanted(make) -> dict[int, list[int]]:
    """The guesses of one that always followed, by known tokens."""
    always = Stage(make())
    always.open(0, 0, 1, list(range(EACH)))
    return follow(always, 0, 0, 140)


schedules = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 3), st.sampled_from([True] * 7 + [False])),
    max_size=24,
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedules, st.integers(1, 60), st.integers(0, 99))
def test_after_any_lag_guesses_are_those_of_one_that_always_followed(
    make, wanted, steps, known, seed
):
    late = Stage(make(), junk=True)
    dice = Random(seed)
    slot = late.open(0, 0, known, dice.sample(range(BLOCKS), EACH))
    for count, k, stays in steps:
        if slot.known > 120:
            break
        if not stays:  # it gives way, and comes back to other blocks
            slot = late.open(0, 0, slot.known, dice.sample(range(BLOCKS), EACH))
        count = min(count, slot.known - slot.computed)
        whole = slot.computed + count == slot.known
        heard = late.step(0, count, k if whole else 0, 0)
        if heard:
            assert heard == wanted[slot.known - 1][: len(heard)]
    while slot.known - slot.computed > 1:
        late.step(0, slot.known - slot.computed - 1, 0, 0)
    for known, heard in follow(late, 0, 0, min(slot.known + 6, 140)).items():
        assert heard == wanted[known]


@pytest.mark.parametrize("lag", [0, 3])
def test_behind_shared_blocks_of_others_whatever_these_have_drafted(make, wanted, lag):
    """The owner of the blocks drafts, lags, and fills the draft's half of them or does not."""
    stage = Stage(make(), junk=True)
    owner = stage.open(0, 0, 50, list(range(EACH)))
    stage.step(0, 49, 0, 0)
    for i in range(20):
        stage.step(0, 1, 3 if lag == 0 or i % (lag + 1) == 0 else 0, 0)
    shared = owner.computed // BLOCK_SIZE
    table = list(range(shared)) + list(range(EACH, 2 * EACH - shared))
    stage.open(1, 0, 90, table, cached=shared * BLOCK_SIZE)
    before = stage.slots[1].known - stage.slots[1].computed - 1
    stage.step(1, before, 0, 0)
    for known, heard in follow(stage, 1, 0, 100).items():
        assert heard == wanted[known]


@pytest.mark.parametrize("others", ["none", "another text", "half of the text"])
def test_shared_blocks_without_the_drafts_numbers_are_not_read(make, others):
    """The blocks are filled by a sequence that nothing drafts for. Before, others were in them."""

    def run(stage: Stage) -> dict[int, list[int]]:
        cached = 4 * BLOCK_SIZE
        stage.open(1, 0, 80, list(range(EACH)), cached=cached)
        stage.step(1, 15, 0, 0)
        return follow(stage, 1, 0, 100)

    wanted = run(Stage(make()))
    stage = Stage(make(), junk=others == "none")
    if others != "none":
        text = 1 if others == "another text" else 0
        blocks = [0, 2, 1, 3, *range(4, EACH)] if text == 0 else list(range(EACH))
        stage.open(0, text, 1, blocks)
        follow(stage, 0, text, 50)
    if stage.head or others == "none":
        spoil(stage.drafter._kv, range(4) if others == "none" else ())
    assert run(stage) == wanted


def test_a_block_that_was_written_to_since_does_not_hold_what_it_held(make):
    """A text is followed, then another begins to fill the same blocks, and then the first is found
    in them again, put there by a sequence that nothing drafts for."""
    stage = Stage(make())
    stage.open(0, 0, 1, list(range(EACH)))
    follow(stage, 0, 0, 70)
    stage.open(0, 1, 1, list(range(EACH)))
    follow(stage, 0, 1, 55)
    stage.open(1, 0, 80, list(range(EACH)), cached=64)
    stage.step(1, 15, 0, 0)
    heard = follow(stage, 1, 0, 100)
    fresh = Stage(make())
    if fresh.head:
        # None of four blocks is as it was, but the state of the last token in them is known still.
        fresh.open(0, 0, 1, list(range(EACH)))
        follow(fresh, 0, 0, 70)
        fresh.drafter._held.forget(range(4))
        spoil(fresh.drafter._kv, range(4))
    fresh.open(1, 0, 80, list(range(EACH)), cached=64)
    fresh.step(1, 15, 0, 0)
    assert heard == follow(fresh, 1, 0, 100)


def test_a_head_that_lagged_too_far_sees_a_text_that_begins_later(fp32, tmp_path, monkeypatch):
    if fp32.kv_dtype != "auto":
        pytest.skip("eight bits are scaled by what else is in a block")
    monkeypatch.setattr(head_module, "LAG", 2 * BLOCK_SIZE)
    files = save_head(tmp_path, fp32.directory / "target")
    stage = Stage(head_drafter(fp32, files), junk=True)
    slot = stage.open(0, 0, 121, list(range(EACH)))
    for count in (1, 7, 70, 11, 31):
        stage.step(0, count, 0, 0)
    reach, trail = stage.drafter._reaches[0], stage.drafter._trails[0]
    assert 120 - 32 <= reach.origin < 120 - 32 + BLOCK_SIZE
    assert reach.origin % BLOCK_SIZE == 0
    assert trail.begin == reach.origin - 1
    origin, heard = reach.origin, stage.step(0, 1, 3, 0)
    # The same text without what lies before, at the positions that it then has.
    late = Stage(head_drafter(fp32, files))
    late.drafter._head = stage.drafter._head
    other = late.slots.open(Opening(0, 0, TEXTS[0][origin:121], GREEDY, "draft"))
    late.drafter.open(other)
    other.blocks.extend(range(EACH))
    states = stage.states[0]
    with torch.inference_mode():
        late.drafter._trail(other).reset(0, states[origin - 1 : origin])
        other.advance(120 - origin, [])
        late.drafter.learn(other, states[origin:120])
        assert late.drafter.propose([Window(other, other.known, 3)]) == [heard]
    assert slot.computed == 121


def test_states_of_a_long_prompt_are_let_go(fp32, tmp_path, monkeypatch):
    monkeypatch.setattr(head_module, "LAG", 2 * BLOCK_SIZE)
    drafter = head_drafter(fp32, save_head(tmp_path, fp32.directory / "target"))
    stage = Stage(drafter)
    stage.open(0, 0, 150, list(range(EACH)))
    for count in (140, 9):
        stage.step(0, count, 0, 0)
        assert drafter._trails[0]._rows.shape[0] == 4 * BLOCK_SIZE + 1
        assert drafter._trails[0].end - drafter._trails[0].begin <= 4 * BLOCK_SIZE + 1
    assert len(stage.step(0, 1, 2, 0)) == 2
