"""The demo model as it lies prepared in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paceline.models import demo
from paceline.models.cache import default_cache_dir
from paceline.models.config import load_config
from paceline.models.head import load_head_tensors
from paceline.models.head_config import load_head_config
from paceline.models.layout import multiplied
from paceline.models.packed_file import load_packed, packed_names
from paceline.models.source import companion, demo_directory
from paceline.models.tokenizer import TextCodec
from paceline.models.weights import load_weights

pytestmark = pytest.mark.demo

TEXTS = (
    "The capital of France is Paris.",
    "  def f(x):\n\treturn x+1  # 3  4",
    "naïve 日本語 🎉🎉 12345 – don't!\r\n\r\n",
)


@pytest.fixture(scope="module")
def directory() -> Path:
    found = demo_directory(default_cache_dir())
    if not found.is_dir():
        pytest.skip(f"the demo model is not prepared in {found}: run `make setup`")
    return found


@pytest.fixture(scope="module")
def codec(directory: Path) -> TextCodec:
    return TextCodec.load(directory)


def test_config(directory: Path) -> None:
    config = load_config(directory)
    sizes = (config.layers, config.hidden_size, config.intermediate_size, config.vocab_size)
    assert sizes == (30, 576, 1536, 49152)
    assert (config.heads, config.kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.max_position, config.rms_eps, config.tie_head) == (8192, 1e-5, True)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm) == (False,) * 4
    assert config.ropes[0].inv_freq[1] == pytest.approx(100000 ** (-2 / 64), rel=1e-6)
    assert config.dtype == torch.bfloat16
    assert config.eos_ids[0] == 2


def test_weights_are_those_transformers_reads(directory: Path) -> None:
    loading = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (file := demo.place(default_cache_dir())).is_file():
        pytest.skip(f"the demo's GGUF file is not in {file}")
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    expected = loading.load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=skeleton)[
        "tensors"
    ]
    ours = load_weights(directory)
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor.bfloat16()), name


def test_matrices_in_few_bits_are_the_same(directory: Path) -> None:
    config, ours = load_config(directory), load_weights(directory)
    packed = load_packed(directory, packed_names(directory))
    assert packed.keys() == multiplied(config)
    for name, matrix in packed.items():
        assert torch.equal(matrix.dequantised().bfloat16(), ours[name]), name
        assert matrix.bits == (8 if "embed" in name else 4)


def test_chat_template(codec: TextCodec) -> None:
    ids = codec.encode_chat([{"role": "user", "content": "Hi"}])
    assert codec.decode(ids, skip_special=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(codec: TextCodec, text: str) -> None:
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert b"".join(map(codec.piece_bytes, ids)) == text.encode()
    assert all(token < codec.vocab_size == 49152 for token in ids)


def test_digits_are_single_tokens(codec: TextCodec) -> None:
    """The model was trained so; without its splitting rule two spaces before a digit part."""
    assert [codec.piece(token) for token in codec.encode("year 2024")][-4:] == list("2024")
    assert [codec.piece(token) for token in codec.encode("x  3")] == ["x", "  ", "3"]


def test_template_and_settings_are_on_disk(directory: Path) -> None:
    files = {path.name for path in directory.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= files
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_a_draft_comes_with_it(directory: Path) -> None:
    found = companion("Demo")
    assert found is not None
    assert companion(str(directory)) is None
    files = {path.name: path.stat() for path in Path(found).iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= files.keys()
    assert sum(stat.st_size for stat in files.values()) <= 15e6
    config = load_head_config(Path(found), load_config(directory))
    tensors = load_head_tensors(Path(found), config)
    assert len(tensors["d2t"]) == config.draft_vocab < config.vocab_size
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    assert all(tensor.dtype == torch.bfloat16 for tensor in floats)
