"""A server of weights in few bits: the same answers, drafted or not, alone or together, and with
sequences that give way."""

from __future__ import annotations

import asyncio

import pytest
import torch
from asking import METHODS
from pools import metrics, sample, whole_pool
from prompts import QUESTIONS

from paceline.api.client import Client
from paceline.kernels.native import build
from paceline.models.cache import default_cache_dir
from support.server import Server
from support.tiny_heads import save_head
from support.tiny_models import cut_layers, save_tiny

reason = build.obstacle(default_cache_dir() / "native")
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("few-bits")
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64, "tokenizer": True}
    model = save_tiny(folder / "model", "llama", dtype=torch.bfloat16, **sizes)
    cut_layers(model, folder / "model-draft", 1)
    save_head(folder / "head", model, taps=(0, 1, 2))
    return ("--model", str(model), "--served-model-name", "tiny", "--draft", str(folder))


@pytest.mark.parametrize(("mode", "draft"), [("int8", "head"), ("int4", "model-draft")])
async def test_answers_do_not_depend_on_drafts_company_or_threads(flags, mode, draft):
    flags = (*flags[:-1], f"{flags[-1]}/{draft}")

    async def ask(client: Client, i: int, method: str):
        return await client.complete(
            "tiny",
            QUESTIONS[i],
            max_tokens=60,
            ignore_eos=True,
            temperature=0.8 * (i % 2),
            top_p=0.9 if i == 3 else 1.0,
            seed=i,
            logprobs=0,
            speculation=METHODS[method],
        )

    ways = [(i, method) for i in range(4) for method in METHODS]
    texts = {}
    for threads, pool in (("1", "64MiB"), ("2", "1MiB")):
        small = ("--threads", threads, "--kv-memory", pool, "--max-model-len", "512")
        with Server(*flags, *small, "--device", "cpu", "--quantization", mode) as server:
            async with Client(server.url) as client:
                if not texts:
                    texts = {i: (await ask(client, i, "off")).texts for i in range(4)}
                answers = await asyncio.gather(*(ask(client, *way) for way in ways))
                await whole_pool(client)
            gave_way = sample(await metrics(server.url), "num_preemptions_total")
        for (i, _), answer in zip(ways, answers, strict=True):
            assert answer.texts == texts[i]
    assert gave_way > 0
    assert len({text[0] for text in texts.values()}) == 4
