"""The draft model's guesses depend on the known tokens alone, whatever it has or has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from paceline.models.decoder import Decoder
from paceline.spec import model_drafter
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Window
from paceline.spec.params import SamplingParams
from paceline.spec.plan import Opening
from paceline.spec.slots import Slots
from support.tiny_pair import BLOCK_SIZE, MAX_LEN, VOCAB, KvDtype, finite, kv_for, load, save_models

GREEDY = SamplingParams(temperature=0.0, seed=1)
SAMPLED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=77)
BLOCKS_EACH = MAX_LEN // BLOCK_SIZE


class Bench:
    """A drafter over slots with random texts of full length, each with its own blocks."""

    kv_dtype: KvDtype = "auto"

    def __init__(self, decoder: Decoder, count: int = 4) -> None:
        self.slots = Slots(count, MAX_LEN)
        kv = kv_for(decoder, self.kv_dtype)
        self.drafter = DraftModel(decoder, kv, BLOCK_SIZE, VOCAB)
        for i in range(count):
            self.open(i)

    def open(self, index: int, seed: int = 0) -> None:
        random = Random(f"{index} {seed}")
        tokens = tuple(random.randrange(VOCAB) for _ in range(MAX_LEN))
        params = SAMPLED if index % 2 else GREEDY
        slot = self.slots.open(Opening(index, index, tokens, params, "draft"))
        slot.blocks.extend(range(index * BLOCKS_EACH, (index + 1) * BLOCKS_EACH))
        self.drafter.open(slot)

    def propose(self, *windows: tuple[int, int, int]) -> list[list[int]]:
        with torch.inference_mode():
            return self.drafter.propose([Window(self.slots[i], u, k) for i, u, k in windows])


@pytest.fixture(scope="module", params=["auto", "int8"])
def kv_dtype(request: pytest.FixtureRequest) -> Iterator[KvDtype]:
    """The format of every bench's KV."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "kv_dtype", request.param)
        yield request.param


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def decoder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kv_dtype: KvDtype
) -> Decoder:
    directory = save_models(tmp_path_factory.mktemp("draft"))
    return load(directory / "first", request.param)


