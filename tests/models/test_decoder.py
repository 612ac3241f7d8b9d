"""The decoder against transformers, and against itself in other company."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.errors import ModelError
from paceline.models.weights import load_weights
from support.packed import Packed, Piece, chunks, together
from support.tiny_models import FAMILIES, VOCAB, save_tiny, tiny_model

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
}
SLIDING, FULL = MIXED = ("sliding_attention", "full_attention")
VARIANTS = {
    **{family: (family, {}) for family in FAMILIES},
    **{name: ("llama", {"rope_parameters": rope}) for name, rope in ROPES.items()},
    "tied": ("qwen2", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": ("qwen3", {"head_dim": 32, "attention_bias": True}),
    "three to one": ("mistral", {"num_attention_heads": 6, "hidden_size": 96}),
    "one to one": ("llama", {"num_key_value_heads": 4}),
    "mistral window": ("mistral", {"sliding_window": 40}),
    "mistral wide window": ("mistral", {"sliding_window": 100}),
    "window of one": ("mistral", {"sliding_window": 1}),
    "window of a tile": ("mistral", {"sliding_window": 64}),
    "mixed qwen2": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 33, "layer_types": list(MIXED)},
    ),
    "gemma2 soft caps": (
        "gemma2",
        {
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "num_hidden_layers": 4,
            "layer_types": list(MIXED) * 2,
        },
    ),
    "gemma2 without caps": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3 ropes": (
        "gemma3",
        {
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, FULL, SLIDING],
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
    ),
    "gemma3 full": ("gemma3", {"layer_types": [FULL, FULL]}),
    "phi3 full": ("phi3", {"sliding_window": None}),
    "phi3 partial": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
    ),
}


def tokens_of(length: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(3, VOCAB) for _ in range(length)]


def decoder_of(directory: Path, dtype: torch.dtype) -> Decoder:
    return Decoder(load_config(directory), load_weights(directory), device="cpu", dtype=dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    decoder = decoder_of(save_tiny(tmp_path, family, seed=3, **changes), torch.float32)
    sequences = [tokens_of(200, 1), tokens_of(131, 2), tokens_of(70, 3)]
    reference = tiny_model(family, 3, **changes)
    with torch.no_grad():
        wanted = [reference(torch.tensor([tokens])).logits[0] for tokens in sequences]
    assert wanted[0].std() > 0.5  # flat logits would agree with anything

    for block_size in (16, 32, 64):
        dice = random.Random(block_size)
        queues = [
            chunks(i, len(tokens), [dice.randint(1, 90) for _ in range(5)])
            for i, tokens in enumerate(sequences)
        ]
        whole = [[Piece(i, 0, len(tokens)) for i, tokens in enumerate(sequences)]]
        schedules = [whole, together(*queues)]
        if block_size == 16:
            one_by_one = [chunks(i, len(tokens), [1]) for i, tokens in enumerate(sequences)]
            schedules.append(together(*one_by_one))
        for schedule in schedules:
            hidden = Packed(decoder, sequences, block_size, seed=block_size).run(schedule)
            for rows, logits in zip(hidden, wanted, strict=True):
                got = decoder.logits(rows)
                assert (got - logits).abs().max() <= 1e-3
                assert torch.equal(got.argmax(-1), logits.argmax(-1))


@pytest.fixture(
    scope="module",
    params=[
        ("llama", torch.float32, {}, "auto"),
        ("llama", torch.bfloat16, {}, "auto"),
        ("qwen3", torch.bfloat16, {}, "auto"),
        ("mistral", torch.float32, {"sliding_window": 90}, "auto"),
        ("mistral", torch.bfloat16, {"sliding_window": 90}, "auto"),
        ("gemma2", torch.float32, {}, "auto"),
        ("gemma2", torch.bfloat16, {}, "auto"),
        ("gemma3", torch.bfloat16, {"sliding_window": 65}, "auto"),
        ("phi3", torch.float32, {}, "auto"),
        ("llama", torch.float32, {}, "int8"),
        ("qwen3", torch.bfloat16, {}, "int8"),
        ("mistral", torch.bfloat16, {"sliding_window": 90}, "int8"),
        ("gemma2", torch.float32, {}, "int8"),
    ],
    ids=lambda param: f"{param[0]}-{str(param[1])[6:]}-{param[3]}",
)
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Decoder, list[list[int]], dict[int, list[Tensor]], str]:
    """Sequences, the hidden states of feeding each one alone, token by token, in blocks of each
    size, and the format of KV. In full precision the size of blocks does not matter."""
    family, dtype, changes, kv_dtype = request.param
    odd = {"num_attention_heads": 6, "hidden_size": 96, "intermediate_size": 200, **changes}
    directory = save_tiny(tmp_path_factory.mktemp(family), family, seed=5, **odd)
    decoder = decoder_of(directory, dtype)
    sequences = [tokens_of(length, length) for length in (390, 100, 50)]
    steps = [[step] for i, tokens in enumerate(sequences) for step in chunks(i, len(tokens), [1])]
    sizes = (16, 32, 64) if kv_dtype == "int8" else (16,)
    wanted = {s: Packed(decoder, sequences, s, kv_dtype=kv_dtype).run(steps) for s in sizes}
    return decoder, sequences, {s: wanted.get(s, wanted[16]) for s in (16, 32, 64)}, kv_dtype


class TestSameBitsInAnyCompany:
    """Hidden states and logits are those of the sequence alone, whatever it is computed with.

    The longest sequence spans seven key tiles.
    """

    sizes = st.lists(st.one_of(st.integers(1, 6), st.integers(7, 180)), max_size=5).map(
        lambda some: [*some, 40]  # a schedule of single tokens would take its time
    )

    @settings(max_examples=10, deadline=None)
    @given(sizes=st.tuples(sizes, sizes, sizes), block_size=st.sampled_from([16, 32, 64]))
    def test_any_schedule(self, alone, sizes: tuple[list[int], ...], block_size: int) -> None:
        decoder, sequences, wanted, kv_dtype = alone
        queues = [chunks(i, len(s), sizes[i]) for i, s in enumerate(sequences)]
        packed = Packed(decoder, sequences, block_size, kv_dtype=kv_dtype)
        got = packed.run(together(*queues))
        for rows, reference in zip(got, wanted[block_size], strict=True):
            assert torch.equal(rows, reference)

    @pytest.mark.parametrize("window", [2, 3, 4, 5, 6, 17])
    def test_windows_behind_a_prefill(self, alone, window: int) -> None:
        """A short sequence beside a long one is padded to the long one's key tiles."""
        decoder, sequences, wanted, kv_dtype = alone
        packed = Packed(decoder, sequences, 16, kv_dtype=kv_dtype)
        packed.step([Piece(0, 0, 330), Piece(1, 0, 20), Piece(2, 0, 3)])
        for step in range(2):
            pieces = [
                Piece(2, 3 + step * window, window),
                Piece(0, 330 + step * window, window),
                Piece(1, 20 + step, 1),
            ]
            for piece, rows in zip(pieces, packed.step(pieces), strict=True):
                span = slice(piece.start, piece.start + piece.count)
                assert torch.equal(rows, wanted[16][piece.seq][span])

    def test_logits(self, alone) -> None:
        decoder, _, wanted, _ = alone
        whole = decoder.logits(wanted[16][0])
        for count in (1, 2, 3, 5, 8, 16, 40, 80):
            assert torch.equal(decoder.logits(wanted[16][0][7 : 7 + count]), whole[7 : 7 + count])


