"""A decoder of the native kernels beside torch's of the same weights; and which one is chosen."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from paceline.kernels.native import build
from paceline.kv.capacity import KvShape
from paceline.kv.tensors import allocate
from paceline.models.cache import default_cache_dir
from paceline.models.checkpoint import load_checkpoint
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.errors import ModelError
from paceline.models.head import OUTPUT, Head, load_head_tensors, output_matrix
from paceline.models.head_config import load_head_config
from paceline.models.native import NativeDecoder
from paceline.models.native_head import NativeHead
from paceline.models.packed_file import PACKED, write_packed
from paceline.models.target import place, weights_of
from paceline.models.weights import load_weights
from paceline.spec.batch import Feed, assemble
from support.packed import Packed, Piece, chunks
from support.tiny_heads import save_head
from support.tiny_models import save_tiny

FOLDER = default_cache_dir() / "native"
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
needed = pytest.mark.skipif(build.obstacle(FOLDER) is not None, reason=str(build.obstacle(FOLDER)))


def saved(tmp_path: Path, family: str = "llama", **changes: object) -> Path:
    return save_tiny(tmp_path / family, family, **SIZES | changes)


def native(directory: Path, mode: str = "int8", threads: int = 2) -> NativeDecoder:
    config = load_config(directory)
    checkpoint = load_checkpoint(directory, config, mode)
    return NativeDecoder(config, checkpoint, threads=threads, folder=FOLDER)


def dequantised(directory: Path, mode: str = "int8") -> Decoder:
    """Torch's decoder of the weights that the other one multiplies with."""
    config = load_config(directory)
    checkpoint = load_checkpoint(directory, config, mode)
    tensors = dict(checkpoint.tensors)
    tensors |= {name: matrix.dequantised() for name, matrix in checkpoint.packed.items()}
    return Decoder(config, tensors, device="cpu", dtype=torch.float32)


def tokens_of(length: int, seed: int) -> list[int]:
    return [Random(seed).randrange(3, 512) for _ in range(length)]


@needed
@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_close_to_those_of_the_same_weights(family, tied, mode, tmp_path):
    directory = saved(tmp_path, family, tie_word_embeddings=tied)
    tokens = [tokens_of(150, 1)]
    ours, theirs = native(directory, mode), dequantised(directory, mode)
    hidden = [Packed(it, tokens, 16).run([[Piece(0, 0, 150)]])[0] for it in (ours, theirs)]
    got, want = ours.logits(hidden[0]), theirs.logits(hidden[1])
    # What is left is the rounding of inputs to 8 bits and of keys and values to bf16.
    assert (got - want).abs().mean() < 0.03 * want.std()
    assert (got.argmax(1) == want.argmax(1)).float().mean() > 0.9


@needed
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_row_is_the_same_in_any_company_and_with_any_number_of_threads(block_size, tmp_path):
    directory = saved(tmp_path, "qwen3")
    tokens = [tokens_of(n, n) for n in (200, 90, 33)]
    alone = native(directory, threads=1)
    wanted = [
        Packed(alone, [own], block_size).run([[p] for p in chunks(0, len(own), [len(own)])])[0]
        for own in tokens
    ]
    for threads, sizes in ((1, [1]), (2, [7, 30]), (3, [64, 1, 2])):
        packed = Packed(native(directory, threads=threads), tokens, block_size)
        turns = [chunks(seq, len(own), sizes) for seq, own in enumerate(tokens)]
        for turn in range(max(map(len, turns))):
            pieces = [own[turn] for own in turns if turn < len(own)]
            for piece, rows in zip(pieces, packed.step(pieces), strict=True):
                assert torch.equal(rows, wanted[piece.seq][piece.start : piece.start + piece.count])


@needed
def test_taps_are_the_states_between_the_layers(tmp_path):
    directory = saved(tmp_path, num_hidden_layers=3)
    ours, theirs = native(directory), dequantised(directory)
    states = {}
    for decoder in (ours, theirs):
        packed, found = Packed(decoder, [tokens_of(40, 3)], 16), []
        whole = decoder.forward_tapped
        decoder.forward = lambda batch, caches, whole=whole, found=found: (
            found.append(whole(batch, caches, (0, 1, 3))), found[-1][0],
        )[1]  # fmt: skip
        packed.run([[Piece(0, 0, 40)]])
        states[decoder] = found[0][1].float()
    assert states[ours].shape == (40, 3 * 128)
    assert (states[ours] - states[theirs]).abs().mean() < 0.02 * states[theirs].std()


