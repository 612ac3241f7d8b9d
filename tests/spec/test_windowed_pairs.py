"""Pairs whose target sees through windows: the text depends on nothing but the request here too,
whoever drafts, and whatever the draft sees through.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from paceline.models.config import load_config
from paceline.models.head import OUTPUT, Head, load_head_tensors, output_matrix
from paceline.models.head_config import load_head_config
from paceline.models.weights import load_weights
from paceline.spec.head import HeadDrafter
from support.tiny_heads import save_head
from support.tiny_pair import (
    BLOCK_SIZE,
    GREEDY,
    SAMPLED,
    Models,
    driver,
    jobs_of,
    kv_for,
    mixed_jobs,
    plain_texts,
    save_models,
)

FULL, SLIDING = "full_attention", "sliding_attention"
FAMILIES = {
    "mistral": (torch.bfloat16, {"sliding_window": 20}),
    "gemma2": (torch.float32, {"sliding_window": 33, "layer_types": [SLIDING, FULL, SLIDING]}),
    "gemma3": (torch.bfloat16, {"sliding_window": 20, "layer_types": [SLIDING, SLIDING, FULL]}),
    "phi3": (torch.float32, {"sliding_window": 65}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def windowed(request, tmp_path_factory) -> Models:
    dtype, changes = FAMILIES[request.param]
    files = save_models(tmp_path_factory.mktemp(request.param), request.param, **changes)
    return Models(files, dtype)


def test_drafts_chunks_and_preemptions_change_no_text(windowed: Models) -> None:
    wanted = {params: plain_texts(windowed, params) for params in (GREEDY, SAMPLED)}
    assert wanted[GREEDY] != wanted[SAMPLED]
    for seed, draft in enumerate((windowed.first, windowed.target)):
        jobs, keys = mixed_jobs()
        run = driver(windowed.pair(draft), Random(seed), chunk=30, preempt=0.03)
        run.run(jobs)
        for job, (params, i) in zip(jobs, keys, strict=True):
            assert job.text == wanted[params][i]
        assert sum(job.accepted for job in jobs) > 0


def test_a_draft_that_is_the_target_is_always_right(windowed: Models) -> None:
    jobs = jobs_of(GREEDY, "draft", 4)
    driver(windowed.pair(windowed.target, beside=False), Random(5), chunk=50).run(jobs)
    assert all(job.accepted == job.drafted > 0 for job in jobs)


def test_a_head_that_sees_everything_drafts_for_a_target_that_does_not(
    windowed: Models, tmp_path: Path
) -> None:
    files = windowed.directory
    where = save_head(tmp_path / "head", files / "target", (1, 2), whole=True)
    target = load_config(files / "target")
    config = load_head_config(where, target)
    tensors = load_head_tensors(where, config)
    tensors[OUTPUT] = output_matrix(load_weights(files / "target"), target.tie_head)
    head = Head(config, tensors, windowed.target)
    jobs = jobs_of(SAMPLED, "draft", 3)
    pair = windowed.pair(drafters={"draft": HeadDrafter(head, kv_for(head), BLOCK_SIZE)})
    driver(pair, Random(3), chunk=25, preempt=0.02).run(jobs)
    assert [job.text for job in jobs] == plain_texts(windowed, SAMPLED)
    assert sum(job.drafted for job in jobs) > 0