@pytest.mark.parametrize("served", [96, 256])
def test_longrope_takes_the_factors_of_the_length_that_is_served(
    served: int, tmp_path: Path
) -> None:
    """transformers chooses by the longest position of a call; here the choice is made once."""
    factors = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [4.0] * 8}
    changes = {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 128,
            **factors,
        },
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 128,
    }
    directory = save_tiny(tmp_path, "phi3", **changes)
    config = load_config(directory)
    assert config.ropes[0].attention_factor > 1.0
    weights = load_weights(directory)
    config = replace(config, max_position=served)
    decoder = Decoder(config, weights, device="cpu", dtype=torch.float32)
    tokens = tokens_of(served, 1)
    with torch.no_grad():
        wanted = tiny_model("phi3", 0, **changes)(torch.tensor([tokens])).logits[0]
    hidden = Packed(decoder, [tokens], 16).run([[piece] for piece in chunks(0, served, [50])])
    assert (decoder.logits(hidden[0]) - wanted).abs().max() <= 1e-3


def test_a_checkpoint_must_fit_its_config(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama")
    config, tensors = load_config(directory), load_weights(directory)

    def refusal(**changes: Tensor | None) -> str:
        damaged = dict(tensors)
        for name, tensor in changes.items():
            name = name.replace("__", ".")
            if tensor is None:
                del damaged[name]
            else:
                damaged[name] = tensor
        with pytest.raises(ModelError) as error:
            Decoder(config, damaged, device="cpu", dtype=torch.float32)
        return str(error.value)

    assert "missing: model.norm.weight" in refusal(model__norm__weight=None)
    assert "unknown: model.extra.weight" in refusal(model__extra__weight=torch.zeros(3))
    assert "lm_head.weight is (5, 64), not (512, 64)" in refusal(lm_head__weight=torch.zeros(5, 64))
    assert "and 13 more" in refusal(
        **{name.replace(".", "__"): None for name in list(tensors)[:18]}
    )


def test_harmless_extras_are_ignored(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    config, tensors = load_config(directory), load_weights(directory)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = torch.zeros(1)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    Decoder(config, tensors, device="cpu", dtype=torch.float32)


def test_the_checkpoint_is_not_held_twice(tmp_path: Path) -> None:
    directory = save_tiny(tmp_path, "qwen2")
    tensors = load_weights(directory)
    stored = sum(tensor.nbytes for tensor in tensors.values())
    decoder = Decoder(load_config(directory), tensors, device="cpu", dtype=torch.float32)
    assert not tensors
    assert decoder.weight_bytes == stored
