"""What eight-bit KV costs in quality: greedy answers beside those of the model's own format, and
perplexity on a text that comes with the project.

    python -m paceline.bench.kv_quality [--prompts 100] [--tokens 64] [--json] [serve's flags]

For `kv_dtype` auto and for int8 with 0, 1 and 2 layers at either end in full precision; and, as a
yardstick, for the whole model in float32. Answers are greedy, without speculation. Three shares say
how alike they are to those of auto, from the mildest: `next token`, how often the likeliest token
is the same, with the text that auto wrote before it; `before first`, tokens before the first that
differs, of all that auto wrote; `identical`, whole answers. The figures do not depend on what else
the machine does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec
from rich.table import Table

from ..actors.engine import Engine
from ..actors.flags import Parser, UsageError
from ..actors.local import running
from ..actors.messages import (
    Accepted,
    ChatPrompt,
    Delta,
    Prompt,
    Refused,
    Submit,
    TextPrompt,
    TokenPrompt,
)
from ..actors.settings import Settings
from ..draft.prompts import PROMPTS
from ..models.config import load_config
from ..models.source import resolve
from ..spec.params import SamplingParams, Speculation
from ..spec.plan import TokenLogprobs
from .fixed_text import PROSE
from .flags import read_flags
from .perplexity import perplexity
from .report import agreement, tell
from .steps import TOPICS

FORMATS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("auto", {"kv_dtype": "auto", "kv_full_layers": 0}),
    *((f"int8, {n} full", {"kv_dtype": "int8", "kv_full_layers": n}) for n in (0, 1, 2)),
    ("auto, float32", {"kv_dtype": "auto", "kv_full_layers": 0, "dtype": "float32"}),
)
FORMS = (
    "Write about {}.", "Tell me three facts about {}.", "Explain {} to a child.",
    "Write a short poem about {}.", "What should I read about {}?", "Ask me a question about {}.",
)  # fmt: skip
ASKED = (*PROMPTS, *(form.format(topic) for form, topic in product(FORMS, TOPICS)))
AT_ONCE = 8
Tokens = tuple[int, ...]


class Answers(msgspec.Struct, frozen=True):
    """Of one format: each prompt's ids and answer, and the perplexity of the text."""

    prompts: list[Tokens]
    answers: list[Tokens]
    perplexity: float
    bytes_per_token: float


class Row(msgspec.Struct, frozen=True):
    """A format beside auto; shares are from 0 to 1."""

    kv: str
    next_token: float
    before_first: float
    identical: float
    perplexity: float
    bytes_per_token: float


async def measure(settings: Settings, count: int, tokens: int) -> list[Row]:
    """A row for every format that leaves a layer for eight bits, auto first. Raises ModelError."""
    rows: list[Row] = []
    auto: Answers | None = None
    layers = load_config(resolve(settings.model, settings.cache_dir)).layers
    for name, update in FORMATS:
        if 2 * update["kv_full_layers"] >= layers or update.get("dtype") == settings.dtype:
            continue
        changed = settings.model_copy(update=update | {"draft_kv_dtype": "auto", "draft": None})
        async with running(changed) as (engine, parts):
            info = parts.info
            prompts, answers = await _answers(engine, ASKED[:count], tokens)
            found = Answers(
                prompts, answers, await _perplexity(engine), info.kv_bytes / info.pool_tokens
            )
            auto = auto or found
            same = await _next_tokens(engine, auto)
        rows.append(_row(name, auto, found, same))
    return rows


def _row(name: str, auto: Answers, found: Answers, same: float) -> Row:
    pairs = list(zip(auto.answers, found.answers, strict=True))
    agreed = sum(agreement(a, b) for a, b in pairs)
    return Row(
        kv=name,
        next_token=same,
        before_first=agreed / sum(len(answer) for answer in auto.answers),
        identical=sum(a == b for a, b in pairs) / len(pairs),
        perplexity=found.perplexity,
        bytes_per_token=found.bytes_per_token,
    )


async def _answers(
    engine: Engine, texts: Sequence[str], tokens: int
) -> tuple[list[Tokens], list[Tokens]]:
    """Ids of the prompts and of their answers."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, speculation=Speculation(mode="off"))
    prompts = [ChatPrompt(({"role": "user", "content": text},)) for text in texts]
    told = await _ask(engine, prompts, params)
    return [ids for ids, _, _ in told], [answer for _, answer, _ in told]


async def _perplexity(engine: Engine) -> float:
    [(_, _, rows)] = await _ask(engine, [TextPrompt(PROSE)], _reading(0))
    return perplexity([row.logprob for row in rows])


async def _next_tokens(engine: Engine, auto: Answers) -> float:
    """Share of auto's answers' tokens that are the likeliest here too, behind the same text."""
    whole = zip(auto.prompts, auto.answers, strict=True)
    told = await _ask(engine, [TokenPrompt(a + b) for a, b in whole], _reading(1))
    same = total = 0
    for (_, _, rows), answer in zip(told, auto.answers, strict=True):
        own = rows[len(rows) - len(answer) :]
        same += sum(row.top[0][0] == token for row, token in zip(own, answer, strict=True))
        total += len(answer)
    return same / total


def _reading(top: int) -> SamplingParams:
    """To be told the log probabilities of a prompt, and nothing more."""
    return SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=top)


async def _ask(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams
) -> list[tuple[Tokens, Tokens, list[TokenLogprobs]]]:
    """Of each prompt its ids, the answer's, and its log probabilities."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(i: int) -> tuple[Tokens, Tokens, list[TokenLogprobs]]:
        ids: Tokens = ()
        answer: list[int] = []
        rows: list[TokenLogprobs] = []
        async with turns:
            async for event in engine.open(Submit(f"{i}", prompts[i], params)):
                match event:
                    case Accepted():
                        ids = event.prompt
                    case Delta():
                        answer += event.tokens
                        rows += event.prompt_logprobs
                    case Refused():
                        raise RuntimeError(event.message)
        return ids, tuple(answer), rows

    return await asyncio.gather(*(one(i) for i in range(len(prompts))))


def table_of(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title)
    for column in ("kv", "next token", "before first", "identical", "perplexity", "bytes/token"):
        table.add_column(column, justify="right")
    for row in rows:
        shares = (row.next_token, row.before_first, row.identical)
        table.add_row(
            row.kv, *(f"{share:.1%}" for share in shares), f"{row.perplexity:.4f}",
            f"{row.bytes_per_token:.0f}",
        )  # fmt: skip
    return table


def main() -> int:
    """Print the table, or one JSON object."""
    parser = Parser(prog="python -m paceline.bench.kv_quality", description=__doc__)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    own, settings = read_flags(parser)
    if not 1 <= own["prompts"] <= len(ASKED):
        raise UsageError(f"--prompts must be between 1 and {len(ASKED)}, got {own['prompts']}")
    rows = asyncio.run(measure(settings, own["prompts"], own["tokens"]))
    tell(own, settings, rows, table_of)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
