"""`paceline draft train`: a head draft of a model, made of nothing but the model.

The model writes conversations, or answers those it is given; what it thinks of every token is
computed once; a head learns from that; and a report says what it will bring. Every stage goes on
where it was broken off. What is only needed on the way lies in the folder `work` of the output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..actors import logs
from ..actors.flags import Parser, UsageError
from ..actors.local import running
from ..actors.settings import Settings
from ..actors.sources import load, read_flags
from ..models.config import ModelConfig, load_config
from ..models.decoder import Decoder
from ..models.errors import ModelError
from ..models.head import output_matrix
from ..models.head_config import load_head_config
from ..models.source import resolve
from ..models.tokenizer import TextCodec
from ..models.weights import load_weights
from .bars import Bars
from .card import ROUNDS, Evidence, write_card
from .conversations import Diary, Recipe, Turns, Writer, write_all
from .conversations import read as read_diary
from .predict import predict
from .probe_report import Report
from .publish import describe, write_config, write_tensors
from .questions import built_in
from .questions import read as read_questions
from .states import Lessons, write_lessons
from .student import Student
from .trainer import Plan, Trainer, initial_tensors

CONVERSATION = 1024
"""Tokens of a conversation at most: a head learns nothing new from longer ones."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to make, of what. tokens: of conversations. learn: of lessons, counted again when they
    are read again."""

    settings: Settings
    out: Path
    given: tuple[Turns, ...]
    tokens: int
    at_once: int
    vocab: int
    taps: tuple[int, ...] | None
    layers: int
    plan: Plan
    seconds: float

    @property
    def work(self) -> Path:
        return self.out / "work"


def train(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code. Raises UsageError, ModelError and SettingsError."""
    job = _read(argv)
    logs.configure("console", "warning")
    with Bars() as bars:
        directory = resolve(job.settings.model, job.settings.cache_dir, bars)
        _check_target(job, directory)
        asyncio.run(_converse(job, directory, bars))
        learnt = _learn(job, directory, bars)
        bars("report", 0, 1)
        write_card(job.out, replace(learnt, prediction=asyncio.run(_predict(job))))
        bars("report", 1, 1)
    if learnt.learnt_from < job.plan.tokens:
        print(f"stopped before the end; the same command goes on ({job.work})")
    return 0


def _read(argv: Sequence[str]) -> Job:
    plan = Plan()
    parser = Parser(prog="paceline draft train", description="Make a head draft of a model.")
    parser.add_argument("--out", type=Path, required=True, help="directory to make")
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[], metavar="FILE",
        help="conversations or questions (JSON lines, or one question a line); none: the model "
        "writes its own",
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of conversations")
    parser.add_argument("--at-once", type=int, default=64, help="conversations side by side")
    parser.add_argument("--learn", type=int, default=plan.tokens, help="tokens to learn from")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="rounds to unroll")
    parser.add_argument("--rate", type=float, default=plan.rate, help="highest learning rate")
    parser.add_argument("--batch", type=int, default=plan.batch, help="tokens of a training step")
    parser.add_argument("--draft-vocab", type=int, default=8192, help="tokens it can guess")
    parser.add_argument("--taps", type=int, nargs="+", help="layers whose outputs it reads")
    parser.add_argument("--layers", type=int, default=1, help="of the head")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop training then")
    mine, flags, config = read_flags(parser, argv)
    for name in ("tokens", "at_once", "learn", "rounds", "rate", "batch", "draft_vocab", "layers"):
        if not mine[name] > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0, got {mine[name]}")
    settings = load(flags | {"draft": "none"}, config)
    wide = {"max_num_seqs": mine["at_once"], "max_queued_requests": 2 * mine["at_once"]}
    return Job(
        settings=settings.model_copy(update=wide),
        out=mine["out"],
        given=tuple(it.prompt.turns for file in mine["data"] for it in read_questions(file)),
        tokens=mine["tokens"],
        at_once=mine["at_once"],
        vocab=mine["draft_vocab"],
        taps=tuple(sorted(mine["taps"])) if mine["taps"] else None,
        layers=mine["layers"],
        plan=Plan(
            tokens=mine["learn"], rounds=mine["rounds"], rate=mine["rate"], batch=mine["batch"]
        ),
        seconds=mine["seconds"],
    )


