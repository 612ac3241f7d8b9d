"""The engine in this process, without HTTP: for measurements and for the making of drafts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ..spec.params import SamplingParams
from .engine import Engine
from .messages import ChatPrompt, Ended, Refused, Submit, Usage
from .settings import Settings
from .supervisor import Parts, Supervisor


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Engine, Parts]]:
    """Load, start, and stop at the end. Raises ModelError."""
    from .system import load  # brings torch, which the importer of this module may do without

    parts = await load(settings)
    supervisor = Supervisor(parts)
    supervisor.start()
    try:
        yield supervisor.engine, parts
    finally:
        await supervisor.stop(1.0)
        parts.close()
        gc.unfreeze()  # what was loaded for a server's lifetime is garbage now


async def usage_of(
    engine: Engine, prompts: Sequence[str], params: SamplingParams, at_once: int
) -> list[Usage]:
    """The usage of each prompt's answer, `at_once` of them side by side. Raises RuntimeError for a
    prompt that was refused."""
    turns = asyncio.Semaphore(at_once)

    async def one(i: int) -> Usage:
        async with turns:
            prompt = ChatPrompt(({"role": "user", "content": prompts[i]},))
            async for event in engine.open(Submit(f"{i}", prompt, params)):
                if isinstance(event, Ended):
                    return event.usage
                if isinstance(event, Refused):
                    raise RuntimeError(event.message)
        raise RuntimeError(f"prompt {i} got no answer")

    return await asyncio.gather(*(one(i) for i in range(len(prompts))))
