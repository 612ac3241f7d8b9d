"""One question asked in one way, and what came of it, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai
from prompts import QUESTIONS, asked

METHODS: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "ngram": {"mode": "force", "method": "ngram"},
    "draft": {"mode": "force", "method": "draft"},
}
SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
}


@dataclass(frozen=True)
class Way:
    """question: its place in QUESTIONS, which is also its seed."""

    question: int
    sampling: str
    method: str


@dataclass(frozen=True)
class Told:
    """An answer. tokens: the text and the log probability of each. drafted, accepted: guesses."""

    text: str
    tokens: tuple[tuple[str, float], ...]
    drafted: int
    accepted: int

    def difference(self, other: Told) -> str | None:
        """The first token in which the other answer differs; None when none does."""
        for place, (ours, theirs) in enumerate(zip(self.tokens, other.tokens, strict=False)):
            if ours != theirs:
                return f"token {place}: {ours} became {theirs}"
        if len(self.tokens) != len(other.tokens) or self.text != other.text:
            return f"{len(self.tokens)} tokens {self.text!r} became {other.text!r}"
        return None


async def ask(official: openai.AsyncOpenAI, way: Way, tokens: int) -> Told:
    """An answer of exactly `tokens` tokens."""
    answer = await official.chat.completions.create(
        model="demo",
        messages=asked(QUESTIONS[way.question]),
        max_tokens=tokens,
        seed=way.question,
        logprobs=True,
        extra_body={"ignore_eos": True, "speculation": METHODS[way.method]},
        **SAMPLINGS[way.sampling],
    )
    choice, spent = answer.choices[0], answer.usage.speculation
    rows = tuple((row.token, row.logprob) for row in choice.logprobs.content)
    assert len(rows) == answer.usage.completion_tokens == tokens
    return Told(choice.message.content, rows, spent["drafted"], spent["accepted"])


async def ask_among(
    official: openai.AsyncOpenAI, ways: Sequence[Way], tokens: int, at_once: int
) -> dict[Way, Told]:
    """Ask all, `at_once` at a time, in their order."""
    seats = asyncio.Semaphore(at_once)

    async def one(way: Way) -> Told:
        async with seats:
            return await ask(official, way, tokens)

    async with asyncio.TaskGroup() as group:
        tasks = {way: group.create_task(one(way)) for way in ways}
    return {way: task.result() for way, task in tasks.items()}
