"""What goes wrong in a step stays with whom it concerns, and leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from paceline.spec.drafter import Window
from paceline.spec.pair import NOT_FINITE
from paceline.spec.params import Method
from paceline.spec.plan import Opening, Row, StepPlan
from paceline.spec.slots import Slot
from support.drive import Job
from support.tiny_pair import (
    BLOCK_SIZE,
    GREEDY,
    MAX_LEN,
    SAMPLED,
    VOCAB,
    Models,
    Texts,
    driver,
    jobs_of,
    load,
    mixed_jobs,
    open_one,
    prompts,
)


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize(
    "where", ["target forward", "target layer", "logits", "draft forward", "draft layer"]
)
def test_a_step_that_raises_can_be_planned_anew(
    directory: Path, texts: Texts, models: Models, ahead: int, where: str
) -> None:
    own = Models(directory, models.dtype, models.kv_dtype)
    broken = own.first if where.startswith("draft") else own.target
    random, calls = Random(8), iter(range(10**6))

    def failing(inner):  # type: ignore[no-untyped-def]
        def call(*args):  # type: ignore[no-untyped-def]
            # The very first call, which follows openings, and one in four thereafter.
            if next(calls) == 0 or random.random() < 0.25:
                if where.endswith("layer"):
                    inner(*args)  # so that its keys and values have been written
                raise RuntimeError("injected")
            return inner(*args)

        return call

    if where.endswith("layer"):
        layer = broken._layers[-1]
        broken._layers[-1] = SimpleNamespace(add_to=failing(layer.add_to))  # type: ignore[call-overload]
    else:
        name = "logits" if where == "logits" else "forward_tapped"
        setattr(broken, name, failing(getattr(broken, name)))
    jobs, keys = mixed_jobs()
    run = driver(own.pair(own.first), Random(1), chunk=30, ahead=ahead)
    failures: list[Exception] = []
    run.run(jobs, failures.append)
    assert [job.text for job in jobs] == [texts.of(params)[i] for params, i in keys]
    assert len(failures) > 5
    assert all(str(error) == "injected" for error in failures)


def unused_token(texts: Texts) -> int:
    used = {token for text in texts.greedy + texts.sampled for token in text}
    return next(token for token in range(3, VOCAB) if token not in used)


@pytest.mark.parametrize("in_draft", [False, True])
def test_numbers_that_are_not_finite_end_one_sequence_and_haunt_nobody(
    directory: Path, models: Models, texts: Texts, in_draft: bool
) -> None:
    bad = unused_token(texts)
    target = load(directory / "target", models.dtype, poisoned=bad)
    draft = load(directory / "first", models.dtype, poisoned=bad if in_draft else None)
    victim = 3
    run = driver(models.pair(draft, target=target), chunk=9)
    for _ in range(2):
        # Twice, so that the second batch is written into the blocks of the first.
        jobs, keys = mixed_jobs()
        poisoned = (*jobs[victim].prompt, bad, *range(3, 20))
        jobs[victim] = Job(poisoned, SAMPLED, len(poisoned) + 9, "draft", 3)
        run.run(jobs)
        assert jobs[victim].error == NOT_FINITE
        assert jobs[victim].tokens == list(poisoned)
        for i, (job, (params, text)) in enumerate(zip(jobs, keys, strict=True)):
            if i != victim:
                assert job.error is None
                assert job.text == texts.of(params)[text]
        run.free_blocks.reverse()


@dataclass
class Liar:
    """Never guesses anything but one token."""

    token: int
    method: Method = "ngram"

    def open(self, slot: Slot) -> None:
        pass

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        return [[self.token] * window.k for window in windows]


def test_a_guess_without_finite_numbers_ends_no_sequence(
    directory: Path, models: Models, texts: Texts
) -> None:
    bad = unused_token(texts)
    target = load(directory / "target", models.dtype, poisoned=bad)
    jobs = jobs_of(GREEDY, "ngram", 5)
    liar = Liar(bad)
    driver(models.pair(target=target, drafters={"ngram": liar}), Random(6)).run(jobs)
    assert [job.text for job in jobs] == texts.greedy
    assert sum(job.drafted for job in jobs) == 0


def test_a_draft_that_is_not_finite_costs_its_drafts_and_no_text(
    directory: Path, models: Models, texts: Texts
) -> None:
    draft = load(directory / "first", models.dtype, poisoned=prompts(8)[4][10])
    jobs = jobs_of(GREEDY, "draft", 3)
    driver(models.pair(draft), Random(2), chunk=30).run(jobs)
    assert [job.text for job in jobs] == texts.greedy
    assert jobs[4].drafted == 0
    assert sum(job.drafted for job in jobs) > 0


def test_rows_beyond_what_is_known_or_of_another_sequence_are_refused(models: Models) -> None:
    pair = models.pair()
    [first] = open_one(pair, 20, draft=0).rows
    with pytest.raises(AssertionError, match="2 tokens planned, 1 left"):
        pair.launch(StepPlan(2, (Row(0, 0, 2, 0, True),)))
    with pytest.raises(AssertionError, match="holds sequence 0, not 9"):
        pair.launch(StepPlan(3, (Row(9, 0, 1, 0, True),)))
    [second] = pair.launch(StepPlan(4, (Row(0, 0, 1, 0, True),))).land().rows
    once = open_one(models.pair(models.target), 20, draft=1).rows[0]
    assert once.tokens == first.tokens + second.tokens
    pair.reset()
    with pytest.raises(AssertionError, match="not 0"):
        pair.launch(StepPlan(5, (Row(0, 0, 1, 0, True),)))


def test_a_row_that_falls_short_after_a_failed_step_computes_and_samples_nothing(
    models: Models,
) -> None:
    prompt = prompts(5)[4]
    pair, whole = models.pair(), models.pair()
    blocks = tuple(range(MAX_LEN // BLOCK_SIZE))
    opening = Opening(0, 0, prompt, SAMPLED)
    # As if the step with the first 30 tokens had failed, and the one with the rest had been in
    # the air already.
    rest = Row(0, 0, len(prompt) - 30, 2, True, blocks)
    [short] = pair.launch(StepPlan(2, (rest,), (opening,))).land().rows
    assert (short.tokens, short.drafted, short.error) == ((), 0, None)
    [done] = pair.launch(StepPlan(3, (Row(0, 0, 30, 0, True),))).land().rows
    row = Row(0, 0, len(prompt), 0, True, blocks)
    assert done == whole.launch(StepPlan(1, (row,), (opening,))).land().rows[0]
