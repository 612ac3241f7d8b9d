"""Servers that the tests of this folder share, and clients for them.

One process serves the demo model with its head draft, so that every way of drafting is there.
`E2E_THREADS` sets the servers' CPU threads. The default is one: two threads wait for each other,
and on a machine that is busy with something else that makes every step many times longer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from paceline.api.client import Client
from paceline.models.cache import default_cache_dir
from paceline.models.source import demo_directory
from support.server import Server

sys.path.insert(0, str(Path(__file__).parent))

THREADS = ("--threads", os.environ.get("E2E_THREADS", "1"))
DEMO_LENGTH = 2048


@pytest.fixture(scope="session")
def demo_flags() -> tuple[str, ...]:
    """Flags that serve the demo model with the head draft that comes with it."""
    directory = demo_directory(default_cache_dir())
    if not directory.is_dir():
        pytest.skip(f"the demo model is not prepared in {directory}: run `make setup`")
    return ("--model", "demo", "--max-model-len", str(DEMO_LENGTH), *THREADS)


@pytest.fixture(scope="session")
def demo(demo_flags: tuple[str, ...]) -> Iterator[Server]:
    """The demo model, served. At the end nothing may be left of any test."""
    with Server(*demo_flags) as server:
        yield server
    assert server.named("draining", open_requests=0)


@pytest.fixture(scope="session")
def tiny_flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags that serve a random model of two layers and many positions, with its first layer as
    the draft. It says nothing, quickly, for as long as one likes."""
    import torch

    from support.tiny_models import cut_layers, save_tiny

    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny(
        folder / "model",
        "llama",
        dtype=torch.bfloat16,
        tokenizer=True,
        max_position_embeddings=8192,
    )
    draft = cut_layers(model, folder / "draft", 1)
    return ("--model", str(model), "--served-model-name", "tiny", "--draft", str(draft), *THREADS)


@pytest.fixture
async def client(demo: Server) -> AsyncIterator[Client]:
    """Paceline's own client of the demo server."""
    async with Client(demo.url) as client:
        yield client


@pytest.fixture
async def official(demo: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of the demo server."""
    async with openai.AsyncOpenAI(
        base_url=demo.url + "/v1", api_key="none", max_retries=0, timeout=240
    ) as client:
        yield client