def _check_target(job: Job, directory: Path) -> None:
    """Raise ModelError for what would only come out when hours have passed."""
    config = load_config(directory)
    taps = job.taps or ()
    if taps and (len(set(taps)) < len(taps) or not 0 <= taps[0] <= taps[-1] <= config.layers):
        raise ModelError(
            f"--taps {' '.join(map(str, taps))}: {directory} has {config.layers} layers, and each "
            "is read once"
        )
    if job.layers > config.layers:
        raise ModelError(f"--layers {job.layers}: {directory} itself has {config.layers}")
    if not TextCodec.load(directory).has_chat_template:
        raise ModelError(f"{directory} has no chat template, so it can hold no conversations")


async def _converse(job: Job, directory: Path, bars: Bars) -> None:
    """Fill the diary."""
    codec = TextCodec.load(directory)
    job.work.mkdir(parents=True, exist_ok=True)
    diary = Diary(job.work / "conversations.jsonl")
    try:
        if diary.held >= job.tokens:
            return
        longest = min(CONVERSATION, load_config(directory).max_position)
        settings = job.settings.model_copy(update={"max_model_len": longest})
        async with running(settings) as (engine, parts):
            writer = Writer(engine, codec, parts.ends, Recipe())
            await write_all(
                writer, diary, job.tokens, at_once=job.at_once, given=job.given,
                told=lambda held: bars("conversations", min(held, job.tokens), job.tokens),
            )  # fmt: skip
    finally:
        diary.close()


def _learn(job: Job, directory: Path, bars: Bars) -> Evidence:
    """From the diary to a head, and what is known of it then."""
    if job.settings.threads is not None:
        torch.set_num_threads(job.settings.threads)
    config, weights = load_config(directory), load_weights(directory)
    taps = job.taps or _taps(config)
    lessons = _lessons(job, config, dict(weights), taps, bars)
    ids = _vocabulary(lessons, config, job.vocab)
    name = job.settings.public_name
    described = describe(directory, config, taps, len(ids), name, job.layers)
    write_config(job.out, described)
    head = load_head_config(job.out, config)
    student = Student(head, initial_tensors(head, weights, config.layers))
    embedding = weights["model.embed_tokens.weight"]
    output = output_matrix(weights, config.tie_head)
    device = _device(job.settings)
    trainer = Trainer(student, lessons, embedding, output, ids, job.plan, device)

    def told(done: int, agreement: Sequence[float]) -> None:
        agreed = " ".join(f"{share:.2f}" for share in agreement)
        bars("training", min(done, job.plan.tokens), job.plan.tokens, f"agreement {agreed}")

    trainer.run(job.work, seconds=job.seconds, told=told)
    write_tensors(job.out, student.tensors(), ids, config.vocab_size)
    counts = lessons.counts(config.vocab_size)
    return Evidence(
        target=name,
        config=described,
        plan=job.plan,
        lessons=lessons,
        learnt_from=trainer.done,
        coverage=float(counts[ids.numpy()].sum() / counts.sum()),
        score=trainer.evaluate(ROUNDS),
    )


async def _predict(job: Job) -> Report:
    """What the new draft brings on this machine."""
    streams = {"max_num_seqs": 8, "draft": str(job.out)}
    settings = job.settings.model_copy(update=streams)
    return await predict(settings, built_in(), methods=["draft"])


def _lessons(
    job: Job, config: ModelConfig, weights: dict[str, Any], taps: tuple[int, ...], bars: Bars
) -> Lessons:
    conversations = list(read_diary(job.work / "conversations.jsonl"))
    decoder = Decoder(config, weights, device=_device(job.settings), dtype=torch.bfloat16)
    return write_lessons(job.work / "lessons", conversations, decoder, taps, bars)


def _taps(config: ModelConfig) -> tuple[int, ...]:
    """About a third, two thirds, and all but one of the target's layers."""
    layers = config.layers
    return tuple(sorted({max(1, layers * 3 // 10), max(1, layers * 19 // 30), max(1, layers - 1)}))


def _vocabulary(lessons: Lessons, config: ModelConfig, size: int) -> torch.Tensor:
    """The `size` tokens that are most often to be guessed, ascending."""
    counts = torch.from_numpy(lessons.counts(config.vocab_size))
    size = min(size, config.vocab_size)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def _device(settings: Settings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if torch.cuda.is_available() else "cpu"