@needed
def test_embeddings_are_the_rows_of_the_packed_matrix(tmp_path):
    directory = saved(tmp_path, tie_word_embeddings=True)
    ids = torch.tensor([0, 511, 17, 17, 300])
    want = dequantised(directory).embed(ids)
    assert torch.equal(native(directory).embed(ids), want.bfloat16())


@needed
@pytest.mark.parametrize("tied", [True, False])
def test_a_token_that_does_not_exist_is_an_error_and_not_a_fault(tied, tmp_path):
    decoder = native(saved(tmp_path, tie_word_embeddings=tied))
    for token in (512, -1):
        with pytest.raises(IndexError, match="a token has no embedding"):
            Packed(decoder, [[3, token, 4]], 16).run([[Piece(0, 0, 3)]])


@needed
@pytest.mark.parametrize("tied", [True, False])
def test_a_forward_begins_with_the_embeddings(tied, tmp_path):
    decoder, tokens = native(saved(tmp_path, tie_word_embeddings=tied)), tokens_of(40, 3)
    packed, found = Packed(decoder, [tokens], 16), []
    whole = decoder.forward_tapped

    def forward(batch, caches):
        found.append(whole(batch, caches, (0,)))
        return found[-1][0]

    decoder.forward = forward
    packed.run([[Piece(0, 0, 40)]])
    assert torch.equal(found[0][1], decoder.embed(torch.tensor(tokens)))


# --- a head beside it ---------------------------------------------------------------------------


@needed
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("before_residual", [False, True])
def test_a_head_is_close_to_torchs(layers, before_residual, tmp_path):
    directory = saved(tmp_path, "qwen3", num_hidden_layers=3)
    files = save_head(
        tmp_path / "head",
        directory,
        taps=(1, 3),
        layer={"num_hidden_layers": layers},
        norm_before_residual=before_residual,
    )
    config, target = load_head_config(files, load_config(directory)), native(directory)
    matrices = load_weights(directory)

    def tensors() -> dict[str, torch.Tensor]:
        found = load_head_tensors(files, config)
        return found | {OUTPUT: output_matrix(matrices, target.config.tie_head)[found["d2t"]]}

    dice = torch.Generator().manual_seed(2)
    fused = torch.randn(70, 2 * 128, generator=dice)
    feed = Feed(np.array(tokens_of(70, 4)), 0, range(5))
    got = []
    for head in (NativeHead(config, tensors(), target), Head(config, tensors(), target)):
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, 2)
        kv = allocate(shape, 5, 16, torch.bfloat16, "cpu")
        states = head.fuse(fused.to(torch.bfloat16))
        hidden = head.forward(assemble([feed], head, kv), states, kv.layers)
        got.append((hidden.float(), head.logits(hidden).float()))
    for ours, theirs in zip(*got, strict=True):
        assert (ours - theirs).abs().mean() < 0.03 * theirs.std()
    assert (got[0][1].argmax(1) == got[1][1].argmax(1)).float().mean() > 0.8


