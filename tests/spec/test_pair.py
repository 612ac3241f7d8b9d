"""The text of a sequence does not depend on drafts, companions, chunks or preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
import torch
from msgspec.structs import replace

from paceline.spec.drafter import Window
from paceline.spec.params import Accept, Method, SamplingParams, Speculation
from paceline.spec.slots import Slot
from support.drive import Job
from support.tiny_models import save_tiny
from support.tiny_pair import (
    GREEDY,
    MAX_LEN,
    NEW_TOKENS,
    SAMPLED,
    VOCAB,
    Models,
    Texts,
    driver,
    jobs_of,
    load,
    mixed_jobs,
    open_one,
    plain_texts,
    prompts,
)

VARIANTS: list[tuple[str, Method | None, int]] = [
    ("none", None, 0),
    *(("ngram", "ngram", k) for k in (1, 4, 8)),
    *(("suffix", "suffix", k) for k in (1, 8)),
    *(("first layer", "draft", k) for k in (1, 3, 5)),
    *(("itself", "draft", k) for k in (1, 3, 5)),
]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("drafts", "method", "k"), VARIANTS)
def test_speculation_alone_and_in_company_gives_the_plain_text(
    models: Models, texts: Texts, params: SamplingParams, drafts: str, method: Method, k: int
) -> None:
    draft = {"first layer": models.first, "itself": models.target}.get(drafts)
    beside = drafts != "itself"
    alone = jobs_of(params, method, k)[k % 8]
    driver(models.pair(draft, beside=beside)).run([alone])
    assert alone.text == texts.of(params)[k % 8]

    jobs = jobs_of(params, method, k)
    run = driver(models.pair(draft, beside=beside), Random(k), chunk=40, preempt=0.04)
    run.run(jobs)
    assert [job.text for job in jobs] == texts.of(params)
    assert run.preemptions > 0
    if drafts == "itself":
        for job in [alone, *jobs]:
            assert job.accepted == job.drafted > 0
    if method is None:
        assert all(job.drafted == 0 for job in jobs)


@pytest.mark.parametrize("vocab", [VOCAB - 40, VOCAB + 13])
@pytest.mark.parametrize("accept", ["coupled", "rejection"])
def test_a_draft_may_be_padded_to_another_vocabulary(
    models: Models, texts: Texts, tmp_path: Path, vocab: int, accept: Accept
) -> None:
    """Models of one tokenizer often differ in how many rows their embeddings are padded to."""
    save_tiny(tmp_path, "llama", seed=9, vocab_size=vocab)
    other = load(tmp_path, models.dtype)
    wish = Speculation(accept=accept)
    for params in (GREEDY, SAMPLED):
        jobs = jobs_of(replace(params, speculation=wish, logit_bias=((5, 0.0),)), "draft", 3)
        driver(models.pair(other), Random(vocab)).run(jobs)
        assert any(job.drafted for job in jobs)
        assert all(len(job.text) == job.length for job in jobs)
        if accept == "coupled" or params.greedy:
            assert [job.text for job in jobs] == texts.of(params)


def test_plain_greedy_text_is_the_one_transformers_writes(directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(directory / "target", dtype=torch.float32)
    models = Models(directory, torch.float32)
    for prompt, text in zip(prompts(8), plain_texts(models, GREEDY), strict=True):
        [expected] = reference.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        ).tolist()
        assert text == expected


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("chunk", [7, 10**6])
def test_steps_planned_ahead_of_their_results(
    models: Models, texts: Texts, ahead: int, chunk: int
) -> None:
    for seed in (None, ahead):
        jobs, keys = mixed_jobs()
        random = None if seed is None else Random(seed)
        driver(models.pair(models.first), random, chunk=chunk, ahead=ahead).run(jobs)
        assert [job.text for job in jobs] == [texts.of(params)[i] for params, i in keys]


@dataclass
class Oracle:
    """Knows the texts and lies now and then: any drafter there could be."""

    texts: list[list[int]]
    honesty: float
    method: Method = "ngram"
    random: Random = field(default_factory=lambda: Random(4))
    matching: int = 0

    def open(self, slot: Slot) -> None:
        pass

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        drafts = []
        for window in windows:
            known = window.slot.tokens[: window.upto].tolist()
            [text] = [t for t in self.texts if t[: len(known)] == known]
            truth = text[len(known) : len(known) + self.random.randint(0, window.k)]
            draft = [t if self.random.random() < self.honesty else self.lie(t) for t in truth]
            wrong = [i for i, (a, b) in enumerate(zip(draft, truth, strict=True)) if a != b]
            self.matching += wrong[0] if wrong else len(draft)
            drafts.append(draft)
        return drafts

    def lie(self, token: int) -> int:
        return (token + self.random.randint(1, VOCAB - 1)) % VOCAB


@pytest.mark.parametrize("honesty", [0.0, 0.5, 0.9, 1.0])
def test_every_draft_token_that_holds_is_accepted_and_no_other(
    models: Models, texts: Texts, honesty: float
) -> None:
    for params in (GREEDY, SAMPLED):
        oracle = Oracle(texts.of(params), honesty)
        jobs = jobs_of(params, "ngram", 16)
        driver(models.pair(drafters={"ngram": oracle}), Random(3), chunk=50).run(jobs)
        assert [job.text for job in jobs] == texts.of(params)
        # What ran past a job's end is beyond what the oracle knows, and was not drafted.
        assert sum(job.accepted for job in jobs) == oracle.matching
        assert oracle.matching > 0 or honesty == 0.0


def test_log_probabilities_are_of_the_raw_logits_and_aligned(directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    models = Models(directory, torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(directory / "target", dtype=torch.float32)
    found = {}
    for method, k in ((None, 0), ("ngram", 4), ("draft", 3)):
        jobs = []
        for params, count in ((GREEDY, 3), (SAMPLED, 0), (SAMPLED, VOCAB + 9), (GREEDY, None)):
            asked = SamplingParams(
                temperature=params.temperature, top_k=params.top_k, seed=5, logprobs=count
            )
            jobs.append(Job(prompts(8)[3], asked, len(prompts(8)[3]) + 20, method, k))
        run = driver(models.pair(models.target), Random(1), chunk=20)
        run.run(jobs)
        found[method] = [job.logprobs[:20] for job in jobs]
        for job in jobs[:3]:
            assert [entry.token for entry in job.logprobs] == job.tokens[len(job.prompt) :]
        assert jobs[3].logprobs == []
    assert found[None] == found["ngram"] == found["draft"]
    for entries, job, count in zip(found[None], jobs, (3, 0, VOCAB), strict=False):
        with torch.inference_mode():
            logs = reference(torch.tensor([job.text])).logits[0].log_softmax(-1)
        for at, entry in enumerate(entries, len(job.prompt) - 1):
            assert entry.logprob == pytest.approx(float(logs[at, entry.token]), abs=1e-4)
            assert len(entry.top) == count
            best = logs[at].topk(count).values.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)
            assert all(
                value == pytest.approx(float(logs[at, token]), abs=1e-4)
                for token, value in entry.top
            )


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_draft_ends_where_the_context_ends(models: Models, left: int) -> None:
    done = open_one(models.pair(models.target, beside=False), MAX_LEN - left, draft=8)
    assert done.rows[0].drafted == left
    assert len(done.rows[0].tokens) == left + 1


def test_texts_may_fill_the_context(models: Models) -> None:
    plain = [Job(p, SAMPLED, MAX_LEN) for p in prompts(4)]
    driver(models.pair(), ahead=2).run(plain)
    for method, draft in (("ngram", None), ("suffix", None), ("draft", models.target)):
        jobs = [Job(p, SAMPLED, MAX_LEN, method, 16) for p in prompts(4)]
        driver(models.pair(draft), ahead=3).run(jobs)
        assert [job.text for job in jobs] == [job.text for job in plain]


def test_the_phases_of_a_step_add_up_to_no_more_than_it_took(models: Models) -> None:
    pair = models.pair(models.first)
    start = perf_counter()
    times = open_one(pair, 60, draft=4).times
    total = perf_counter() - start
    phases = (times.draft, times.prepare, times.forward, times.sample, times.finish)
    assert all(phase > 0 for phase in phases)
    assert sum(phases) <= total
