"""Training of a head draft: lessons in, a directory that `--draft` takes out.

A run is a function of the lessons and the plan. Its checkpoints hold all that it needs to go on,
so it may be stopped at any time, or by a limit of seconds, and started again with the same words.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..models.head_config import HeadConfig
from .loss import alike, soft_loss
from .states import Lesson, Lessons
from .student import Student

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY = 120.0
"""Seconds between checkpoints."""


@dataclass(frozen=True, slots=True)
class Plan:
    """tokens: how many to learn from in all, lessons being read again when they run out. rounds:
    how far a pass is unrolled over its own states, a round counting `decay` times the one before.
    batch: tokens of a step, padding included. rate: of AdamW at its highest, after `warm` of the
    steps; it falls to a tenth. held_out: share of the lessons, the last ones, that is never learnt
    from."""

    tokens: int = 2_000_000
    rounds: int = 3
    decay: float = 0.8
    batch: int = 4096
    rate: float = 1e-3
    warm: float = 0.03
    held_out: float = 0.03
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Score:
    """How a student does on texts it never learnt from, by round: mean loss over the tokens it can
    guess; over all tokens, the share that it and its target would choose alike, and the share of
    odds that they have in common, which rejection sampling accepts."""

    loss: tuple[float, ...]
    agreement: tuple[float, ...]
    overlap: tuple[float, ...]

    def tokens_per_step(self, k: int) -> float:
        """Tokens of a greedy step with k guesses, if the rounds agreed independently."""
        held = [math.prod(self.agreement[: i + 1]) for i in range(min(k, len(self.agreement)))]
        return 1.0 + sum(held)


@dataclass(frozen=True, slots=True)
class _Made:
    """A batch's guesses: rows [R, N, H] by round, for the tokens that final [N, H] chooses, and
    which of them count [R, N]."""

    rows: Tensor
    final: Tensor
    counted: Tensor


class Trainer:
    """Trains a student towards its target.

    embedding, output: the target's own [V, H]. ids: the tokens [D] that the student can guess.
    """

    def __init__(
        self,
        student: Student,
        lessons: Lessons,
        embedding: Tensor,
        output: Tensor,
        ids: Tensor,
        plan: Plan,
        device: str = "cpu",
    ) -> None:
        self.student = student.to(device)
        self.plan = plan
        self._lessons = lessons
        self._device = device
        self._embedding = embedding.to(device, torch.bfloat16)
        self._whole = output.to(device, torch.bfloat16)
        self._ids = ids.to(device)
        self._output = self._whole[self._ids]
        # The last ones: where lessons were added since the last run, nothing learnt from these.
        learnt = len(lessons) - max(1, round(plan.held_out * len(lessons)))
        self._learnt, self._held = range(learnt), range(learnt, len(lessons))
        self._optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.done = 0
        """Tokens learnt from."""

    def keep(self, share: float) -> None:
        """Learn from this share of the lessons only."""
        self._learnt = self._learnt[: max(1, round(share * len(self._learnt)))]

    def run(
        self,
        folder: Path,
        *,
        seconds: float = math.inf,
        told: Callable[[int, Sequence[float]], None] = lambda done, agreement: None,
    ) -> bool:
        """Go on from the folder's checkpoint, if there is one, until the plan is done or `seconds`
        are over. Returns whether the plan is done. told: called now and then with the tokens
        learnt from and, by round, how often the student agreed in the last steps."""
        self._restore(folder)
        begun = saved = time.monotonic()
        recent: list[Tensor] = []
        for batch in self._batches():
            if time.monotonic() - begun > seconds:
                break
            self._set_rate()
            recent.append(self._learn(batch))
            self.done += sum(len(lesson) for lesson in batch)
            if len(recent) == 20:
                agreed, counted = torch.stack(recent).sum(0)
                told(self.done, (agreed / counted.clamp_min(1)).tolist())
                recent.clear()
            if time.monotonic() - saved > SAVE_EVERY:
                self._save(folder)
                saved = time.monotonic()
        self._save(folder)
        return self.done >= self.plan.tokens

    @torch.no_grad()
    def evaluate(self, rounds: int, most: int = 200) -> Score:
        """The score on lessons that are never learnt from, over `rounds` rounds."""
        figures = []
        for batch in _batched([self._lessons[i] for i in self._held[:most]], self.plan.batch):
            made = self._make(batch, rounds)
            _, (lost, _) = soft_loss(made.rows, made.final, made.counted, self._output)
            found = alike(made.rows, made.final, made.counted, self._whole, self._ids)
            figures.append(torch.stack([lost, *found, made.counted.sum(1).double()]))
        *sums, counted = torch.stack(figures).sum(0)
        return Score(*(tuple((part / counted.clamp_min(1)).tolist()) for part in sums))

    def _learn(self, batch: Sequence[Lesson]) -> Tensor:
        """One step. Returns by round [2, R]: tokens agreed on, and counted."""
        made = self._make(batch, self.plan.rounds)
        decay = made.counted.new_tensor([self.plan.decay**r for r in range(self.plan.rounds)])
        loss, (_, agreed) = soft_loss(
            made.rows, made.final, made.counted * decay[:, None], self._output
        )
        torch.autograd.backward(loss / made.counted.sum().clamp_min(1))
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack((agreed / decay, made.counted.sum(1).double()))

    def _make(self, batch: Sequence[Lesson], rounds: int) -> _Made:
        tokens = pad_sequence([it.tokens for it in batch], True).to(self._device)
        states = pad_sequence([it.states for it in batch], True).to(self._device)
        final = pad_sequence([it.final for it in batch], True).to(self._device)
        guess = pad_sequence([it.guess for it in batch], True).to(self._device)
        made = self.student(self._embedding[tokens], states, rounds)
        texts, places = guess.nonzero(as_tuple=True)
        begun = [places - r for r in range(rounds)]  # where the pass began whose round r is here
        rows = torch.stack([made[r, texts, at.clamp_min(0)] for r, at in enumerate(begun)])
        counted = torch.stack([(at >= 0).float() for at in begun])
        return _Made(rows, final[texts, places], counted)

    def _batches(self) -> Iterator[list[Lesson]]:
        """The rest of the plan: from `done` on, as if the run had never stopped."""
        done, epoch = 0, 0
        while True:
            for batch in self._epoch(epoch):
                if done >= self.plan.tokens:
                    return
                if done >= self.done:
                    yield [self._lessons[i] for i in batch]
                done += sum(self._lessons.lengths[i] for i in batch)
            epoch += 1

    def _epoch(self, epoch: int) -> list[list[int]]:
        """All lessons once in batches of like length, in an order of the epoch's own."""
        rng = random.Random(f"{self.plan.seed} {epoch}")
        order = sorted(self._learnt, key=lambda i: (self._lessons.lengths[i] // 16, rng.random()))
        batches: list[list[int]] = [[]]
        for i in order:
            longest = self._lessons.lengths[i] + 16
            if batches[-1] and (len(batches[-1]) + 1) * longest > self.plan.batch:
                batches.append([])
            batches[-1].append(i)
        rng.shuffle(batches)
        return batches

    def _set_rate(self) -> None:
        share = self.done / self.plan.tokens
        warm = min(1.0, (share + 1e-3) / self.plan.warm)
        rate = self.plan.rate * warm * (0.55 + 0.45 * math.cos(math.pi * min(1.0, share)))
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        kept = {
            "student": self.student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "done": self.done,
        }
        torch.save(kept, folder / "checkpoint.new")
        (folder / "checkpoint.new").replace(folder / CHECKPOINT)

    def _restore(self, folder: Path) -> None:
        if not (folder / CHECKPOINT).exists():
            return
        kept = torch.load(folder / CHECKPOINT, map_location=self._device, weights_only=True)
        self.student.load_state_dict(kept["student"])
        self._optimizer.load_state_dict(kept["optimizer"])
        self.done = kept["done"]


def _batched(lessons: Sequence[Lesson], tokens: int) -> Iterator[list[Lesson]]:
    batch: list[Lesson] = []
    for lesson in sorted(lessons, key=len):
        if batch and (len(batch) + 1) * len(lesson) > tokens:
            yield batch
            batch = []
        batch.append(lesson)
    if batch:
        yield batch


def initial_tensors(
    config: HeadConfig, target: Mapping[str, Tensor], layers: int, seed: int = 0
) -> dict[str, Tensor]:
    """Where training begins: the last of the target's `layers`, which read the last tap through
    `fc` as they did before and, weakly at first, everything else that a head reads besides."""
    generator = torch.Generator().manual_seed(seed)

    def small(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.02

    hidden = config.hidden_size
    fc = small(hidden, len(config.taps) * hidden)
    fc[:, -hidden:] += torch.eye(hidden)
    tensors = {"fc.weight": fc, "norm.weight": target["model.norm.weight"]}
    for i in range(config.layers):
        source = f"model.layers.{layers - config.layers + i}."
        own = {
            name.removeprefix(source): tensor
            for name, tensor in target.items()
            if name.startswith(source) and not name.endswith("inv_freq")
        }
        if i == 0:
            own["hidden_norm.weight"] = own["input_layernorm.weight"]
            own["input_layernorm.weight"] = torch.ones(hidden)
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = own[f"self_attn.{name}.weight"].float()
                wide = torch.cat((small(*weight.shape), weight), 1)
                own[f"self_attn.{name}.weight"] = wide
        tensors |= {f"layers.{i}.{name}": tensor for name, tensor in own.items()}
    return tensors
