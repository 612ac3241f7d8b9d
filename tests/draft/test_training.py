"""A head learns its target: a language of one rule, on disk, with and without a break."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from torch import Tensor

from paceline.draft.conversations import Conversation
from paceline.draft.loss import alike, soft_loss
from paceline.draft.publish import describe, write_config, write_tensors
from paceline.draft.states import Lessons, compute_states, write_lessons
from paceline.draft.student import Student
from paceline.draft.trainer import Plan, Trainer, initial_tensors
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.head import Head, load_head_tensors
from paceline.models.head_config import load_head_config
from paceline.models.weights import load_weights
from paceline.spec.head import HeadDrafter
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pair import ModelPair
from paceline.spec.params import SamplingParams
from support.drive import Driver, Job
from support.tiny_models import tiny_config

VOCAB, LENGTH, TAPS = 48, 64, (1, 2)
BLOCK_SIZE, BLOCKS, SLOTS, MAX_LEN = 16, 80, 8, 160


def sentence(random: Random, length: int = LENGTH) -> list[int]:
    """Each token is a function of the one before and of chance."""
    tokens = [random.randrange(3, VOCAB)]
    while len(tokens) < length:
        step = random.choices((7, 19, 30), (6, 3, 1))[0]
        tokens.append(3 + (5 * tokens[-1] + step) % (VOCAB - 3))
    return tokens


@pytest.fixture(scope="module")
def target_directory(tmp_path_factory) -> Path:
    """A model that has learnt the language, as transformers trains and saves it."""
    from transformers import AutoModelForCausalLM

    random = Random(1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(tiny_config("llama", vocab_size=VOCAB))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(120):
            batch = torch.tensor([sentence(random, 32) for _ in range(32)])
            model(batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    directory = tmp_path_factory.mktemp("target")
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def target(target_directory: Path) -> Decoder:
    config = load_config(target_directory)
    weights = load_weights(target_directory)
    return Decoder(config, weights, device="cpu", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    random = Random(2)
    texts = [sentence(random, random.randint(20, LENGTH)) for _ in range(300)]
    return [Conversation(i, text, [(1, len(text))]) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def lessons(target, conversations, tmp_path_factory) -> Lessons:
    return write_lessons(tmp_path_factory.mktemp("lessons"), conversations, target, TAPS)


def trainer_of(directory: Path, target_directory: Path, lessons: Lessons, plan: Plan) -> Trainer:
    config, weights = load_config(target_directory), load_weights(target_directory)
    write_config(directory, describe(target_directory, config, TAPS, VOCAB - 3, "tiny"))
    head = load_head_config(directory, config)
    student = Student(head, initial_tensors(head, weights, config.layers))
    output = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    embedding, ids = weights["model.embed_tokens.weight"], torch.arange(3, VOCAB)
    return Trainer(student, lessons, embedding, output, ids, plan)


PLAN = Plan(tokens=60_000, rounds=3, batch=1024, rate=3e-3)


@pytest.fixture(scope="module")
def trained(target_directory, lessons, tmp_path_factory) -> tuple[Path, Trainer]:
    directory = tmp_path_factory.mktemp("head")
    trainer = trainer_of(directory, target_directory, lessons, PLAN)
    assert trainer.run(directory / "work")
    write_tensors(directory, trainer.student.tensors(), torch.arange(3, VOCAB), VOCAB)
    return directory, trainer


def tokens_per_step(target: Decoder, drafters, method: str, params: SamplingParams) -> float:
    config = target.config
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, 2)
    kv = allocate(shape, BLOCKS, BLOCK_SIZE, torch.bfloat16, "cpu")
    sizes = {"slots": SLOTS, "max_len": MAX_LEN, "block_size": BLOCK_SIZE}
    pair = ModelPair(target, kv, {method: drafters}, **sizes)
    driver = Driver(pair, blocks=BLOCKS, **sizes)
    random = Random(9)
    jobs = [
        Job(tuple(sentence(random, 8)), msgspec.structs.replace(params, seed=i), 80, method, 4)
        for i in range(SLOTS)
    ]
    driver.run(jobs)
    return sum(len(job.text) - 8 for job in jobs) / (driver.steps * SLOTS)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_trained_head_beats_look_ups_on_text_it_has_never_seen(
    target, target_directory, trained, temperature
):
    directory, _ = trained
    config = load_head_config(directory, target.config)
    tensors = load_head_tensors(directory, config)
    weights = load_weights(target_directory)
    output = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    head = Head(config, tensors | {"lm_head.weight": output[tensors["d2t"]]}, target)
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, 2)
    kv = allocate(shape, BLOCKS, BLOCK_SIZE, torch.bfloat16, "cpu")
    params = SamplingParams(temperature=temperature, seed=0)
    with_head = tokens_per_step(target, HeadDrafter(head, kv, BLOCK_SIZE), "draft", params)
    looked_up = tokens_per_step(target, NgramDrafter(), "ngram", params)
    assert with_head > 1.3 * looked_up
    assert with_head > 2.5


def test_training_makes_the_held_out_score_better(trained, target_directory, lessons, tmp_path):
    _, trainer = trained
    fresh = trainer_of(tmp_path, target_directory, lessons, PLAN)
    before, after = fresh.evaluate(3), trainer.evaluate(3)
    for r in range(3):
        assert after.agreement[r] > before.agreement[r] + 0.2
        assert after.loss[r] < before.loss[r]
    assert after.tokens_per_step(4) > before.tokens_per_step(4)


def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(target_directory, lessons, tmp_path):
    plan = replace(PLAN, tokens=12_000)
    whole = trainer_of(tmp_path / "whole", target_directory, lessons, plan)
    assert whole.run(tmp_path / "whole" / "work")

    first = trainer_of(tmp_path / "broken", target_directory, lessons, plan)
    assert not first.run(tmp_path / "broken" / "work", seconds=0.3)
    assert 0 <= first.done < plan.tokens
    second = trainer_of(tmp_path / "broken", target_directory, lessons, plan)
    assert second.run(tmp_path / "broken" / "work")
    assert second.done == whole.done
    for name, tensor in whole.student.tensors().items():
        assert torch.equal(tensor, second.student.tensors()[name]), name


def test_lessons_hold_what_the_decoder_computes(target, conversations, lessons):
    for i in (0, 17, 299):
        lesson = lessons[i]
        text = conversations[i].tokens
        assert lesson.tokens.tolist() == text
        assert lesson.guess.tolist() == [True] * (len(text) - 1) + [False]
        alone = compute_states(target, [text], TAPS)
        assert torch.equal(torch.cat((lesson.states, lesson.final), 1), alone)
        logits = target.logits(lesson.final)
        assert logits.shape == (len(text), VOCAB)
    assert lessons.counts(VOCAB).sum() == sum(len(c.tokens) - 1 for c in conversations)


def test_lessons_go_on_where_they_stopped(target, conversations, lessons, tmp_path):
    write_lessons(tmp_path, conversations[:40], target, TAPS)
    with (tmp_path / "states.bin").open("ab") as torn:
        torn.write(b"half a row")
    again = write_lessons(tmp_path, conversations, target, TAPS)
    assert again.lengths == lessons.lengths
    for i in (0, 39, 40, 299):
        assert torch.equal(again[i].states, lessons[i].states)
    with pytest.raises(ValueError, match=r"after layers \[1, 2\], not \(2,\)"):
        write_lessons(tmp_path, conversations, target, (2,))


def test_the_loss_and_its_gradient_are_those_of_autograd():
    random = torch.Generator().manual_seed(0)
    rounds, rows, hidden, vocab = 3, 700, 16, 40

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    states = draw(rounds, rows, hidden).requires_grad_()
    final, output = draw(rows, hidden), draw(vocab, hidden)
    weight = torch.rand(rounds, rows, generator=random)
    loss, told = soft_loss(states, final, weight, output)
    (gradient,) = torch.autograd.grad(loss, states)

    wanted = (final @ output.T).softmax(-1)
    logs = (states @ output.T).log_softmax(-1)
    slow = -(wanted * logs).sum(-1) * weight
    (slow_gradient,) = torch.autograd.grad(slow.sum(), states)
    assert loss.item() == pytest.approx(slow.sum().item(), rel=1e-5)
    assert torch.allclose(gradient, slow_gradient, atol=1e-5)
    assert torch.allclose(told[0].float(), slow.sum(1), rtol=1e-4)
    agree = (logs.argmax(-1) == wanted.argmax(-1)).float()
    assert torch.allclose(told[1].float(), (agree * weight).sum(1), rtol=1e-4)


def test_what_a_student_cannot_guess_it_guesses_wrong():
    random = torch.Generator().manual_seed(0)
    states = torch.randn(2, 600, 16, generator=random)
    final = torch.randn(600, 16, generator=random)
    whole = torch.randn(40, 16, generator=random)
    counted = (torch.rand(2, 600, generator=random) < 0.7).float()
    ids = torch.arange(5, 25)
    agreed, shared = alike(states, final, counted, whole, ids)

    wanted = (final @ whole.T).softmax(-1)
    odds = torch.zeros(2, 600, 40)
    odds[..., ids] = (states @ whole[ids].T).softmax(-1)
    same = (odds.argmax(-1) == wanted.argmax(-1)).float()
    assert torch.allclose(agreed.float(), (same * counted).sum(1))
    common = torch.minimum(odds, wanted).sum(-1)
    assert torch.allclose(shared.float(), (common * counted).sum(1), rtol=1e-4)
