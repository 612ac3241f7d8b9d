"""What a request asks beyond its temperature, through a pair of real (if tiny) models: the same
text whatever the drafts, chunks, companions, preemptions and failed steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.kernels import sampler
from paceline.models.decoder import Decoder
from paceline.spec import controls
from paceline.spec.draft_model import DraftModel
from paceline.spec.grammar import Grammars
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pair import NO_TOKEN, ModelPair
from paceline.spec.params import Grammar, Method, SamplingParams, Speculation
from paceline.spec.plan import Opening, Row, StepPlan
from support.drive import Job
from support.tiny_models import VOCAB as TOKENIZER_VOCAB
from support.tiny_models import cut_layers, save_tiny
from support.tiny_pair import (
    BLOCK_SIZE,
    ENDS,
    GREEDY,
    MAX_LEN,
    SAMPLED,
    SLOTS,
    Models,
    driver,
    jobs_of,
    kv_for,
    load,
    plain_texts,
    prompts,
)


@pytest.fixture(scope="module")
def models(directory: Path) -> Models:
    return Models(directory, torch.float32)


def with_rules(base: SamplingParams, **rules: object) -> SamplingParams:
    return msgspec.structs.replace(base, **rules)


RULES = {
    "penalties": with_rules(
        SAMPLED, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "greedy": with_rules(GREEDY, repetition_penalty=1.5),
    "bans": with_rules(
        SAMPLED,
        allowed_token_ids=tuple(range(90)),
        bad_tokens=((5,), (17, 23), *((i, i) for i in range(40))),
        min_tokens=50,
        stop_token_ids=(9, 11),
        logit_bias=((9, 4.0), (1, 4.0), (60, -5.0)),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_texts_do_not_depend_on_how_they_are_computed(models: Models, name: str) -> None:
    params = RULES[name]
    plain = plain_texts(models, params)
    assert plain != plain_texts(models, GREEDY if params.greedy else SAMPLED)
    for method, k in ((None, 0), ("ngram", 4), ("draft", 3)):
        jobs = jobs_of(params, method, k)
        run = driver(models.pair(models.first), Random(k), chunk=40, preempt=0.05, ahead=1 + k // 4)
        run.run(jobs)
        assert [job.text for job in jobs] == plain
        assert run.preemptions > 0
        assert sum(job.drafted for job in jobs) > 0 or method is None
        # Penalties keep a text from repeating itself, which is all that n-grams live on.
        assert sum(job.accepted for job in jobs) > 0 or method != "draft"


def test_a_step_that_raises_leaves_nothing_behind_in_the_rules(
    directory: Path, models: Models
) -> None:
    own = Models(directory, torch.float32)
    inner, random = own.target.logits, Random(8)

    def failing(hidden: Tensor) -> Tensor:
        if random.random() < 0.3:
            raise RuntimeError("injected")
        return inner(hidden)

    own.target.logits = failing  # type: ignore[method-assign]
    params = RULES["penalties"]
    jobs = jobs_of(params, "draft", 3)
    failures: list[Exception] = []
    driver(own.pair(own.first), Random(1), chunk=30).run(jobs, failures.append)
    assert len(failures) > 10
    assert [job.text for job in jobs] == plain_texts(models, params)


def test_rows_without_rules_are_drawn_from_the_logits_themselves(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Tensor] = []
    made: list[Tensor] = []
    inner, head = sampler.choose, models.target.logits

    def choose(logits: Tensor, *rest: Tensor) -> Tensor:
        given.append(logits)
        return inner(logits, *rest)

    def logits(hidden: Tensor) -> Tensor:
        made.append(head(hidden))
        return made[-1]

    monkeypatch.setattr(sampler, "choose", choose)
    monkeypatch.setattr(models.target, "logits", logits)
    driver(models.pair()).run(jobs_of(SAMPLED, "ngram", 3)[:4])
    assert len(given) == len(made) > 0
    assert all(a is b for a, b in zip(given, made, strict=True))
    # In mixed company, too, they stay in the model's own numbers.
    given.clear()
    copies: list[int] = []
    run = controls.Sites.process

    def process(site: controls.Sites, rows: Tensor) -> Tensor | None:
        result = run(site, rows)
        copies.append(0 if result is None else len(result))
        return result

    monkeypatch.setattr(controls.Sites, "process", process)
    mixed = [
        Job(p, s, len(p) + 9) for p, s in zip(prompts(2), (SAMPLED, RULES["bans"]), strict=True)
    ]
    driver(models.pair()).run(mixed)
    assert {len(rows) for rows in given} == {1}
    assert set(copies) == {0, 1}


# --- where nothing is allowed ----------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_sequence_ends_where_no_token_is_allowed_and_no_other_does(
    models: Models, k: int
) -> None:
    """Two tokens that may not follow themselves or each other in the same order twice."""
    stuck = with_rules(GREEDY, allowed_token_ids=(7, 8), bad_tokens=((7, 7), (8, 8), (7, 8, 7)))
    method: Method | None = "draft" if k else None
    jobs = [Job(p, stuck, len(p) + 9, method, k) for p in prompts(3)]
    jobs.append(Job(prompts(4)[3], SAMPLED, len(prompts(4)[3]) + 30, method, k))
    driver(models.pair(models.first)).run(jobs)
    for job in jobs[:3]:
        assert job.error == NO_TOKEN
        assert job.tokens[len(job.prompt) :] in ([7, 8], [8, 7, 8])
    plain = Job(jobs[3].prompt, SAMPLED, jobs[3].length)
    driver(models.pair()).run([plain])
    assert jobs[3].text == plain.text


def test_a_pair_without_grammars_fails_the_step_of_who_asks_for_one(models: Models) -> None:
    pair = models.pair()
    params = with_rules(GREEDY, grammar=Grammar("json_object"))
    opening = Opening(0, 0, (5, 6), params)
    with pytest.raises(ValueError, match="follows no grammars"):
        pair.launch(StepPlan(1, (Row(0, 0, 2, 0, True, (0,)),), (opening,)))


# --- log probabilities of the prompt ---------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
@pytest.mark.parametrize("ahead", [1, 2])
def test_prompt_tokens_have_their_log_probabilities_once_and_in_order(
    models: Models, directory: Path, chunk: int, ahead: int
) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(directory / "target", dtype=torch.float32)
    params = with_rules(SAMPLED, prompt_logprobs=2, repetition_penalty=1.3)
    jobs = [Job(p, params, len(p) + 12, "ngram", 3) for p in prompts(8)]
    other = Job(prompts(5)[4], SAMPLED, 100, "ngram", 3)
    random = Random(chunk) if chunk == 7 else None
    run = driver(models.pair(), random, chunk=chunk, ahead=ahead, preempt=0.05 if random else 0.0)
    run.run([*jobs, other])
    assert bool(run.preemptions) == bool(random)
    assert other.prompt_logprobs == []
    for job in jobs:
        assert [entry.token for entry in job.prompt_logprobs] == list(job.prompt[1:])
        with torch.inference_mode():
            logs = reference(torch.tensor([job.prompt])).logits[0].log_softmax(-1)
        for at, entry in enumerate(job.prompt_logprobs):
            assert entry.logprob == pytest.approx(float(logs[at, entry.token]), abs=1e-4)
            best = logs[at].topk(2)
            assert [token for token, _ in entry.top] == best.indices.tolist()
            values = [value for _, value in entry.top]
            np.testing.assert_allclose(values, best.values.numpy(), atol=1e-4)


# --- rejection -------------------------------------------------------------------------------


def test_a_text_by_rejection_is_its_own_function_of_seed_and_draft_length(models: Models) -> None:
    """It depends on what is drafted, but on nobody else: not on companions nor on chunks."""
    params = with_rules(
        SAMPLED, speculation=Speculation(accept="rejection"), repetition_penalty=1.1
    )
    together, alone = jobs_of(params, "draft", 3)[:5], jobs_of(params, "draft", 3)[:5]
    driver(models.pair(models.first), chunk=25).run([*together, *jobs_of(SAMPLED, "ngram", 2)])
    for job in alone:
        driver(models.pair(models.first)).run([job])
    assert [job.text for job in alone] == [job.text for job in together]
    assert [job.text for job in alone] != plain_texts(models, params)[:5]
    assert 0 < sum(job.accepted for job in alone) < sum(job.drafted for job in alone)


def test_a_model_that_drafts_for_itself_is_never_rejected(models: Models) -> None:
    params = with_rules(SAMPLED, speculation=Speculation(accept="rejection"))
    jobs = jobs_of(params, "draft", 4)
    driver(models.pair(models.target), Random(2), chunk=30, preempt=0.03).run(jobs)
    assert all(job.accepted == job.drafted > 0 for job in jobs)


# --- grammars --------------------------------------------------------------------------------

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"enum": ["ada", "alan"]}, "born": {"type": "boolean"}},
        "required": ["name", "born"],
        "additionalProperties": False,
    }
)
GRAMMARS: dict[str, tuple[Grammar, Callable[[str], object]]] = {
    "schema": (Grammar("json_schema", SCHEMA), json.loads),
    "regex": (Grammar("regex", "(ab|ba){3}c[0-9]"), re.compile("(ab|ba){3}c[0-9]").fullmatch),
}


@pytest.fixture(scope="module")
def literate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a tokenizer, and its first layer."""
    directory = tmp_path_factory.mktemp("literate")
    save_tiny(directory / "target", "llama", tokenizer=True, num_hidden_layers=3)
    cut_layers(directory / "target", directory / "first", 1)
    return directory


