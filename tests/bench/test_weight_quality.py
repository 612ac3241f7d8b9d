"""The report on weights in few bits, on a model that anyone can make."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from paceline.bench import weight_quality
from paceline.bench.emulated import EmulatedLinear, emulated
from paceline.bench.perplexity import logits_of, logprobs_of, perplexity
from paceline.bench.weight_quality import Source, agreement, greedy, measure, same_next
from paceline.kernels.quant_linear import linear_reference
from paceline.models.checkpoint import load_checkpoint
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.tokenizer import TextCodec
from paceline.models.weights import load_weights
from support.packed_matrices import random_matrix
from support.tiny_models import save_tiny, tiny_model

TOKENS = [(7 * i) % 500 + 3 for i in range(150)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("m"), "qwen2", tokenizer=True)


def plain(directory: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(load_config(directory), load_weights(directory), device="cpu", dtype=dtype)


def test_perplexity_is_that_of_transformers(directory: Path) -> None:
    model = tiny_model("qwen2")
    with torch.no_grad():
        loss = model(torch.tensor([TOKENS]), labels=torch.tensor([TOKENS])).loss
    found = logprobs_of(plain(directory), TOKENS)
    assert len(found) == len(TOKENS) - 1
    assert perplexity(found) == pytest.approx(math.exp(float(loss)), rel=1e-4)


def test_greedy_answers_are_the_likeliest_tokens(directory: Path) -> None:
    decoder = plain(directory)
    prompts = [TOKENS[:5], TOKENS[20:90], TOKENS[60:64]]
    answers = greedy(decoder, prompts, 9)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 9 or answer[-1] in decoder.config.eos_ids
        for i, token in enumerate(answer):
            *_, last = logits_of(decoder, [*prompt, *answer[:i]])
            assert int(last[-1].argmax()) == token
    assert same_next(decoder, prompts, answers) == 1
    wrong = [[(token + 1) % 500 for token in answer] for answer in answers]
    assert same_next(decoder, prompts, wrong) < 0.5


def test_agreement_ends_at_the_first_difference() -> None:
    assert agreement([1, 2, 3], [1, 2, 3]) == 3
    assert agreement([1, 2, 3], [1, 4, 3]) == 1
    assert agreement([1, 2, 3], [1, 2]) == 2
    assert agreement([], [1]) == 0


@pytest.mark.parametrize("tied", [True, False])
def test_emulated_products_are_those_of_the_packed_weights(tmp_path: Path, tied: bool) -> None:
    """The same as a decoder of the dequantised weights, in fp32, but for the order of sums."""
    directory = save_tiny(tmp_path, "qwen2", tie_word_embeddings=tied)
    config = load_config(directory)
    found = load_checkpoint(directory, config, "int4")
    dense = {name: matrix.dequantised() for name, matrix in found.packed.items()}
    tensors = load_weights(directory)
    reference = Decoder(config, dict(tensors) | dense, device="cpu", dtype=torch.float32)
    args = {"dtype": torch.float32, "whole": False}
    made = emulated(config, tensors, found.packed, **args)
    wanted, got = (torch.cat(list(logits_of(it, TOKENS))) for it in (reference, made))
    assert torch.allclose(got, wanted, atol=1e-3)
    original = torch.cat(list(logits_of(plain(directory), TOKENS)))
    assert not torch.allclose(got, original, atol=1e-2)
    rounded = emulated(config, tensors, found.packed, dtype=torch.float32, whole=True)
    near = torch.cat(list(logits_of(rounded, TOKENS)))
    assert 1e-3 < (near - wanted).abs().max() < 0.5 * (original - wanted).abs().max()


def test_an_emulated_product_is_the_reference() -> None:
    weight, bias, x = random_matrix(16, 64, 4), torch.randn(16), torch.randn(3, 64)
    got = EmulatedLinear(weight, bias, whole=True)(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, linear_reference(x.bfloat16().float(), weight, bias).bfloat16())


def test_the_report(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_quality, "TEXT", "The report reads this, and no more than this.")
    config = load_config(directory)
    source = Source(config, load_weights(directory), {})
    rows = measure(source, TextCodec.load(directory), ["int8", "int4+int8"], 3, 6)
    assert [row.weights for row in rows] == ["bf16", "int8", "int4+int8"]
    bf16, int8, int4 = rows
    assert (bf16.next_token, bf16.before_first, bf16.identical, bf16.bits) == (1, 1, 1, 16)
    assert int8.bits == 9
    assert 5 < int4.bits < 9
    for row in (int8, int4):
        assert 0 < abs(math.log(row.perplexity / bf16.perplexity)) < 0.5
        assert row.next_token >= row.before_first >= row.identical
    assert "int4+int8" in list(weight_quality.table_of(rows, "").columns[0].cells)
