"""Reading a draft for a target: every mismatch is one sentence that names both sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import Tensor

from paceline.models.checkpoint import Checkpoint
from paceline.models.config import load_config
from paceline.models.errors import ModelError
from paceline.models.layout import EMBEDDING, OUTPUT
from paceline.models.source import resolve
from paceline.models.tokenizer import TextCodec
from paceline.models.weights import WEIGHTS, load_weights
from paceline.spec.drafts import Origin, load_draft
from support.tiny_heads import change_config, change_tensors, save_flat_head, save_head
from support.tiny_models import VOCAB, cut_layers, save_tiny

LAYERS = 8
LAYER = "transformer_layer_config"
EAGLE = "eagle_config"
IDS = "eagle_aux_hidden_state_layer_ids"
SIDES = "a LlamaForCausalLM of hidden_size 64 with 8 layers and 512 tokens"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    directory = save_tiny(
        tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=LAYERS, tokenizer=True
    )
    checkpoint = Checkpoint(load_weights(directory), {})
    return Origin(directory, load_config(directory), checkpoint, TextCodec.load(directory))


def refusal(directory: Path, origin: Origin) -> str:
    with pytest.raises(ModelError) as error:
        load_draft(directory, origin)
    message = str(error.value)
    assert str(directory) in message
    assert str(origin.directory) in message
    assert "\n" not in message
    return message


CONFIGS: dict[str, tuple[str | None, dict[str, Any], tuple[str, ...]]] = {
    "hidden size": (None, {"target_hidden_size": 32}, ("target_hidden_size 32", "is 64")),
    "vocabulary": (LAYER, {"vocab_size": 500}, ("vocab_size 500", "is 512")),
    "taps beyond": (None, {IDS: [1, 2, 9]}, ("[1, 2, 9]", "a target that has 8")),
    "taps in disorder": (None, {IDS: [3, 2, 1]}, ("[3, 2, 1]", "3 ascending layers")),
    "the same tap twice": (None, {IDS: [2, 2]}, ("[2, 2]", "2 ascending layers")),
    "taps before": (None, {IDS: [-1, 2]}, ("[-1, 2]",)),
    "taps that are none": (None, {IDS: "2"}, (IDS, "'2'")),
    "taps by name": (None, {IDS: ["a"]}, (IDS, "['a']")),
    "eagle": (None, {"speculators_model_type": "eagle"}, ("speculators_model_type 'eagle'",)),
    "dflash": (None, {"speculators_model_type": "dflash"}, ("'dflash'", "only 'eagle3'")),
    "norm before fc": (None, {"norm_before_fc": True}, ("unsupported norm_before_fc",)),
    "norm of fc": (None, {"fc_norm": True}, ("unsupported fc_norm",)),
    "no layer": (None, {LAYER: None}, ("has no transformer_layer_config",)),
    "quantised": (
        None,
        {"quantization_config": {"quant_method": "fp8"}},
        ("unsupported quantization_config",),
    ),
    "quantised layer": (
        LAYER,
        {"quantization_config": {"quant_method": "fp8"}},
        ("unsupported quantization_config", "fp8"),
    ),
    "family of the layer": (LAYER, {"model_type": "mistral"}, ("model_type 'mistral'",)),
    "activation": (LAYER, {"hidden_act": "gelu"}, ("hidden_act", "'gelu'")),
    "frequencies": (
        LAYER,
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        ("rope_type 'dynamic'",),
    ),
    "window": (
        LAYER,
        {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 64}
        | {"max_window_layers": 0},
        ("sliding_window", "64"),
    ),
    "heads that do not divide": (LAYER, {"num_key_value_heads": 3}, ("num_key_value_heads",)),
    "no layers": (LAYER, {"num_hidden_layers": 0}, ("num_hidden_layers 0",)),
    "a size that is none": (LAYER, {"intermediate_size": "big"}, ("intermediate_size",)),
    "draft vocabulary by name": (None, {"draft_vocab_size": "most"}, ("draft_vocab_size 'most'",)),
    "no draft vocabulary": (None, {"draft_vocab_size": 0}, ("draft_vocab_size 0",)),
    "draft vocabulary above": (
        None,
        {"draft_vocab_size": 513},
        ("draft_vocab_size 513", "vocab_size 512"),
    ),
    "draft vocabulary of another size": (
        None,
        {"draft_vocab_size": 255},
        ("d2t is (256,) int64", "255 tokens"),
    ),
    "target's size by name": (None, {"target_hidden_size": "64"}, ("target_hidden_size '64'",)),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_configs_that_do_not_fit(case: str, origin: Origin, tmp_path: Path) -> None:
    inner, changes, words = CONFIGS[case]
    save_head(tmp_path, origin.directory)
    change_config(tmp_path, inner, **changes)
    message = refusal(tmp_path, origin)
    assert message.startswith(f"the head draft {tmp_path} does not work with {origin.directory}")
    for word in (SIDES, *words):
        assert word in message


FLATS: dict[str, tuple[str | None, dict[str, Any], tuple[str, ...]]] = {
    "hidden size of the layer": (
        None,
        {"target_hidden_size": None, "hidden_size": 32, "num_attention_heads": 2},
        ("target_hidden_size 32", "is 64"),
    ),
    "hidden size": (None, {"target_hidden_size": 32}, ("target_hidden_size 32", "is 64")),
    "taps beyond": (EAGLE, {IDS: [1, 2, 8]}, ("[1, 2, 8]", "a target that has 8")),
    "taps before": (EAGLE, {IDS: [-2, 2]}, ("[-2, 2]",)),
    "eagle-1": (EAGLE, {"use_aux_hidden_state": False}, ("use_aux_hidden_state", "EAGLE-1")),
    "eagle-1 by name": (
        None,
        {"architectures": ["LlamaForCausalLMEagle"]},
        ("LlamaForCausalLMEagle;", "LlamaForCausalLMEagle3"),
    ),
    "another head": (
        None,
        {"architectures": ["EagleMistralForCausalLM"], "draft_vocab_size": None},
        ("EagleMistralForCausalLM;", "Eagle3LlamaForCausalLM"),
    ),
}


@pytest.mark.parametrize("case", FLATS)
def test_flat_configs_that_do_not_fit(case: str, origin: Origin, tmp_path: Path) -> None:
    inner, changes, words = FLATS[case]
    save_flat_head(tmp_path, origin.directory)
    change_config(tmp_path, inner, **changes)
    message = refusal(tmp_path, origin)
    for word in (SIDES, *words):
        assert word in message


def test_the_usual_taps_are_none_of_a_target_of_few_layers(origin: Origin, tmp_path: Path) -> None:
    short = save_tiny(tmp_path / "short", "llama", num_hidden_layers=4)
    few = Origin(short, load_config(short), Checkpoint(load_weights(short), {}), origin.codec)
    head = save_head(tmp_path / "head", short)
    change_config(head, **{IDS: None})
    message = refusal(head, few)
    assert f"has no {IDS}" in message
    assert "[2, 2, 1]" in message
    assert "has 4" in message


def test_what_a_head_says_of_its_targets_name_is_no_reason(origin: Origin, tmp_path: Path) -> None:
    save_head(tmp_path, origin.directory)
    verifier = {"name_or_path": "org/name", "architectures": ["Qwen3ForCausalLM"]}
    change_config(tmp_path, "speculators_config", verifier=verifier)
    assert callable(load_draft(tmp_path, origin))


def put(**named: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({k.replace("__", "."): t for k, t in named.items()})


def drop(*names: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def changed(name: str, place: int, value: int) -> Callable[[dict[str, Tensor]], object]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name][place] = value

    return change


HEAD = "an EAGLE-3 head of hidden_size 64 for 3 layers of 64"
TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], object], tuple[str, ...]]] = {
    "missing": (drop("fc.weight"), (HEAD, "missing: fc.weight")),
    "missing in the layer": (
        drop("midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight"),
        ("missing: layers.0.hidden_norm.weight, layers.0.self_attn.q_proj.weight",),
    ),
    "extra": (put(fc__bias=torch.zeros(64)), (HEAD, "unknown: fc.bias")),
    "extra layer": (
        put(layers__1__mlp__up_proj__weight=torch.zeros(1)),
        ("unknown: layers.1.mlp.up_proj.weight",),
    ),
    "misshapen": (
        put(fc__weight=torch.zeros(64, 128)),
        ("fc.weight is (64, 128), not (64, 192)",),
    ),
    "misshapen output": (
        put(lm_head__weight=torch.zeros(512, 64)),
        ("lm_head.weight is (512, 64), not (256, 64)",),
    ),
    "misshapen embedding": (
        put(embed_tokens__weight=torch.zeros(500, 64)),
        ("embed_tokens.weight is (500, 64), not (512, 64)",),
    ),
    "one name twice": (
        put(layers__0__hidden_norm__weight=torch.zeros(64)),
        ("two tensors of the name layers.0.hidden_norm.weight",),
    ),
    "no map": (drop("d2t", "t2d"), ("256 of 512 tokens", "no d2t")),
    "no map of the draft": (drop("d2t"), ("256 of 512 tokens", "no d2t")),
    "short map": (put(d2t=torch.zeros(255).long()), ("d2t is (255,) int64", "256 tokens")),
    "map of fractions": (put(d2t=torch.zeros(256)), ("d2t is (256,) float32",)),
    "map beyond": (changed("d2t", 255, 257), ("1 to 512", "the target has 512")),
    "map before": (changed("d2t", 0, -1), ("-1 to 511", "the target has 512")),
    "map of one token twice": (changed("d2t", 1, 0), ("to 255 tokens, not to 256",)),
    "maps that disagree": (changed("t2d", 0, 1), ("t2d and d2t disagree about 1 of 512 tokens",)),
    "maps of other tokens": (
        changed("d2t", 0, 0),
        ("t2d and d2t disagree about 2 of 512 tokens",),
    ),
    "short map of the target": (put(t2d=torch.ones(500).bool()), ("t2d is (500,), not (512,)",)),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit(case: str, origin: Origin, tmp_path: Path) -> None:
    change, words = TENSORS[case]
    save_flat_head(tmp_path, origin.directory)
    change_tensors(tmp_path, change)
    message = refusal(tmp_path, origin)
    for word in (SIDES, *words):
        assert word in message


@pytest.mark.parametrize(
    ("own", "lacking"),
    [
        ((), "embed_tokens.weight and lm_head.weight"),
        ((OUTPUT,), "embed_tokens.weight"),
        ((EMBEDDING,), "lm_head.weight"),
    ],
    ids=["neither", "embedding", "output"],
)
@pytest.mark.parametrize("save", [save_head, save_flat_head], ids=["nested", "flat"])
def test_a_head_of_another_width_can_share_nothing(
    own: tuple[str, ...], lacking: str, save: Callable[..., Path], origin: Origin, tmp_path: Path
) -> None:
    narrow = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    save(tmp_path, origin.directory, layer=narrow, own=own)
    assert (
        f"a head of hidden_size 32 cannot share {lacking} with a target of hidden_size 64"
        in refusal(tmp_path, origin)
    )


def test_a_head_without_readable_tensors(origin: Origin, tmp_path: Path) -> None:
    save_head(tmp_path, origin.directory)
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle file" in refusal(tmp_path, origin)
    (tmp_path / WEIGHTS).write_bytes(b"cut short")
    assert "cannot read" in refusal(tmp_path, origin)


def test_a_damaged_target_is_not_the_heads_fault(origin: Origin, tmp_path: Path) -> None:
    save_head(tmp_path, origin.directory)
    given = origin.checkpoint.tensors
    rest = Checkpoint({name: t for name, t in given.items() if name != "lm_head.weight"}, {})
    broken = Origin(origin.directory, origin.config, rest, origin.codec)
    with pytest.raises(ModelError, match=r"^tensors do not fit LlamaFor.*missing: lm_head\.weight"):
        load_draft(tmp_path, broken)


def test_what_is_neither_head_nor_model(origin: Origin, tmp_path: Path) -> None:
    def written(**raw: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(raw))
        message = refusal(tmp_path, origin)
        assert f"the draft {tmp_path} is neither a head draft nor a model that can" in message
        return message

    assert "model_type None" in written()
    assert "GPT2LMHeadModel" in written(architectures=["GPT2LMHeadModel"], model_type="gpt2")
    (tmp_path / "config.json").unlink()
    assert "holds no config.json" in refusal(tmp_path, origin)
    save_tiny(tmp_path / "bare", "llama")  # what heads before EAGLE-3 look like
    assert "has no tokenizer that can be read" in refusal(tmp_path / "bare", origin)


def test_a_model_with_another_tokenizer_is_refused(origin: Origin, tmp_path: Path) -> None:
    draft = cut_layers(origin.directory, tmp_path, 1)
    assert callable(load_draft(draft, origin))
    text = (draft / "tokenizer.json").read_text()
    (draft / "tokenizer.json").write_text(text.replace('"<|end|>"', '"<|over|>"'))
    assert "does not have the tokenizer of the model" in refusal(draft, origin)


def test_a_heads_snapshot_needs_no_tokenizer(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = save_head(tmp_path / "snapshot", origin.directory)
    assert sorted(path.name for path in head.iterdir()) == ["config.json", WEIGHTS]
    assert resolve(str(head), tmp_path / "cache") == head.resolve()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(head))
    found = resolve("org/name-eagle3", tmp_path / "cache")
    assert found == head.resolve()
    assert callable(load_draft(found, origin))


def test_progress_is_that_of_the_heads_file(origin: Origin, tmp_path: Path) -> None:
    save_head(tmp_path, origin.directory)
    seen: list[tuple[str, int, int]] = []
    load_draft(tmp_path, origin, lambda *report: seen.append(report))
    size = (tmp_path / WEIGHTS).stat().st_size
    assert (seen[0], seen[-1]) == (("load", 0, size), ("load", size, size))
    assert origin.config.vocab_size == VOCAB