def literate_pair(directory: Path, grammars: Grammars) -> ModelPair:
    def decoder(name: str) -> Decoder:
        return load(directory / name, torch.float32)

    target, first = decoder("target"), decoder("first")
    return ModelPair(
        target,
        kv_for(target),
        {
            "ngram": NgramDrafter(),
            "draft": DraftModel(first, kv_for(first), BLOCK_SIZE, TOKENIZER_VOCAB),
        },
        slots=SLOTS,
        max_len=MAX_LEN,
        block_size=BLOCK_SIZE,
        ends=ENDS,
        grammars=grammars,
    )


@pytest.mark.parametrize("name", GRAMMARS)
def test_outputs_match_their_grammar_and_are_alike_with_every_draft(
    literate: Path, name: str
) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(literate / "target" / "tokenizer.json"))
    grammars = Grammars(literate / "target" / "tokenizer.json", TOKENIZER_VOCAB, ENDS)
    grammar, valid = GRAMMARS[name]
    grammars.compile(grammar, 6)
    random = Random(3)
    starts = [tuple(random.randrange(3, 300) for _ in range(9)) for _ in range(6)]
    found: dict[Method | None, list[list[int]]] = {}
    accepts: tuple[tuple[Method | None, int, str], ...] = (
        (None, 0, "coupled"),
        ("ngram", 4, "coupled"),
        ("draft", 3, "coupled"),
        ("draft", 4, "rejection"),
    )
    for method, k, accept in accepts:
        params = SamplingParams(
            seed=5,
            grammar=grammar,
            speculation=Speculation(accept=accept),  # type: ignore[arg-type]
        )
        jobs = [Job(p, params, len(p) + 80, method, k) for p in starts]
        run = driver(literate_pair(literate, grammars), Random(k), chunk=4, preempt=0.02)
        run.run(jobs)
        texts = []
        for job in jobs:
            assert job.error is None
            output = job.text[len(job.prompt) :]
            end = next(i for i, token in enumerate(output) if token in ENDS)
            assert set(output[end:]) <= ENDS
            text = tokenizer.decode(output[:end], skip_special_tokens=False)
            assert valid(text) is not None
            texts.append(output[: end + 1])
        if accept == "coupled":
            found[method] = texts
        if method == "ngram":
            # What the grammar forces was guessed right.
            assert sum(job.accepted for job in jobs) > 0
    assert found[None] == found["ngram"] == found["draft"]
    assert len({tuple(text) for text in found[None]}) > 1
    grammars.close()
