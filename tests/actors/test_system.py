"""From settings to loaded models: which lengths a draft leaves, and what is refused at start."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from paceline.actors.settings import Settings
from paceline.actors.supervisor import Parts
from paceline.actors.system import load
from paceline.models.errors import ModelError
from support.tiny_heads import change_config, save_flat_head, save_head
from support.tiny_models import save_tiny

POSITIONS = 512
SHORT = {"layer": {"max_position_embeddings": 200}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(
        tmp_path_factory.mktemp("model"),
        "llama",
        num_hidden_layers=4,
        max_position_embeddings=POSITIONS,
        tokenizer=True,
    )


async def parts(model: Path, draft: Path | str, **settings: Any) -> Parts:
    """Everything loaded, with the threads ended again."""
    quiet = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 2}
    found = await load(Settings(model=str(model), draft=str(draft), **quiet, **settings))
    found.launch.shutdown()
    found.text.shutdown()
    gc.unfreeze()
    return found


async def refusal(model: Path, draft: Path | str, **settings: Any) -> str:
    with pytest.raises(ModelError) as error:
        await parts(model, draft, **settings)
    return str(error.value)


@pytest.mark.parametrize("save", [save_head, save_flat_head], ids=["nested", "flat"])
async def test_a_head_of_fewer_positions_limits_the_length(save, model, tmp_path):
    head = save(tmp_path, model, **SHORT)
    found = await parts(model, head)
    assert found.info.max_model_len == found.limits.length == 200
    assert (found.info.default_method, found.info.draft) == ("draft", str(head))
    shorter = await parts(model, head, max_model_len=199)
    assert shorter.info.max_model_len == 199
    message = await refusal(model, head, max_model_len=201)
    assert message == f"max_model_len 201 exceeds the 200 positions of the draft {head}"


async def test_a_head_of_more_positions_leaves_the_models_length(model, tmp_path):
    head = save_head(tmp_path, model, layer={"max_position_embeddings": 4096})
    assert (await parts(model, head)).info.max_model_len == POSITIONS
    message = await refusal(model, head, max_model_len=513)
    assert message == f"max_model_len 513 exceeds the 512 positions of the model {model}"


async def test_what_a_head_needs_is_counted(model, tmp_path):
    without = (await parts(model, "none")).info
    own = save_head(tmp_path, model, layer={"num_hidden_layers": 2})
    beside = (await parts(model, own)).info
    assert beside.blocks == without.blocks
    assert beside.kv_bytes == without.kv_bytes * 6 // 4
    assert beside.weight_bytes > without.weight_bytes


async def test_a_draft_that_does_not_fit_is_refused(model, tmp_path):
    head = save_head(tmp_path, model)
    change_config(head, target_hidden_size=4096)
    message = await refusal(model, head)
    for word in (str(head), str(model), "target_hidden_size 4096", "hidden_size of this one is 64"):
        assert word in message


async def test_a_draft_of_the_hub_that_is_out_of_reach(model, tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    message = await refusal(model, "org/name-eagle3")
    assert message.startswith("org/name-eagle3 is neither a directory here nor in the hub's cache")
