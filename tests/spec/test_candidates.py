"""Guesses from the likeliest tokens: the target's own choice wherever these hold everything."""

from __future__ import annotations

from random import Random

import pytest
import torch

from paceline.kernels.sample import choose
from paceline.spec.candidates import MOST, guess
from paceline.spec.controls import Sites, limits_of, noise_keys
from paceline.spec.params import SamplingParams
from paceline.spec.plan import Opening
from paceline.spec.slots import Slots

VOCAB = 600


def sites_of(random: Random, count: int, **fixed) -> list[Sites]:
    slots = Slots(count, 32)
    sites = []
    for i in range(count):
        drawn = {
            "temperature": random.choice([0.0, 0.3, 0.8, 1.0]),
            "top_k": random.choice([0, 0, 1, 5, 50]),
            "top_p": random.choice([1.0, 0.9, 0.5]),
            "min_p": random.choice([0.0, 0.1]),
            "seed": random.randrange(2**62),
        }
        slot = slots.open(Opening(i, i, (1, 2, 3), SamplingParams(**(drawn | fixed))))
        sites.append(Sites(slot, 3, (7, 8), 2))
    return sites


def chosen(logits: torch.Tensor, sites: list[Sites]) -> list[int]:
    keys = torch.from_numpy(noise_keys(sites))
    return choose(logits, *limits_of(sites), keys).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_where_all_tokens_are_candidates_it_is_the_targets_choice(seed, dtype):
    """Also where many logits are equal, as they are in bf16."""
    random = Random(seed)
    generator = torch.Generator().manual_seed(seed)
    sites = sites_of(random, 40)
    ids = torch.randperm(VOCAB, generator=generator)[:200].sort().values
    logits = (3 * torch.randn(40, 200, generator=generator)).to(dtype)
    whole = torch.full((40, VOCAB), -torch.inf, dtype=dtype).index_copy_(1, ids, logits)
    assert guess(logits, ids, sites) == chosen(whole, sites)


def test_of_many_tokens_the_likeliest_do():
    generator = torch.Generator().manual_seed(1)
    sites = sites_of(Random(1), 200, temperature=0.8, top_k=0, top_p=0.95)
    vocab = 20 * MOST
    logits = 4 * torch.randn(200, vocab, generator=generator)
    same = [a == b for a, b in zip(
        guess(logits, torch.arange(vocab), sites), chosen(logits, sites), strict=True
    )]  # fmt: skip
    assert sum(same) > 190


def test_greedy_guesses_are_the_likeliest():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(9, VOCAB, generator=generator)
    ids = torch.arange(VOCAB) * 2
    sites = sites_of(Random(2), 9, temperature=0.0)
    assert guess(logits, ids, sites) == (2 * logits.argmax(1)).tolist()
