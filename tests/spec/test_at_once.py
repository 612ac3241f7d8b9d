"""A native head's guesses for a step in one call: those it makes round by round, to the last bit of
what is left in its KV, whoever else is drafted for in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.kernels.native import build
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.cache import default_cache_dir
from paceline.models.checkpoint import load_checkpoint
from paceline.models.config import load_config
from paceline.models.head import OUTPUT, load_head_tensors, output_matrix
from paceline.models.head_config import load_head_config
from paceline.models.layout import EMBEDDING
from paceline.models.native import NativeDecoder
from paceline.models.native_head import NativeHead
from paceline.models.weights import load_weights
from paceline.spec import model_drafter
from paceline.spec.drafter import Window
from paceline.spec.head import HeadDrafter
from paceline.spec.params import SamplingParams
from paceline.spec.plan import Opening
from paceline.spec.processors import Processors
from paceline.spec.slots import Slots
from support.tiny_heads import save_head
from support.tiny_models import save_tiny

FOLDER = default_cache_dir() / "native"
VOCAB, MAX_LEN, SLOTS = 512, 90, 4
SIZES = {
    "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCAB, "num_hidden_layers": 3,
    "max_position_embeddings": 256,
}  # fmt: skip
PARAMS = [
    SamplingParams(temperature=0.0, seed=0),
    SamplingParams(temperature=1.0, seed=2**62 + 9),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=-5),
    SamplingParams(temperature=1.3, min_p=0.02, typical_p=0.9, seed=7),
]

pytestmark = pytest.mark.skipif(
    build.obstacle(FOLDER) is not None, reason=str(build.obstacle(FOLDER))
)


class ByRounds(HeadDrafter):
    """One that asks for guesses round after round."""

    def _at_once(self, windows, feeds):
        return {}


@dataclass(frozen=True)
class Heads:
    """A target and heads of one layer and of two, computed by one thread and by two."""

    heads: dict[tuple[int, int], NativeHead]

    def drafter(
        self, kind: type[HeadDrafter], layers: int, threads: int, block_size: int
    ) -> HeadDrafter:
        head = self.heads[layers, threads]
        config = head.config
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, 2)
        blocks = SLOTS * -(-MAX_LEN // block_size) + 3
        kv = allocate(shape, blocks, block_size, torch.bfloat16, "cpu")
        for layer in kv.layers:
            layer.cells.fill_(7.5)
        return kind(head, kv, block_size)


def head_in(
    files: Path, directory: Path, target: NativeDecoder, poisoned: Sequence[int] = ()
) -> NativeHead:
    """poisoned: tokens whose embeddings, which the head must have itself, are not numbers."""
    config = load_head_config(files, load_config(directory))
    tensors = load_head_tensors(files, config)
    if poisoned:
        tensors[EMBEDDING][list(poisoned)] = torch.nan
    rows = output_matrix(load_weights(directory), target.config.tie_head)
    return NativeHead(config, tensors | {OUTPUT: rows[tensors["d2t"]]}, target)


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Heads:
    directory = save_tiny(tmp_path_factory.mktemp("target"), "qwen3", **SIZES)
    config, made = load_config(directory), {}
    for threads in (1, 2):
        checkpoint = load_checkpoint(directory, config, "int8")
        target = NativeDecoder(config, checkpoint, threads=threads, folder=FOLDER)
        for layers in (1, 2):
            layer = {"num_hidden_layers": layers}
            files = save_head(tmp_path_factory.mktemp("head"), directory, taps=(1, 3), layer=layer)
            made[layers, threads] = head_in(files, directory, target)
    return Heads(made)


class Stage:
    """Sequences in the slots of a drafter. What the target makes of them is made up."""

    def __init__(self, drafter: HeadDrafter, seed: int) -> None:
        self.drafter = drafter
        self.slots = Slots(SLOTS, MAX_LEN)
        self.dice = Random(seed)
        width = drafter._unknown.shape[1]
        made = torch.randn(SLOTS, MAX_LEN, width, generator=torch.Generator().manual_seed(seed))
        self.states = made.to(drafter._unknown.dtype)
        self.texts = [[self.dice.randrange(3, VOCAB) for _ in range(MAX_LEN)] for _ in range(SLOTS)]
        each = -(-MAX_LEN // drafter._block_size)
        ids = self.dice.sample(range(drafter._kv.blocks), SLOTS * each)
        self.tables = [ids[i * each : (i + 1) * each] for i in range(SLOTS)]

    def open(self, index: int, known: int, params: SamplingParams, cached: int = 0) -> None:
        tokens = tuple(self.texts[index][:known])
        slot = self.slots.open(Opening(index, index, tokens, params, "draft", cached=cached))
        self.drafter.open(slot)
        slot.blocks.extend(self.tables[index])

    def window(self, index: int, k: int, odds: list | None = None) -> Window:
        return Window(self.slots[index], self.slots[index].known, k, odds)

    @torch.inference_mode()
    def compute(self, index: int, count: int) -> None:
        """The target computes so many known tokens; where these are all, one more is known."""
        slot, start = self.slots[index], self.slots[index].computed
        whole = start + count == slot.known
        slot.advance(count, self.texts[index][slot.known : slot.known + 1] if whole else [])
        self.drafter.learn(slot, self.states[index, start : start + count])

    @torch.inference_mode()
    def propose(self, windows: list[Window]) -> list[list[int]]:
        return self.drafter.propose(windows)


def cells(drafter: HeadDrafter) -> list[torch.Tensor]:
    return [layer.cells.clone().view(torch.int16) for layer in drafter._kv.layers]


def same_cells(a: HeadDrafter, b: HeadDrafter) -> bool:
    return all(torch.equal(x, y) for x, y in zip(cells(a), cells(b), strict=True))


turns = st.lists(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=SLOTS, max_size=SLOTS),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    turns, st.sampled_from([1, 16, 32]), st.sampled_from([1, 2]), st.sampled_from([1, 2]),
    st.lists(st.integers(2, 40), min_size=SLOTS, max_size=SLOTS), st.booleans(),
    st.integers(0, 2**20),
)  # fmt: skip
def test_guesses_and_keys_and_values_are_those_of_a_round_at_a_time(
    heads, turns, block_size, layers, threads, known, cached, seed
):
    quick = Stage(heads.drafter(HeadDrafter, layers, threads, block_size), seed)
    slow = Stage(heads.drafter(ByRounds, layers, 1, block_size), seed)
    for stage in (quick, slow):
        for i, count in enumerate(known):
            shared = (count - 1) // block_size * block_size if cached and i % 2 else 0
            stage.open(i, count, PARAMS[i], cached=shared)
            stage.compute(i, count - shared)
    for turn in turns:
        proposed = []
        for stage in (quick, slow):
            windows = [stage.window(i, k) for i, (_, k) in enumerate(turn)]
            proposed.append(stage.propose(windows))
            for i, (count, _) in enumerate(turn):
                for _ in range(min(count, MAX_LEN - 6 - stage.slots[i].known)):
                    stage.compute(i, 1)
        assert proposed[0] == proposed[1]
        assert [len(draft) for draft in proposed[0]] == [k for _, k in turn]
        assert same_cells(quick.drafter, slow.drafter)


def test_a_text_that_begins_later_is_guessed_for_at_its_own_positions(heads):
    stages = []
    for kind in (HeadDrafter, ByRounds):
        stage = Stage(heads.drafter(kind, 1, 2, 16), 3)
        stage.open(0, 60, PARAMS[0], cached=48)
        stage.compute(0, 12)
        stages.append(stage)
    drafts = [stage.propose([stage.window(0, 4)]) for stage in stages]
    assert all(stage.drafter._reaches[0].origin == 48 for stage in stages)
    assert drafts[0] == drafts[1]
    assert same_cells(stages[0].drafter, stages[1].drafter)


def processed(stage: Stage, index: int) -> None:
    params = SamplingParams(temperature=0.0, seed=1, logit_bias={5: 100.0})
    slot = stage.slots[index]
    slot.params = params
    slot.processors = Processors(
        params, prompt=slot.known, longest=MAX_LEN + 1, ends=frozenset(), guide=None,
        device=torch.device("cpu"),
    )  # fmt: skip


def test_each_window_is_guessed_for_by_its_own_kind_in_any_company(heads, monkeypatch):
    """One has a processor, for one odds are asked, two are plain."""

    def staged(kind: type[HeadDrafter]) -> Stage:
        stage = Stage(heads.drafter(kind, 1, 2, 16), 4)
        for i in range(SLOTS):
            stage.open(i, 10 + 7 * i, PARAMS[i])
            stage.compute(i, 10 + 7 * i)
        processed(stage, 0)
        return stage

    quick, slow = staged(HeadDrafter), staged(ByRounds)
    at_once, asked, told = quick.drafter._at_once, [], []

    def heard(windows, feeds):
        drawn = at_once(windows, feeds)
        asked.append(set(drawn))
        return drawn

    monkeypatch.setattr(quick.drafter, "_at_once", heard)
    for stage in (quick, slow):
        odds: list[torch.Tensor] = []
        windows = [stage.window(0, 2), stage.window(1, 3, odds), *map(stage.window, (2, 3), (4, 1))]
        told.append((stage.propose(windows), [it.tolist() for it in odds]))
    assert told[0] == told[1]
    assert [len(draft) for draft in told[0][0]] == [2, 3, 4, 1]
    assert asked == [{2, 3}]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_window_whose_states_are_not_finite_gives_up_and_no_other(heads, threads):
    def staged(kind: type[HeadDrafter], poisoned: bool) -> Stage:
        stage = Stage(heads.drafter(kind, 1, threads, 16), 5)
        if poisoned:
            stage.states[1, 20] = torch.nan
        for i in range(3):
            stage.open(i, 25, PARAMS[i])
            stage.compute(i, 25)
        return stage

    sound, quick, slow = (
        staged(HeadDrafter, False), staged(HeadDrafter, True), staged(ByRounds, True)
    )  # fmt: skip
    drafts = [
        stage.propose([stage.window(i, k) for i, k in enumerate((2, 5, 3))])
        for stage in (sound, quick, slow)
    ]
    assert drafts[1] == drafts[2] == [drafts[0][0], [], drafts[0][2]]
    assert same_cells(quick.drafter, slow.drafter)
    for stage in (quick, slow):
        assert stage.drafter.lag(stage.slots[1]) is None
        assert stage.drafter.lag(stage.slots[0]) is not None
        assert all(bool(layer.cells.isfinite().all()) for layer in stage.drafter._kv.layers)
        assert stage.propose([stage.window(1, 3)]) == [[]]


def test_one_whose_guess_has_no_finite_embedding_gives_up_where_it_is_read(tmp_path):
    """Guesses are odd tokens, known ones here even."""
    directory = save_tiny(tmp_path / "target", "qwen3", **SIZES)
    config = load_config(directory)
    checkpoint = load_checkpoint(directory, config, "int8")
    target = NativeDecoder(config, checkpoint, threads=1, folder=FOLDER)
    files = save_head(tmp_path / "head", directory, taps=(1, 3), own=(EMBEDDING,))
    heads = Heads({(1, 1): head_in(files, directory, target, range(1, VOCAB, 2))})
    drafts = []
    for kind in (HeadDrafter, ByRounds):
        stage = Stage(heads.drafter(kind, 1, 1, 16), 9)
        stage.texts = [[token // 2 * 2 for token in text] for text in stage.texts]
        for i in range(3):
            stage.open(i, 20, PARAMS[i])
            stage.compute(i, 20)
        drafts.append(stage.propose([stage.window(i, k) for i, k in enumerate((1, 3, 1))]))
        assert stage.drafter.lag(stage.slots[1]) is None
        assert all(bool(layer.cells.isfinite().all()) for layer in stage.drafter._kv.layers)
    assert drafts[0] == drafts[1]
    assert [len(draft) for draft in drafts[0]] == [1, 0, 1]


def test_an_end_that_has_no_block_is_found_before_anything_is_written(heads):
    stage = Stage(heads.drafter(HeadDrafter, 1, 1, 16), 6)
    stage.open(0, 16, PARAMS[0])
    stage.compute(0, 16)
    del stage.slots[0].blocks[2:]
    before = cells(stage.drafter)
    # The last guess is not computed: it needs no block.
    with pytest.raises(AssertionError, match="no block for position 32"):
        stage.propose([stage.window(0, 17)])
    assert all(torch.equal(a, b) for a, b in zip(before, cells(stage.drafter), strict=True))
    assert len(stage.propose([stage.window(0, 16)])[0]) == 16


def test_a_long_lag_is_made_up_for_in_pieces(heads, monkeypatch):
    monkeypatch.setattr(model_drafter, "PIECE", 16)
    drafts = []
    for kind in (HeadDrafter, ByRounds):
        stage = Stage(heads.drafter(kind, 2, 2, 16), 8)
        for i in range(SLOTS):
            stage.open(i, 20 + 15 * i, PARAMS[i])
            stage.compute(i, 20 + 15 * i)
        drafts.append(stage.propose([stage.window(i, 4) for i in range(SLOTS)]))
    assert drafts[0] == drafts[1]
    assert all(len(draft) == 4 for draft in drafts[0])
