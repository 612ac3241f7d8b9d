"""The benchmark of a long prompt amid streams, on a tiny model: what it counts."""

from __future__ import annotations

import pytest

from paceline.actors.flags import UsageError
from paceline.actors.settings import Settings
from paceline.bench.long_prompt import Arrivals, Steps, measure
from paceline.spec.plan import RowDone, StepDone
from support.tiny_models import save_tiny


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = save_tiny(
        tmp_path_factory.mktemp("tiny"), "llama", tokenizer=True, max_position_embeddings=2048
    )
    return Settings(
        model=str(model), draft="none", device="cpu", dtype="float32", threads=1, max_num_seqs=4,
        enable_prefix_caching=False,
    )  # fmt: skip


async def test_gaps_and_full_steps_are_counted(settings):
    table, lines = await measure(settings, streams=3, length=1600, rounds=2)
    steps, gaps = (int(cell) for cell in table.columns[1].cells)
    full = 1600 // 256
    # The first has no step before it, and the last one samples; behind a thousand tokens a step of
    # this small model takes fewer of them.
    assert steps >= 2 * (full - 1)
    assert gaps >= 2 * 3 * full
    assert "a full step is 256 tokens" in lines[0]


async def test_what_cannot_be_measured_is_said(settings):
    with pytest.raises(UsageError, match="--streams 4 leaves no room"):
        await measure(settings, streams=4, length=1600, rounds=1)
    with pytest.raises(UsageError, match="too few steps"):
        await measure(settings, streams=1, length=200, rounds=1)


def test_gaps_are_those_that_end_in_the_window():
    arrivals = Arrivals([1.0, 2.0, 4.0, 7.0, 11.0])
    assert arrivals.gaps(2.5, 8.0) == [2.0, 3.0]


def test_steps_count_only_where_the_one_before_read_too():
    steps = Steps()
    reading, sampling = StepDone(1, (RowDone(0),)), StepDone(2, (RowDone(0, (5,)),))
    for done in (reading, reading, sampling, reading, StepDone(3, (RowDone(0), RowDone(1)))):
        steps.step(done)
    assert len(steps.seconds) == 1
