"""Conversations that a model writes by itself: what a draft of it learns from without other data.

A user's turn is what the model writes after the chat template's opening of one, at temperature 1;
the answer is its own, at the temperatures asked for. All of it runs through the engine, many
conversations at once. Each conversation is a function of the weights, the recipe and its number:
a run that was broken off goes on where it stopped, and another machine of the kind gets the same.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ..actors.engine import Engine
from ..actors.messages import Accepted, Delta, Submit, TokenPrompt
from ..models.tokenizer import TextCodec
from ..spec.params import SamplingParams, Speculation

SHORTEST_QUESTION = 4
LONGEST_QUESTION = 160
Turns = Sequence[Mapping[str, Any]]
OFF = Speculation(mode="off")
DONE = ("stop", "length")


class Conversation(msgspec.Struct, frozen=True):
    """tokens: the whole conversation. answers: half-open ranges of what the model said in it, the
    end token included where it came to an end."""

    number: int
    tokens: list[int]
    answers: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """temperatures: of the answers, conversation i taking the i-th in turn. turns: of the user, at
    most. answer_tokens: of an answer at most. seed: of everything."""

    temperatures: tuple[float, ...] = (0.0, 0.8, 0.0, 1.0)
    turns: int = 2
    answer_tokens: int = 224
    seed: int = 0


class Writer:
    """Writes conversations through an engine. `codec` is this thread's own."""

    def __init__(
        self, engine: Engine, codec: TextCodec, ends: frozenset[int], recipe: Recipe
    ) -> None:
        """ends: the model's end tokens."""
        self._engine = engine
        self._codec = codec
        self._ends = tuple(sorted(ends))
        self._recipe = recipe
        self._longest = engine.info.max_model_len

    async def write(self, number: int, given: Turns = ()) -> Conversation | None:
        """Conversation `number`; None when there is none: the model asked nothing, or what is given
        is too long. given: its turns up to the question, which the model otherwise writes, or up to
        an answer, and then the model has nothing to say."""
        if given:
            return await self._answer(number, given)
        recipe = self._recipe
        temperature = self._temperature(number)
        turns: list[dict[str, str]] = []
        tokens: list[int] = []
        answers: list[tuple[int, int]] = []
        for turn in range(1 + number % recipe.turns):
            name = f"{recipe.seed}.{number}.{turn}"
            asked = await self._ask(turns, name)
            if asked is None:
                break
            turns.append({"role": "user", "content": asked})
            prompt = self._codec.encode_chat(turns)
            if prompt[: len(tokens)] != tokens:
                break  # the template rewrites earlier turns: what has been said stands as it is
            room = min(recipe.answer_tokens, self._longest - len(prompt))
            if room < 1:
                break
            said = await self._say(f"{name}.answer", prompt, temperature, room)
            turns.append({"role": "assistant", "content": self._codec.decode(said)})
            tokens = prompt + said
            answers.append((len(prompt), len(tokens)))
            if said[-1] not in self._ends:
                break
        return Conversation(number, tokens, answers) if answers else None

    async def _answer(self, number: int, given: Turns) -> Conversation | None:
        """What is given, with the model's answer if it ends in a question."""
        tokens: list[int] = []
        answers: list[tuple[int, int]] = []
        asked = [i for i, turn in enumerate(given) if turn["role"] == "assistant"]
        for i in asked:
            prompt = self._codec.encode_chat(given[:i])
            said = [*self._codec.encode_part(given[i]["content"]), self._ends[0]]
            if prompt[: len(tokens)] == tokens and len(prompt) + len(said) <= self._longest:
                tokens = prompt + said
                answers.append((len(prompt), len(tokens)))
        if not asked or asked[-1] < len(given) - 1:
            prompt = self._codec.encode_chat(given)
            room = min(self._recipe.answer_tokens, self._longest - len(prompt))
            if room >= 1 and prompt[: len(tokens)] == tokens:
                temperature = self._temperature(number)
                name = f"{self._recipe.seed}.{number}.given"
                said = await self._say(name, prompt, temperature, room)
                tokens = prompt + said
                answers.append((len(prompt), len(tokens)))
        return Conversation(number, tokens, answers) if answers else None

    def _temperature(self, number: int) -> float:
        return self._recipe.temperatures[number % len(self._recipe.temperatures)]

    async def _ask(self, turns: list[dict[str, str]], name: str) -> str | None:
        opening = self._codec.encode_opening(turns)
        room = min(LONGEST_QUESTION, self._longest - len(opening))
        if room < SHORTEST_QUESTION:
            return None
        asked = await self._say(f"{name}.question", opening, 1.0, room)
        text = self._codec.decode(asked).strip()
        complete = len(asked) > SHORTEST_QUESTION and asked[-1] in self._ends
        return text if complete and text else None

    async def _say(self, name: str, prompt: list[int], temperature: float, room: int) -> list[int]:
        """The tokens that follow the prompt, with the end token if one came."""
        params = SamplingParams(
            temperature=temperature,
            seed=zlib.crc32(name.encode()),
            max_tokens=room,
            stop_token_ids=self._ends,
            include_stop=True,
            speculation=OFF,
        )
        stream = self._engine.open(Submit(name, TokenPrompt(tuple(prompt)), params))
        said: list[int] = []
        async for event in stream:
            if isinstance(event, Delta):
                said += event.tokens
            elif not isinstance(event, Accepted) and getattr(event, "reason", "") not in DONE:
                raise RuntimeError(f"a conversation ended early: {event}")
        return said


def read(path: Path) -> Iterator[Conversation]:
    """The conversations of a file, one JSON object per line."""
    return (it for it in _lines(path) if it.answers)


def _lines(path: Path) -> Iterator[Conversation]:
    """Every line but a last one that was cut off, as a run that was killed leaves it."""
    decoder = msgspec.json.Decoder(Conversation)
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


class Diary:
    """A file of conversations that grows. `held`: tokens in it. `numbers`: those that have been
    tried; what came to nothing is noted without an answer, so that it is not tried again."""

    def __init__(self, path: Path) -> None:
        """What the file holds already is kept, but for a last line that was cut off."""
        self.held = 0
        self.numbers: set[int] = set()
        whole = 0
        if path.exists():
            for conversation in _lines(path):
                self.numbers.add(conversation.number)
                self.held += len(conversation.tokens)
            whole = path.read_bytes().rfind(b"\n") + 1
        self._file = path.open("r+b" if path.exists() else "xb")
        self._file.truncate(whole)
        self._file.seek(whole)

    def add(self, conversation: Conversation) -> None:
        """Write it down at once."""
        self._file.write(msgspec.json.encode(conversation) + b"\n")
        self._file.flush()
        self.held += len(conversation.tokens)

    def close(self) -> None:
        self._file.close()


async def write_all(
    writer: Writer,
    diary: Diary,
    tokens: int,
    *,
    at_once: int,
    given: Sequence[Turns] = (),
    told: Callable[[int], None] = lambda _: None,
) -> None:
    """Add conversations to the diary until it holds `tokens` tokens, `at_once` side by side.

    given: what they begin with, each once; they end with the last of it. told: called with the
    tokens there are.
    """
    numbers = (n for n in count() if n not in diary.numbers)

    async def work() -> None:
        while diary.held < tokens:
            number = next(numbers)
            if given and number >= len(given):
                return
            written = await writer.write(number, given[number] if given else ())
            diary.add(written or Conversation(number, [], []))
            told(diary.held)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
