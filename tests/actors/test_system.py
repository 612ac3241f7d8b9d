"""From settings to loaded models: which lengths a draft leaves, and what is refused at start."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from paceline.actors.local import running
from paceline.actors.messages import Delta, Ended, Submit, TokenPrompt
from paceline.actors.settings import Settings
from paceline.actors.sources import SettingsError
from paceline.actors.supervisor import Parts
from paceline.actors.system import load
from paceline.kernels.native import build
from paceline.kv.capacity import KvShape
from paceline.models.cache import default_cache_dir
from paceline.models.errors import ModelError
from paceline.spec.params import SamplingParams, Speculation
from support.tiny_heads import TAPS, change_config, save_flat_head, save_head
from support.tiny_models import cut_layers, save_tiny

POSITIONS = 512


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
    quiet = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 2} | settings
    found = await load(Settings(model=str(model), draft=str(draft), **quiet))
    found.launch.shutdown()
    found.text.shutdown()
    gc.unfreeze()
    return found


async def refusal(model: Path, draft: Path | str, **settings: Any) -> str:
    with pytest.raises(ModelError) as error:
        await parts(model, draft, **settings)
    return str(error.value)


@pytest.mark.parametrize("save", [save_head, save_flat_head], ids=["nested", "flat"])
@pytest.mark.parametrize("positions", [200, 4096])
async def test_a_draft_has_no_say_in_the_length(save, positions, model, tmp_path):
    head = save(tmp_path, model, layer={"max_position_embeddings": positions})
    found = await parts(model, head)
    assert found.info.max_model_len == found.limits.length == POSITIONS
    assert (found.info.default_method, found.info.draft) == ("draft", str(head))
    message = await refusal(model, head, max_model_len=513)
    assert message == f"max_model_len 513 exceeds the 512 positions of {model}"


async def test_a_draft_of_few_positions_drafts_on_behind_them(model, tmp_path):
    head = save_head(tmp_path, model, layer={"max_position_embeddings": 32})
    quiet = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 2}
    texts = {}
    async with running(Settings(model=str(model), draft=str(head), **quiet)) as (engine, _):
        for mode in ("off", "force"):
            wish = Speculation(mode=mode, method="draft" if mode == "force" else None, k=3)
            params = SamplingParams(
                temperature=0.0, max_tokens=150, ignore_eos=True, speculation=wish
            )
            stream = engine.open(Submit(mode, TokenPrompt((5, 9, 33)), params))
            events = [event async for event in stream]
            texts[mode] = [t for e in events if isinstance(e, Delta) for t in e.tokens]
            used = next(e.usage.speculation for e in events if isinstance(e, Ended))
    assert texts["off"] == texts["force"]
    assert len(texts["off"]) == 150
    assert used.drafted > 100


async def test_what_a_head_needs_is_counted(model, tmp_path):
    without = (await parts(model, "none")).info
    own = save_head(tmp_path, model, layer={"num_hidden_layers": 2})
    beside = (await parts(model, own)).info
    assert beside.blocks == without.blocks
    states = len(TAPS) * 64 * 4  # of the last token of each block, in float32
    assert beside.kv_bytes == without.kv_bytes * 6 // 4 + beside.blocks * states
    assert beside.weight_bytes > without.weight_bytes


@pytest.mark.parametrize("full_layers", [0, 1])
async def test_the_formats_of_kv_are_as_the_settings_say(model, tmp_path, full_layers):
    head = save_head(tmp_path, model)
    formats = {"kv_dtype": "int8", "kv_full_layers": full_layers, "draft_kv_dtype": "int8"}
    plain = (await parts(model, head)).info
    target = (await parts(model, head, **formats | {"draft_kv_dtype": "auto"})).info
    both = (await parts(model, head, **formats)).info
    assert [info.kv_dtype for info in (plain, target, both)] == [
        "float32", "int8, draft float32", "int8"
    ]  # fmt: skip
    assert plain.blocks == target.blocks == both.blocks
    layer = KvShape(1, 2, 16, 4)
    full, small = layer.block_bytes(16), layer.in_format("int8").block_bytes(16)
    saved = plain.blocks * (full - small)
    assert plain.kv_bytes - target.kv_bytes == (4 - 2 * full_layers) * saved
    assert target.kv_bytes - both.kv_bytes == saved


async def test_no_layer_left_for_eight_bits_is_refused(model):
    message = await refusal(model, "none", kv_dtype="int8", kv_full_layers=2)
    assert message == "kv_full_layers 2: none of 4 layers is between 2 at either end"


async def test_a_given_budget_pays_for_what_is_staged_too(model):
    sizes = {"kv_dtype": "int8", "kv_memory": 200_000, "max_num_seqs": 4}
    shape = KvShape(4, 2, 16, 4).in_format("int8")
    info = (await parts(model, "none", **sizes)).info
    assert info.blocks == (200_000 - shape.stage_bytes(16, 4)) // shape.block_bytes(16)


async def test_drafting_by_default_with_a_draft_needs_one(model):
    message = await refusal(model, "auto", speculative_method="draft")
    assert message == f"no draft comes with {model}: name one, or another method"


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["none", "model", "head"])
async def test_what_is_foreseen_is_what_is_there(kind, dtype, model, tmp_path):
    """Within 1 %, says the promise; nothing here is left to chance, so it is exact."""
    make = {
        "model": lambda: cut_layers(model, tmp_path, 1),
        "head": lambda: save_head(tmp_path, model),
    }
    draft = make[kind]() if kind in make else "none"
    info = (await parts(model, draft, dtype=dtype)).info
    foreseen = info.forecast
    assert foreseen.weight_bytes == info.weight_bytes
    assert foreseen.pool.blocks == info.blocks
    assert foreseen.pool.bytes == info.kv_bytes
    assert (foreseen.draft is None) == (kind == "none")
    assert foreseen.dtype == info.dtype == dtype


@pytest.mark.parametrize("draft", ["none", "head"])
@pytest.mark.parametrize("mode", ["int8", "int4"])
async def test_weights_in_few_bits_are_foreseen_too(mode, draft, tmp_path):
    if (reason := build.obstacle(default_cache_dir() / "native")) is not None:
        pytest.skip(reason)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64, "tokenizer": True}
    model = save_tiny(tmp_path / "model", "qwen3", **sizes)
    head = save_head(tmp_path / "head", model, taps=(0, 1, 2)) if draft == "head" else draft
    info = (await parts(model, head, dtype="auto", quantization=mode)).info
    assert info.exact
    assert info.forecast.weight_bytes == info.weight_bytes
    assert info.forecast.pool.bytes == info.kv_bytes


async def test_the_block_size_suits_the_traffic(model, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"event":"request","prompt_tokens":20,"completion_tokens":9,"finish":"stop"}\n')
    chosen = {}
    for name, traffic in (("none", {}), ("short", {"traffic": log})):
        found = await parts(model, "none", block_size="auto", **traffic)
        chosen[name] = found.info.block_size
        assert found.info.forecast.pool.block_size == found.info.block_size
        assert found.info.blocks * found.info.block_size == found.info.pool_tokens
    assert chosen == {"none": 16, "short": 2}
    assert found.info.forecast.typical.source == "traffic"


async def test_traffic_that_cannot_be_read_ends_the_start(model, tmp_path):
    with pytest.raises(SettingsError, match="cannot read traffic"):
        await parts(model, "none", block_size="auto", traffic=tmp_path / "none")


async def test_a_pool_without_room_is_refused(model):
    message = await refusal(model, "none", kv_memory=1000)
    assert message.startswith("1000 bytes for KV are too few: two blocks take ")


async def test_blocks_are_given_back_where_all_layers_of_all_models_have_a_window(tmp_path):
    sizes = {"max_position_embeddings": POSITIONS, "num_hidden_layers": 4, "tokenizer": True}
    target = save_tiny(tmp_path / "target", "mistral", sliding_window=20, **sizes)
    wider = save_tiny(tmp_path / "wider", "phi3", sliding_window=33, **sizes)
    mixed = save_tiny(tmp_path / "mixed", "gemma3", **sizes | {"num_hidden_layers": 2})
    head = save_head(tmp_path / "head", target)
    small = {"kv_memory": 2**20 // 4, "max_num_batched_tokens": 16, "max_flights": 1}
    wanted = {"none": 20, wider: 33, mixed: None, head: None}
    for draft, window in wanted.items():
        found = await parts(target, draft, **small)
        assert found.limits.window == window, draft
        assert found.limits.far is None  # no token looks further back than another
        held = found.info.blocks * found.info.block_size
        assert held < POSITIONS
        assert found.admission.pool_tokens == (POSITIONS if draft == "none" else held)
    unlike = (await parts(mixed, "none")).limits
    assert unlike.window is None
    assert unlike.far is not None
