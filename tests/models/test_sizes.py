"""What a model will occupy, told beforehand, against what it then occupies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.models import linear, sizes
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.errors import ModelError
from paceline.models.head import Head, load_head_tensors, output_matrix
from paceline.models.head_config import load_head_config
from paceline.models.layout import EMBEDDING, OUTPUT
from paceline.models.sizes import decoder_weights, head_weights
from paceline.models.weights import load_weights, stored_shapes
from support.tiny_heads import change_tensors, save_flat_head, save_head
from support.tiny_models import FAMILIES, save_tiny

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=["packed", "plain"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for it in (linear.padding, linear.matrix_bytes):
        it.cache_clear()
    if request.param == "plain":
        monkeypatch.setattr(linear, "_packed", lambda weight, bias: None)
        for module in (linear, sizes):
            monkeypatch.setattr(module, "can_pack", lambda dtype: False)
    yield request.param
    for it in (linear.padding, linear.matrix_bytes):
        it.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_holds_what_was_foretold(
    family: str, tied: bool, dtype: torch.dtype, layout: str, tmp_path: Path
) -> None:
    directory = save_tiny(tmp_path, family, tie_word_embeddings=tied, vocab_size=151)
    config = load_config(directory)
    foretold = decoder_weights(directory, config, dtype, "cpu")
    decoder = Decoder(config, load_weights(directory), device="cpu", dtype=dtype)
    assert foretold.held == decoder.weight_bytes
    only_looked_up = not (tied and layout == "plain")
    rows = config.vocab_size * config.hidden_size * dtype.itemsize
    assert foretold.held - foretold.read == rows * only_looked_up


@pytest.mark.parametrize("own", [(), (OUTPUT,), (EMBEDDING, OUTPUT)], ids=["", "output", "both"])
@pytest.mark.parametrize("save", [save_head, save_flat_head])
def test_a_head_holds_what_was_foretold(save, own, layout: str, tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", "llama", num_hidden_layers=4, vocab_size=151)
    directory = save(tmp_path / "head", target, own=own, layer={"num_hidden_layers": 2})
    config = load_config(target)
    head = load_head_config(directory, config)
    tensors = load_head_tensors(directory, head)
    weights = load_weights(target)
    if OUTPUT not in tensors:
        tensors[OUTPUT] = output_matrix(weights, config.tie_head)[tensors["d2t"]]
    decoder = Decoder(config, weights, device="cpu", dtype=torch.float32)
    foretold = head_weights(directory, head, torch.float32, "cpu")
    assert foretold.held == Head(head, tensors, decoder).weight_bytes
    embedding = config.vocab_size * config.hidden_size * 4
    assert foretold.held - foretold.read == embedding * (EMBEDDING in own)


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path / "target", "qwen3", num_hidden_layers=4)
    head = save_head(tmp_path / "head", directory)
    config = load_config(directory)
    before = decoder_weights(directory, config, torch.bfloat16, "cpu")
    headed = load_head_config(head, config)
    shared = head_weights(head, headed, torch.bfloat16, "cpu")
    for folder in (directory, head):
        (folder / "model.safetensors").unlink()
        assert stored_shapes(folder) is None
    assert decoder_weights(directory, config, torch.bfloat16, "cpu") == before
    assert head_weights(head, headed, torch.bfloat16, "cpu") == shared


def test_headers_tell_every_shape(tmp_path: Path) -> None:
    for folder, shards in (("one", "1GB"), ("many", "20KB")):
        directory = save_tiny(tmp_path / folder, "qwen2", shard_size=shards)
        tensors = load_weights(directory)
        assert stored_shapes(directory) == {n: tuple(t.shape) for n, t in tensors.items()}
    assert len(list(directory.glob("*.safetensors"))) > 1


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama")
    change_tensors(directory, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"missing: model\.norm\.weight"):
        decoder_weights(directory, load_config(directory), torch.float32, "cpu")
    (directory / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot read"):
        decoder_weights(directory, load_config(directory), torch.float32, "cpu")