@pytest.fixture
def forwards(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward of the decoder."""
    rows: list[int] = []
    inner = decoder.forward

    def counted(batch, caches):  # type: ignore[no-untyped-def]
        rows.append(len(batch.tokens))
        return inner(batch, caches)

    monkeypatch.setattr(decoder, "forward", counted)
    return rows


def test_guesses_do_not_depend_on_the_history(decoder: Decoder) -> None:
    random = Random(5)
    bench = Bench(decoder)
    upto = [random.randint(1, 60) for _ in range(4)]
    for _ in range(12):
        rows = random.sample(range(4), random.randint(1, 4))
        windows = [(i, upto[i], random.randint(0, 6)) for i in rows]
        got = bench.propose(*windows)
        for (i, u, k), draft in zip(windows, got, strict=True):
            assert len(draft) == k
            assert [draft] == Bench(decoder).propose((i, u, k))
            # Where nothing is wanted, it may lag behind.
            assert bench.drafter.computed(bench.slots[i]) == u or k == 0
        upto = [min(u + random.choice([0, 1, 2, 3, 20]), MAX_LEN - 8) for u in upto]


def test_guesses_that_come_true_are_not_computed_again(
    decoder: Decoder, forwards: list[int]
) -> None:
    bench = Bench(decoder, 1)
    slot = bench.slots[0]
    [draft] = bench.propose((0, 20, 5))
    assert forwards == [20, 1, 1, 1, 1]
    # Three come true; then another token follows.
    slot.tokens[20:23] = draft[:3]
    slot.tokens[23] = (draft[3] + 1) % VOCAB
    forwards.clear()
    [more] = bench.propose((0, 24, 2))
    assert forwards == [1, 1]
    forwards.clear()
    fresh = Bench(decoder, 1)
    fresh.slots[0].tokens[:] = slot.tokens
    assert fresh.propose((0, 24, 2)) == [more]
    # All come true, so the last of them, which nothing followed, is still to be computed.
    slot.tokens[24:26] = more
    slot.tokens[26] = 9
    forwards.clear()
    bench.propose((0, 27, 1))
    assert forwards == [2]


def test_any_lag_is_made_up_in_one_forward(decoder: Decoder, forwards: list[int]) -> None:
    bench = Bench(decoder)
    bench.propose((0, 10, 1), (1, 3, 0))
    assert forwards == [10]
    bench.propose((0, 90, 1), (1, 4, 3), (2, 50, 0))
    assert forwards == [10, 80 + 4, 1, 1]


def test_a_lag_is_made_up_piece_by_piece(
    decoder: Decoder, forwards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Bench(decoder).propose((0, 90, 2), (1, 40, 1), (2, 1, 1))
    forwards.clear()
    monkeypatch.setattr(model_drafter, "PIECE", 30)
    assert Bench(decoder).propose((0, 90, 2), (1, 40, 1), (2, 1, 1)) == wanted
    assert sum(forwards) == 90 + 40 + 1 + 1
    assert max(forwards) <= 30


def test_whoever_asks_for_nothing_costs_nothing(decoder: Decoder, forwards: list[int]) -> None:
    bench = Bench(decoder)
    assert bench.propose() == []
    assert bench.propose((0, 30, 0)) == [[]]
    assert forwards == []
    bench.propose((0, 30, 0), (1, 5, 2))
    assert forwards == [5, 1]


def test_asking_twice_gives_the_same_answer(decoder: Decoder) -> None:
    bench = Bench(decoder)
    windows = [(0, 33, 4), (1, 12, 2)]
    assert bench.propose(*windows) == bench.propose(*windows)


def test_a_failure_leaves_it_as_fit_as_before(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(decoder)
    bench.propose((0, 20, 3), (1, 20, 3))
    inner = decoder.forward
    for failing in range(3):
        calls = iter(range(9))

        def forward(batch, caches, calls=calls, failing=failing):  # type: ignore[no-untyped-def]
            if next(calls) == failing:
                raise RuntimeError("injected")
            return inner(batch, caches)

        monkeypatch.setattr(decoder, "forward", forward)
        with pytest.raises(RuntimeError, match="injected"):
            bench.propose((0, 25, 3), (1, 21, 4))
    monkeypatch.setattr(decoder, "forward", inner)
    expected = Bench(decoder).propose((0, 25, 3), (1, 21, 4))
    assert bench.propose((0, 25, 3), (1, 21, 4)) == expected


def test_a_reopened_slot_starts_from_nothing(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.propose((0, 50, 3))
    bench.open(0, seed=1)
    fresh = Bench(decoder)
    fresh.open(0, seed=1)
    assert bench.propose((0, 40, 4)) == fresh.propose((0, 40, 4))


def test_numbers_that_are_not_finite_end_the_drafting_and_leave_no_trace(
    tmp_path: Path, kv_dtype: KvDtype
) -> None:
    decoder = load(save_models(tmp_path) / "first", torch.float32, poisoned=7)
    bench = Bench(decoder)
    for slot in (bench.slots[0], bench.slots[1]):
        slot.tokens[slot.tokens == 7] = 8
    bench.slots[0].tokens[25] = 7
    expected = bench.propose((1, 30, 3))
    assert bench.propose((0, 30, 3), (1, 30, 3)) == [[], *expected]
    assert finite(bench.drafter._kv)
    assert bench.propose((0, 33, 3), (1, 30, 3)) == [[], *expected]
    bench.open(0, seed=2)
    bench.slots[0].tokens[bench.slots[0].tokens == 7] = 8
    assert len(bench.propose((0, 30, 3))[0]) == 3


def test_guesses_with_odds_are_drawn_from_them_with_noise_of_their_own(decoder: Decoder) -> None:
    bench = Bench(decoder)
    with torch.inference_mode():
        windows = [Window(bench.slots[i], 40, 4, odds=[]) for i in (1, 3)]
        drafts = bench.drafter.propose(windows)
        again = [Window(bench.slots[i], 40, 4, odds=[]) for i in (1, 3)]
        assert bench.drafter.propose(again) == drafts
    assert drafts != bench.propose((1, 40, 4), (3, 40, 4))
    for window, draft in zip(windows, drafts, strict=True):
        assert window.odds is not None
        assert len(window.odds) == len(draft) == 4
        for odds, guess in zip(window.odds, draft, strict=True):
            assert odds.shape == (VOCAB,)
            assert float(odds.sum()) == pytest.approx(1.0, abs=1e-5)
            assert odds[guess] > 0.0
            # Within the request's limits.
            assert int((odds > 0.0).sum()) <= 20
