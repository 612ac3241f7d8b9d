"""Sequences that start behind blocks of another: the same text, the same guesses, and nothing that
goes wrong in one reaches the others through what they share.
"""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from paceline.kv.tensors import KvStore
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Drafter
from paceline.spec.pair import NOT_FINITE, ModelPair
from support.drive import Job
from support.heard import Heard, head_drafter
from support.tiny_heads import save_head
from support.tiny_pair import (
    BLOCK_SIZE,
    GREEDY,
    SAMPLED,
    VOCAB,
    driver,
    finite,
    load,
)

SHARED = 3 * BLOCK_SIZE
PREFIX = tuple(Random(5).randrange(3, VOCAB) for _ in range(SHARED))
TAILS = ((7, 9, 11), (40,), tuple(range(20, 50)))


@pytest.fixture(scope="module")
def head_files(directory, tmp_path_factory):
    return save_head(tmp_path_factory.mktemp("head"), directory / "target")


def jobs(params, k: int, given: tuple[int, ...] = ()) -> list[Job]:
    method = "draft" if k else None
    return [Job(PREFIX + tail, params, SHARED + len(tail) + 40, method, k, given) for tail in TAILS]


@pytest.fixture(params=["model", "head"])
def make(request, models, head_files):
    """A pair with a fresh drafter, a model or a head, that is listened to."""

    def build() -> tuple[ModelPair, Heard]:
        drafter: Drafter = (
            DraftModel(models.first, models.kv_for(models.first), BLOCK_SIZE, VOCAB)
            if request.param == "model"
            else head_drafter(models, head_files)
        )
        heard = Heard(drafter)
        return models.pair(drafters={"draft": heard}), heard

    return build


@pytest.mark.parametrize("chunk", [10**6, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_and_guesses_behind_shared_blocks_are_those_without(make, models, params, chunk):
    pair, alone = make()
    wanted = jobs(params, 3)
    for job in wanted:
        driver(pair, chunk=chunk).run([job])
    pair, heard = make()
    run = driver(pair, chunk=chunk)
    first = Job((*PREFIX, 5), params, SHARED + 20, "draft", 3, keeps=True)
    run.run([first])
    heard.guesses.clear()
    given = first.kept[: SHARED // BLOCK_SIZE]
    sharing = jobs(params, 3, given)
    run.run(sharing)
    assert [job.text for job in sharing] == [job.text for job in wanted]
    # A head has no guess behind a chunk of several tokens, so chunks have a say in where it has.
    both = [text for text in heard.guesses if heard.guesses[text] and alone.guesses.get(text)]
    assert len(both) > 50
    if models.dtype == torch.float32:  # guesses of bf16 states may differ by their rounding
        assert all(heard.guesses[text] == alone.guesses[text] for text in both)


def shared_bits(stores: list[KvStore], blocks: tuple[int, ...]) -> list[Tensor]:
    kept = [tensor for kv in stores for layer in kv.layers for tensor in layer.tensors]
    return [tensor[:, list(blocks)].clone() for tensor in kept]


@pytest.mark.parametrize("in_draft", [False, True], ids=["in target", "in draft"])
def test_numbers_that_are_not_finite_stay_out_of_shared_blocks(directory, models, in_draft):
    wanted = jobs(GREEDY, 2)
    drafter = DraftModel(models.first, models.kv_for(models.first), BLOCK_SIZE, VOCAB)
    driver(models.pair(drafters={"draft": drafter})).run(wanted)
    used = {token for job in wanted for token in job.text}
    bad = next(token for token in range(3, VOCAB) if token not in used)
    target = load(directory / "target", models.dtype, None if in_draft else bad)
    draft = load(directory / "first", models.dtype, bad if in_draft else None)
    drafter = DraftModel(draft, models.kv_for(draft), BLOCK_SIZE, VOCAB)
    pair = models.pair(target=target, drafters={"draft": drafter})
    run = driver(pair, chunk=20)
    first = Job((*PREFIX, 5), GREEDY, SHARED + 20, "draft", 2, keeps=True)
    run.run([first])
    given = first.kept[: SHARED // BLOCK_SIZE]
    stores = [pair._kv, drafter._kv]
    before = shared_bits(stores, given)
    sharing = jobs(GREEDY, 2, given)
    poisoned = Job((*PREFIX, 8, bad, 9), GREEDY, SHARED + 20, "draft", 2, given)
    run.run([*sharing, poisoned])
    assert poisoned.error == (None if in_draft else NOT_FINITE)
    assert poisoned.drafted == 0
    assert [job.text for job in sharing] == [job.text for job in wanted]
    after = shared_bits(stores, given)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(finite(kv) for kv in stores)