@needed
def test_a_head_whose_text_begins_later_sees_nothing_before(tmp_path):
    directory = saved(tmp_path, "qwen3", num_hidden_layers=3)
    files = save_head(tmp_path / "head", directory, taps=(1, 3))
    config, target = load_head_config(files, load_config(directory)), native(directory)
    matrices = load_weights(directory)

    def tensors() -> dict[str, torch.Tensor]:
        found = load_head_tensors(files, config)
        return found | {OUTPUT: output_matrix(matrices, target.config.tie_head)[found["d2t"]]}

    fused = torch.randn(70, 2 * 128, generator=torch.Generator().manual_seed(2))
    tokens = np.array(tokens_of(70, 4))
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, 2)
    for head in (NativeHead(config, tensors(), target), Head(config, tensors(), target)):
        states = head.fuse(fused.to(torch.bfloat16))
        got = []
        for origin in (0, 32):
            kv = allocate(shape, 7, 16, torch.bfloat16, "cpu")
            for layer in kv.layers:
                layer.cells.fill_(7.5)
            table = [3, 6, 1, 0, 5, 2, 4]
            for rows in (slice(0, 41), slice(41, 70)):
                feed = Feed(tokens[rows], origin + rows.start, table, origin=origin)
                hidden = head.forward(assemble([feed], head, kv), states[rows], kv.layers)
            got.append(hidden.float())
            untouched = table[: origin // 16]
            assert all(bool((layer.cells[:, untouched] == 7.5).all()) for layer in kv.layers)
        # Only the rotation is by other angles.
        assert (got[0] - got[1]).abs().mean() < 0.01 * got[0].std()


# --- which of the two ---------------------------------------------------------------------------


def choose(directory: Path, mode: str, **changes: object) -> str:
    return chosen(directory, mode, **changes)[0]


def chosen(directory: Path, mode: str, **changes: object) -> tuple[str, str | None]:
    how = {"device": "cpu", "dtype": torch.bfloat16, "plain_kv": True, "folder": FOLDER} | changes
    return weights_of(directory, load_config(directory), mode, **how)


@needed
def test_what_is_not_in_few_bits_stays_as_it_is_unless_told_otherwise(tmp_path):
    directory = saved(tmp_path)
    assert chosen(directory, "none") == chosen(directory, "auto") == ("none", None)
    assert choose(directory, "int8") == "int8"
    config = load_config(directory)
    for mode, kind in (("none", Decoder), ("int4", NativeDecoder)):
        checkpoint = load_checkpoint(directory, config, mode)
        how = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "folder": FOLDER}
        made = place(config, checkpoint, threads=1, **how)
        assert isinstance(made, kind)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cuda"}, "weights in few bits are for CPUs"),
        ({"dtype": torch.float32}, "go with dtype bfloat16"),
        ({"plain_kv": False}, "go with kv_dtype auto"),
    ],
)
def test_why_there_are_none(changes, why, tmp_path):
    directory = saved(tmp_path)
    assert choose(directory, "auto", **changes) == "none"
    with pytest.raises(ModelError, match=f"quantization int8: .*{why}"):
        choose(directory, "int8", **changes)


@pytest.mark.parametrize(
    ("family", "sizes", "why"),
    [
        ("gemma2", {}, "Gemma2ForCausalLM is none of the families"),
        ("phi3", {}, "Phi3ForCausalLM is none of the families"),
        ("mistral", SIZES | {"sliding_window": 64}, "no sliding windows"),
        ("llama", SIZES | {"head_dim": 32}, "do not compute 4 heads of 32"),
        ("llama", SIZES | {"intermediate_size": 200}, "gate_proj.weight is of no shape"),
    ],
)
def test_models_that_the_kernels_do_not_compute(family, sizes, why, tmp_path):
    directory = save_tiny(tmp_path, family, **sizes)
    with pytest.raises(ModelError, match=f"quantization int4: .*{why}"):
        choose(directory, "int4")


def packed_on_disk(tmp_path: Path) -> Path:
    """A model whose file holds all that is multiplied in few bits."""
    directory = saved(tmp_path)
    config = load_config(directory)
    packed = load_checkpoint(directory, config, "int8").packed
    kinds = {name: (matrix.bits, matrix.shape) for name, matrix in packed.items()}
    write_packed(directory / PACKED, kinds, lambda name: [packed[name]])
    return directory


@needed
def test_what_is_in_few_bits_takes_the_usual_way_where_nothing_can_be_compiled(
    tmp_path, monkeypatch
):
    directory = packed_on_disk(tmp_path)
    assert choose(directory, "auto") == "auto"
    monkeypatch.setenv("CC", "false")  # a compiler that is there, and fails
    mode, why = chosen(directory, "auto", folder=tmp_path / "other")
    assert mode == "none"
    assert why is not None
    assert "false cannot compile the native kernels" in why
    with pytest.raises(ModelError, match="false cannot compile the native kernels"):
        choose(directory, "int8", folder=tmp_path / "other")


def test_no_kernels_here(tmp_path, monkeypatch):
    directory = saved(tmp_path)
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"avx2"}))
    assert choose(directory, "auto") == "none"
    with pytest.raises(ModelError, match="this CPU lacks avx512"):
        choose(directory, "int8")
