"""Head drafts beside a tiny target: the text never depends on them, and what they guess is what a
dense computation of the head guesses, however the text was computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from torch import Tensor

from paceline.draft.states import compute_states
from paceline.draft.student import Student
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.config import load_config
from paceline.models.head import OUTPUT, Head, load_head_tensors, output_matrix
from paceline.models.head_config import HeadConfig, load_head_config
from paceline.models.weights import load_weights
from paceline.spec.drafter import Window
from paceline.spec.head import HeadDrafter
from paceline.spec.params import SamplingParams, Speculation
from support.drive import Job
from support.tiny_heads import save_flat_head, save_head
from support.tiny_pair import (
    BLOCK_SIZE,
    BLOCKS,
    GREEDY,
    SAMPLED,
    SLOTS,
    Models,
    driver,
    finite,
    jobs_of,
    prompts,
)

SETTINGS = [
    pytest.param({}, id="steady"),
    pytest.param({"random": Random(1), "chunk": 9}, id="chunks"),
    pytest.param({"random": Random(2), "chunk": 17, "preempt": 0.05}, id="preemptions"),
    pytest.param({"random": Random(3), "ahead": 2}, id="ahead"),
]


@dataclass
class Heard:
    """What a drafter was asked and said."""

    drafter: HeadDrafter
    told: list[tuple[list[int], int, list[int]]] = field(default_factory=list)
    method = "draft"

    def __post_init__(self) -> None:
        self.taps, self.learn, self.open = (
            self.drafter.taps, self.drafter.learn, self.drafter.open
        )  # fmt: skip

    def propose(self, windows: list[Window]) -> list[list[int]]:
        drafts = self.drafter.propose(windows)
        for window, draft in zip(windows, drafts, strict=True):
            if window.k:
                self.told.append((window.slot.tokens[: window.upto].tolist(), window.k, draft))
        return drafts


@pytest.fixture(scope="module", params=[save_head, save_flat_head], ids=["nested", "flat"])
def head_files(request, directory, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("head"), directory / "target")


def read(directory, target_directory) -> tuple[HeadConfig, dict[str, Tensor]]:
    config = load_head_config(directory, load_config(target_directory))
    tensors = load_head_tensors(directory, config)
    if OUTPUT not in tensors:
        weights = load_weights(target_directory)
        tied = load_config(target_directory).tie_head
        tensors[OUTPUT] = output_matrix(weights, tied)[tensors["d2t"]]
    return config, tensors


@pytest.fixture(scope="module")
def make(models: Models, head_files, directory):
    """A pair with a fresh head drafter that is listened to."""

    def build():
        config, tensors = read(head_files, directory / "target")
        head = Head(config, tensors, models.target)
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, models.dtype.itemsize)
        shape = shape.in_format(models.kv_dtype)
        kv = allocate(shape, BLOCKS, BLOCK_SIZE, models.dtype, "cpu", slots=SLOTS)
        heard = Heard(HeadDrafter(head, kv, BLOCK_SIZE))
        return models.pair(drafters={"draft": heard}), heard

    return build


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_plain_one(make, texts, params, settings):
    pair, heard = make()
    jobs = jobs_of(params, "draft", 4)
    driver(pair, **settings).run(jobs)
    assert [job.text for job in jobs] == texts.of(params)
    assert sum(job.drafted for job in jobs) > 0
    assert heard.told


@pytest.mark.parametrize("settings", SETTINGS)
def test_guesses_are_those_of_a_dense_computation(make, models, head_files, directory, settings):
    if models.dtype != torch.float32:
        pytest.skip("guesses of bf16 states may differ by their rounding")
    pair, heard = make()
    driver(pair, **settings).run(jobs_of(GREEDY, "draft", 3)[:5])
    config, tensors = read(head_files, directory / "target")
    student = Student(config, tensors)
    guessed = [it for it in heard.told if it[2]]
    assert len(guessed) > 20
    differing = 0
    for tokens, k, draft in Random(4).sample(guessed, 20):
        assert len(draft) == k
        differing += draft != dense_guesses(student, tensors, models, tokens, k)
    # Eight bits are close to the numbers that a dense computation has, and no more than that.
    assert differing <= (0 if models.kv_dtype == "auto" else 3)


@torch.no_grad()
def dense_guesses(student, tensors, models, tokens, k) -> list[int]:
    """k greedy guesses behind the tokens, all entries computed at once from the target's states."""
    taps = student.config.taps
    both = compute_states(models.target, [tokens], taps)
    states = both[:, : len(taps) * models.target.config.hidden_size]
    guesses: list[int] = []
    for r in range(k):
        line = torch.tensor([tokens + guesses])
        embedded = models.target.embed(line[0])[None]
        padded = torch.cat((states, states.new_zeros(len(guesses), states.shape[1])))[None]
        made = student(embedded, padded, r + 1)[r, 0, len(tokens) - 1]
        guesses.append(int(tensors["d2t"][(made @ tensors[OUTPUT].T).argmax()]))
    return guesses


def test_a_head_may_guess_with_odds_of_its_own(make):
    params = SamplingParams(temperature=1.0, seed=3, speculation=Speculation(accept="rejection"))
    pair, _ = make()
    jobs = [Job(p, params, len(p) + 40, "draft", 3) for p in prompts(4)]
    driver(pair).run(jobs)
    assert all(job.error is None for job in jobs)
    assert sum(job.accepted for job in jobs) > 0


def test_asking_again_gives_the_same_guesses(make):
    pair, heard = make()
    seen = []
    inner = heard.drafter.propose

    def twice(windows):
        first, second = inner(windows), inner(windows)
        assert first == second
        seen.extend(draft for draft in first if draft)
        return second

    heard.drafter.propose = twice
    driver(pair).run(jobs_of(GREEDY, "draft", 3)[:3])
    assert seen


def test_a_target_state_that_is_not_finite_ends_guessing_and_not_the_text(make, texts):
    pair, heard = make()
    learn = heard.drafter.learn

    def poisoned(slot, states):
        learn(slot, torch.full_like(states, torch.nan) if slot.known == 30 else states)

    heard.learn = poisoned
    jobs = jobs_of(GREEDY, "draft", 3)
    driver(pair).run(jobs)
    assert [job.text for job in jobs] == texts.greedy
    assert finite(heard.drafter._kv)
