"""What is measured before anybody is served, and that nothing of it stays; and what a pair paced by
it writes."""

from __future__ import annotations

import pytest

from paceline.kv.capacity import KvShape
from paceline.kv.tensors import KvStore, allocate
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Drafter
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pacing import Pacer
from paceline.spec.pair import ModelPair
from paceline.spec.params import Method
from paceline.spec.rehearsal import rehearse
from paceline.spec.suffix import SuffixDrafter
from support.tiny_pair import (
    BLOCK_SIZE,
    ENDS,
    GREEDY,
    MAX_LEN,
    SAMPLED,
    SLOTS,
    VOCAB,
    Models,
    Texts,
    driver,
    jobs_of,
)


def untouched(kv: KvStore) -> bool:
    return all(not t.any() for layer in kv.layers for t in layer.tensors)


def draft_model(models: Models) -> DraftModel:
    return DraftModel(models.first, models.kv_for(models.first), BLOCK_SIZE, VOCAB)


def test_costs_of_rows_and_of_a_drafts_rounds(models: Models) -> None:
    kv = models.kv_for(models.target)
    costs = rehearse(models.target, kv, draft_model(models), streams=SLOTS, block_size=BLOCK_SIZE)
    assert untouched(kv)
    seconds = [costs.target(rows) for rows in (1, 2, 8, 64, 200)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.0
    assert costs.draft is not None
    assert 0.0 < costs.draft.seconds(1, 1) < costs.draft.seconds(3, 1)
    assert costs.draft.token > 0.0


def test_without_a_model_there_are_no_rounds(models: Models) -> None:
    kv = models.kv_for(models.target)
    costs = rehearse(models.target, kv, None, streams=1, block_size=BLOCK_SIZE)
    assert costs.draft is None


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_pool_of_hardly_any_blocks(models: Models, blocks: int) -> None:
    config = models.target.config
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, models.dtype.itemsize)
    kv = allocate(shape, blocks, BLOCK_SIZE, models.dtype, "cpu", slots=SLOTS)
    costs = rehearse(models.target, kv, None, streams=SLOTS, block_size=BLOCK_SIZE)
    assert costs.target(4) > 0.0
    assert untouched(kv)


@pytest.mark.parametrize("who", ["ngram", "suffix", "draft"])
def test_a_paced_pair_writes_what_it_would_write_anyway(
    models: Models, texts: Texts, who: Method
) -> None:
    for params, plain in ((GREEDY, texts.greedy), (SAMPLED, texts.sampled)):
        drafters: dict[Method, Drafter] = {
            "ngram": NgramDrafter(), "suffix": SuffixDrafter(), "draft": draft_model(models),
        }  # fmt: skip
        kv = models.kv_for(models.target)
        costs = rehearse(models.target, kv, drafters["draft"], streams=SLOTS, block_size=BLOCK_SIZE)
        pair = ModelPair(
            models.target, kv, drafters, slots=SLOTS, max_len=MAX_LEN, block_size=BLOCK_SIZE,
            ends=ENDS, pacer=Pacer(costs),
        )  # fmt: skip
        jobs = jobs_of(params, who, 6)
        driver(pair).run(jobs)
        assert [job.text for job in jobs] == plain
