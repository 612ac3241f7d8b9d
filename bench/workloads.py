"""What a benchmark asks: prompts of our own by name, texts made to measure, random tokens, a file.

Used by `load_command`, `compare` and engines that are driven in process. `workloads.json`, beside
this module, holds the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..actors.flags import UsageError
from ..draft.questions import read
from .arrivals import Arrival

TEXTS = ("chat", "rewrite", "long")
MADE = ("mix", "random")
OUTPUT_TOKENS = 128
PROMPT_TOKENS = 200
SHORTEST, LONGEST = 8, 1600
"""Tokens of a mix's prompts; answers take from 4 to 1024."""

_WORDS_PER_TOKEN = 0.75
_PROMPT_SIGMA, _OUTPUT_SIGMA = 1.0, 0.7


class Ask(msgspec.Struct, frozen=True):
    """One request: a chat's messages, or a prompt (text or token ids) to be continued."""

    max_tokens: int
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None

    def numbered(self, number: int) -> Ask:
        """The same with a number in front, so that no cache of prefixes holds it already. Token ids
        stay: they are drawn anew for every run."""
        words = f"{number} is the number of this conversation."
        if self.messages is not None:
            first, *others = self.messages
            if first["role"] == "system":
                first = {**first, "content": f"{words} {first['content']}"}
                return Ask(self.max_tokens, [first, *others])
            return Ask(self.max_tokens, [{"role": "system", "content": words}, *self.messages])
        if isinstance(self.prompt, str):
            return Ask(self.max_tokens, prompt=f"{words}\n\n{self.prompt}")
        return self


class Wanted(msgspec.Struct, frozen=True):
    """Which requests. requests: None takes each prompt once (32 of those that are made). Tokens:
    None takes the workload's own; of a mix they are medians. numbered: see `Ask.numbered`.
    completions: send texts as prompts to be continued instead of chats."""

    workload: str
    requests: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    vocabulary: int = 32_000
    numbered: bool = True
    completions: bool = False


class _Texts(msgspec.Struct, frozen=True):
    prompts: list[str]
    max_tokens: int = OUTPUT_TOKENS


def make(wanted: Wanted, rng: np.random.Generator) -> list[Ask]:
    """The requests in the order in which they are sent. Raises UsageError for a file that cannot
    be read, or a name that is no workload."""
    if wanted.workload == "mix":
        asks = list(_mix(wanted, rng))
    elif wanted.workload == "random":
        asks = list(_random(wanted, rng))
    else:
        asks = _texts(wanted)
    return _finished(asks, wanted, rng)


def traced(trace: Sequence[Arrival], wanted: Wanted, rng: np.random.Generator) -> list[Ask]:
    """What a trace asks. Where it only has a prompt's length, the workload says how to make one:
    `random` exactly, `mix` as text of about that many tokens."""
    asks = []
    for it in trace:
        if it.prompt is not None:
            ask = _said(it.prompt, it.output_tokens)
        elif it.messages is not None:
            ask = Ask(it.output_tokens, list(it.messages))
        elif wanted.workload == "random":
            ask = Ask(it.output_tokens, prompt=_ids(it.prompt_tokens or 1, wanted, rng))
        else:
            ask = _said(_text(it.prompt_tokens or 1, rng), it.output_tokens)
        asks.append(ask)
    return _finished(asks, wanted, rng)


def _finished(asks: list[Ask], wanted: Wanted, rng: np.random.Generator) -> list[Ask]:
    if wanted.completions:
        asks = [_continued(ask) for ask in asks]
    if wanted.numbered:
        numbers = rng.integers(100_000, 1_000_000, len(asks)).tolist()
        asks = [ask.numbered(number) for ask, number in zip(asks, numbers, strict=True)]
    return asks


def _texts(wanted: Wanted) -> list[Ask]:
    name, tokens = wanted.workload, wanted.output_tokens
    if name in TEXTS:
        texts = _own()[name]
        asks = [_said(text, tokens or texts.max_tokens) for text in texts.prompts]
    elif Path(name).suffix or Path(name).exists():
        asks = _from_file(Path(name), tokens)
    else:
        raise UsageError(f"--workload: {name} is no file, and none of {', '.join(TEXTS + MADE)}")
    return list(islice(cycle(asks), wanted.requests or len(asks)))


def _from_file(path: Path, tokens: int | None) -> list[Ask]:
    """A JSON object with "prompts" and perhaps "max_tokens", or what `draft probe` reads."""
    try:
        texts = msgspec.json.decode(path.expanduser().read_bytes(), type=_Texts)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not one such object: prompts by line, then
        questions = read(path)
        return [Ask(tokens or OUTPUT_TOKENS, list(it.prompt.turns)) for it in questions]
    if not texts.prompts:
        raise UsageError(f"{path} has no prompts")
    return [_said(text, tokens or texts.max_tokens) for text in texts.prompts]


def _mix(wanted: Wanted, rng: np.random.Generator) -> Iterator[Ask]:
    """Lengths with a long tail: most are short, a few are very long."""
    for _ in range(wanted.requests or 32):
        prompt = _long_tailed(wanted.prompt_tokens or PROMPT_TOKENS, _PROMPT_SIGMA, rng)
        output = _long_tailed(wanted.output_tokens or OUTPUT_TOKENS, _OUTPUT_SIGMA, rng)
        text = _text(min(max(prompt, SHORTEST), LONGEST), rng)
        yield _said(text, min(max(output, 4), 1024))


def _random(wanted: Wanted, rng: np.random.Generator) -> Iterator[Ask]:
    for _ in range(wanted.requests or 32):
        ids = _ids(wanted.prompt_tokens or PROMPT_TOKENS, wanted, rng)
        yield Ask(wanted.output_tokens or OUTPUT_TOKENS, prompt=ids)


def _ids(count: int, wanted: Wanted, rng: np.random.Generator) -> list[int]:
    """Token ids behind the first 256, where special tokens are mostly kept."""
    return rng.integers(min(256, wanted.vocabulary // 2), wanted.vocabulary, count).tolist()


def _long_tailed(median: int, sigma: float, rng: np.random.Generator) -> int:
    return round(median * float(np.exp(rng.normal(0.0, sigma))))


def _text(tokens: int, rng: np.random.Generator) -> str:
    """About that many tokens: a passage from somewhere in our long texts, to be continued."""
    words = _words()
    start = int(rng.integers(len(words)))
    count = max(4, round(tokens * _WORDS_PER_TOKEN))
    passage = " ".join(islice(cycle(words), start, start + count))
    return f"Continue this text: {passage}"


@cache
def _words() -> list[str]:
    return [word for text in _own()["long"].prompts for word in text.split()]


@cache
def _own() -> dict[str, _Texts]:
    raw = Path(__file__).with_name("workloads.json").read_bytes()
    held = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return {name: msgspec.json.decode(held[name], type=_Texts) for name in TEXTS}


def _said(text: str, tokens: int) -> Ask:
    return Ask(tokens, [{"role": "user", "content": text}])


def _continued(ask: Ask) -> Ask:
    if ask.messages is None:
        return ask
    return Ask(ask.max_tokens, prompt="\n\n".join(turn["content"] for turn in ask.messages))
