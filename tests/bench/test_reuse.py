"""The benchmark of reused prompts, on a tiny model: what it counts, not what it times."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.actors.messages import Usage
from paceline.actors.settings import Settings
from paceline.bench.reuse import Asked, Prefix, measure, prefix
from support.tiny_models import cut_layers, save_tiny


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny(
        folder / "model", "llama", tokenizer=True, max_position_embeddings=4096, num_hidden_layers=2
    )
    draft: Path = cut_layers(model, folder / "draft", 1)
    return Settings(
        model=str(model), draft=str(draft), device="cpu", dtype="float32", threads=1, max_num_seqs=2
    )


async def test_a_prompt_that_was_asked_is_computed_again_for_less_than_a_block(settings):
    table, first, again, held = await measure(
        settings, prefixes=3, together=2, again=2, tokens=120, answer=12
    )
    assert table.row_count == 3
    assert "warm / cold" in first
    assert again.endswith("as promised")
    assert held.endswith("+0.0 points")


async def test_without_a_cache_it_says_that_the_promise_is_broken(settings):
    uncached = settings.model_copy(update={"enable_prefix_caching": False})
    _, _, again, _ = await measure(uncached, prefixes=1, together=1, again=1, tokens=120, answer=4)
    assert again.endswith("MORE THAN A BLOCK")


def test_prefixes_have_nothing_in_common():
    beginnings = {prefix(i, 50).prompt.turns[0]["content"][:12] for i in range(20)}
    assert len(beginnings) == 20


def test_the_ratio_is_of_medians():
    usage = Usage(prompt_tokens=100, cached_tokens=96)
    it = Prefix(prefix(0, 10).prompt, Asked(2.0, usage), [Asked(s, usage) for s in (0.1, 9.0, 0.5)])
    assert it.ratio == 0.25
    assert it.warm[0].again == 4
