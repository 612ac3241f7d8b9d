"""Head drafts as they are published, read and placed the public way, against a dense reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.kv.tensors import allocate
from paceline.models.checkpoint import Checkpoint
from paceline.models.config import ModelConfig, load_config
from paceline.models.decoder import Decoder
from paceline.models.head import Head
from paceline.models.layout import EMBEDDING, OUTPUT
from paceline.models.tokenizer import TextCodec
from paceline.models.weights import INDEX, WEIGHTS, load_weights
from paceline.spec.batch import Feed, assemble
from paceline.spec.drafts import Origin, load_draft
from paceline.spec.head import HeadDrafter
from support.dense_head import DenseHead
from support.tiny_heads import (
    change_config,
    change_tensors,
    every_other,
    save_flat_head,
    save_head,
)
from support.tiny_models import save_tiny

VOCAB = 151
LAYERS = 8
BLOCK_SIZE = 16
BLOCKS = 24
LAYER = "transformer_layer_config"
LAYOUTS = {"nested": save_head, "flat": save_flat_head}
BIASES = {"attention_bias": True, "mlp_bias": True}
QWEN = {"model_type": "qwen3"}
NARROW = {"hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 8, "head_dim": 8}
WIDE = {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24}
BOTH = (EMBEDDING, OUTPUT)

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normed residual": {"norm_before_residual": True},
    "two layers": {"layer": {"num_hidden_layers": 2}},
    "two layers, normed residual": {
        "layer": {"num_hidden_layers": 2},
        "norm_before_residual": True,
    },
    "head norms": {"layer": QWEN},
    "head norms, two layers": {"layer": QWEN | {"num_hidden_layers": 2}},
    "biases": {"layer": BIASES | {"num_hidden_layers": 2}},
    "other frequencies": {"layer": {"rope_theta": 500.0, "rope_parameters": None}},
    "own embedding": {"own": (EMBEDDING,)},
    "own output": {"own": (OUTPUT,)},
    "all its own": {"own": BOTH},
    "narrower": {"own": BOTH, "layer": NARROW},
    "wider": {"own": BOTH, "layer": WIDE, "norm_before_residual": True},
    "one tap": {"taps": (8,)},
    "five taps": {"taps": (0, 1, 3, 7, 8)},
    "every token": {"whole": True},
    "every token, all its own": {"whole": True, "own": BOTH},
}


@dataclass(frozen=True)
class Target:
    """A target with everything that is needed to read and place a draft of it."""

    directory: Path
    config: ModelConfig
    weights: dict[str, Tensor]
    decoder: Decoder

    @classmethod
    def load(cls, directory: Path, dtype: torch.dtype = torch.float32) -> Target:
        config, weights = load_config(directory), load_weights(directory)
        return cls(
            directory, config, weights, Decoder(config, dict(weights), device="cpu", dtype=dtype)
        )

    def drafter(self, directory: Path) -> HeadDrafter:
        """The drafter of a head's directory, as the composition root gets it."""
        no_codec = cast(TextCodec, None)  # heads have no tokenizer to compare it with
        given = Checkpoint(self.weights, {})
        draft = load_draft(directory, Origin(self.directory, self.config, given, no_codec))
        placed = draft(self.decoder)
        kv = allocate(placed.kv, BLOCKS, BLOCK_SIZE, self.decoder.dtype, "cpu")
        drafter = placed.drafter(kv, BLOCK_SIZE)
        assert isinstance(drafter, HeadDrafter)
        return drafter

    def output(self, ids: Tensor) -> Tensor:
        name = "model.embed_tokens.weight" if self.config.tie_head else "lm_head.weight"
        return self.weights[name][ids]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Target:
    directory = tmp_path_factory.mktemp("untied")
    return Target.load(save_tiny(directory, "llama", vocab_size=VOCAB, num_hidden_layers=LAYERS))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Target:
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": LAYERS, "tie_word_embeddings": True}
    return Target.load(save_tiny(tmp_path_factory.mktemp("tied"), "qwen3", seed=1, **sizes))


@torch.no_grad()
def assert_same(directory: Path, target: Target) -> Head:
    """The placed head computes in random chunks of two sequences, over shuffled blocks, what the
    reference makes of the same file at once."""
    drafter = target.drafter(directory)
    head, reference = drafter._head, dense(directory)
    tensors, dtype = reference.tensors, head.dtype
    dice = torch.Generator().manual_seed(5)
    width = len(drafter.taps) * target.config.hidden_size
    lengths = (75, 52)
    sequences = [torch.randint(0, VOCAB, (n,), generator=dice) for n in lengths]
    states = [torch.randn(n, width, generator=dice).to(dtype) for n in lengths]
    got = in_chunks(drafter, sequences, states, Random(7))
    embedding = tensors.get(EMBEDDING, target.weights["model.embed_tokens.weight"])
    ids = head.target_ids
    output = tensors.get(OUTPUT, target.output(ids).float())
    assert output.shape == (len(ids), head.config.hidden_size)
    for tokens, seen, hidden in zip(sequences, states, got, strict=True):
        fused = reference.fuse(seen.float())
        wanted = reference.forward(embedding[tokens], fused)
        near(hidden, wanted)
        near(head.logits(hidden), reference.logits(wanted, output))
        assert wanted.std() > 0.5  # small numbers would agree with anything
    return head


def near(got: Tensor, wanted: Tensor) -> None:
    """Within 1e-5, or what bf16 can do, of the size that the numbers have."""
    assert got.shape == wanted.shape
    difference, size = (got.float() - wanted).abs(), max(1.0, float(wanted.std()))
    if got.dtype == torch.float32:
        assert difference.max() <= 1e-5 * size
    else:
        assert difference.mean() <= 0.02 * size


def dense(directory: Path) -> DenseHead:
    """The reference for what a directory's files say."""
    raw = json.loads((directory / "config.json").read_text())
    layer = raw.get(LAYER, raw)
    rope = layer.get("rope_parameters") or {}
    return DenseHead(
        tensors={name: tensor.float() for name, tensor in load_weights(directory).items()},
        first="layers.0." if LAYER in raw else "midlayer.",
        layers=layer["num_hidden_layers"],
        heads=layer["num_attention_heads"],
        head_dim=layer["head_dim"],
        eps=layer["rms_norm_eps"],
        theta=layer.get("rope_theta") or rope["rope_theta"],
        residual_is_normed=raw["norm_before_residual"],
    )


def in_chunks(
    drafter: HeadDrafter, sequences: list[Tensor], states: list[Tensor], dice: Random
) -> list[Tensor]:
    """The head's states of every sequence, computed in chunks of random lengths, both sequences
    in one batch as long as both last."""
    head, kv = drafter._head, drafter._kv
    blocks = dice.sample(range(BLOCKS), BLOCKS)
    tables = [blocks[: BLOCKS // 2], blocks[BLOCKS // 2 :]]
    for layer in kv.layers:
        layer.cells.fill_(7.5)  # what a pool holds of sequences long gone
    done = [0, 0]
    parts: list[list[Tensor]] = [[], []]
    while open_ones := [i for i in (0, 1) if done[i] < len(sequences[i])]:
        counts = {i: min(dice.randint(1, 30), len(sequences[i]) - done[i]) for i in open_ones}
        spans = {i: slice(done[i], done[i] + count) for i, count in counts.items()}
        feeds = [
            Feed(sequences[i][span].numpy().astype(np.int64), span.start, tables[i])
            for i, span in spans.items()
        ]
        fused = head.fuse(torch.cat([states[i][span] for i, span in spans.items()]))
        hidden = head.forward(assemble(feeds, head, kv), fused, kv.layers)
        for i, rows in zip(spans, hidden.split(list(counts.values())), strict=True):
            parts[i].append(rows)
            done[i] = spans[i].stop
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_head_is_what_its_files_say(
    variant: str, layout: str, untied: Target, tmp_path: Path
) -> None:
    options = dict(VARIANTS[variant])
    if layout == "flat":
        options.setdefault("own", ())
    head = assert_same(LAYOUTS[layout](tmp_path, untied.directory, **options), untied)
    assert head.config.taps == options.get("taps", (1, 2, 3))
    wanted = torch.arange(VOCAB) if options.get("whole") else every_other(VOCAB)
    assert head.target_ids.tolist() == wanted.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("own", [(), (EMBEDDING,)], ids=["embedding shared", "own embedding"])
def test_a_tied_target_shares_its_embedding_as_output(
    layout: str, own: tuple[str, ...], tied: Target, tmp_path: Path
) -> None:
    assert_same(LAYOUTS[layout](tmp_path, tied.directory, own=own), tied)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_halves_are_read_like_whole_numbers(
    layout: str, dtype: torch.dtype, untied: Target, tmp_path: Path
) -> None:
    directory = LAYOUTS[layout](tmp_path, untied.directory, dtype=dtype, own=BOTH)
    assert load_file(directory / WEIGHTS)["fc.weight"].dtype == dtype
    assert_same(directory, untied)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_a_head_is_placed_in_its_targets_dtype(
    dtype: torch.dtype, untied: Target, tmp_path: Path
) -> None:
    target = Target.load(untied.directory, torch.bfloat16)
    save_head(tmp_path, untied.directory, dtype=dtype, layer={"num_hidden_layers": 2})
    head = assert_same(tmp_path, target)
    assert head.dtype == torch.bfloat16
    values = sum(t.numel() for n, t in load_file(tmp_path / WEIGHTS).items() if n != "d2t")
    held = 2 * (values + len(head.target_ids) * 64)
    assert held <= head.weight_bytes < 1.1 * held  # packed matrices are padded


def test_shards_and_prefixes(untied: Target, tmp_path: Path) -> None:
    save_flat_head(tmp_path, untied.directory, own=BOTH)
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    bare = ("lm_head.weight", "d2t", "t2d")
    named = {name if name in bare else f"model.{name}": t for name, t in tensors.items()}
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(named)}
    for file in set(files.values()):
        save_file({n: t for n, t in named.items() if files[n] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": files}))
    drafter = untied.drafter(tmp_path)
    whole = save_flat_head(tmp_path / "whole", untied.directory, own=BOTH)
    same = untied.drafter(whole)
    tokens, states = torch.arange(20), torch.randn(20, 3 * 64)
    ours, theirs = (
        in_chunks(it, [tokens, tokens], [states, states], Random(1)) for it in (drafter, same)
    )
    assert torch.equal(ours[0], theirs[0])


def test_stored_frequencies_do_no_harm(untied: Target, tmp_path: Path) -> None:
    save_flat_head(tmp_path, untied.directory)
    extra = {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    change_tensors(tmp_path, lambda tensors: tensors.update(extra))
    assert_same(tmp_path, untied)


@pytest.mark.parametrize("own", [(), (OUTPUT,)], ids=["target's output", "own output"])
def test_maps_need_not_ascend(own: tuple[str, ...], untied: Target, tmp_path: Path) -> None:
    save_flat_head(tmp_path, untied.directory, own=own)
    ids = every_other(VOCAB).flip(0)
    offsets = (ids - torch.arange(len(ids))).int()
    change_tensors(tmp_path, lambda tensors: tensors.update(d2t=offsets))
    head = assert_same(tmp_path, untied)
    assert head.target_ids.tolist() == ids.tolist()


def test_a_whole_vocabulary_may_have_maps_that_say_so(untied: Target, tmp_path: Path) -> None:
    save_flat_head(tmp_path, untied.directory, whole=True)
    zeros = torch.zeros(VOCAB, dtype=torch.int64)
    known = torch.ones(VOCAB, dtype=torch.bool)
    change_tensors(tmp_path, lambda tensors: tensors.update(d2t=zeros, t2d=known))
    assert_same(tmp_path, untied)


@pytest.mark.parametrize("value", [None, "null"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_size_of_its_own_the_vocabulary_is_the_targets(
    layout: str, value: str | None, untied: Target, tmp_path: Path
) -> None:
    LAYOUTS[layout](tmp_path, untied.directory, whole=True)
    change_config(tmp_path, draft_vocab_size=None)
    if value:
        text = (tmp_path / "config.json").read_text().rstrip().removesuffix("}")
        (tmp_path / "config.json").write_text(f'{text}, "draft_vocab_size": null}}')
    assert assert_same(tmp_path, untied).config.draft_vocab == VOCAB


def test_it_has_logits_for_the_tokens_that_it_can_guess(untied: Target, tmp_path: Path) -> None:
    head = untied.drafter(save_head(tmp_path, untied.directory))._head
    ids = every_other(VOCAB)
    assert torch.equal(head.target_ids, ids)
    assert head.logits(torch.randn(3, 64)).shape == (3, len(ids))


@pytest.mark.parametrize("change", [{}, {"eagle_config": {}}], ids=["nothing else", "empty"])
def test_heads_of_eagle_itself_call_themselves_llamas(
    change: dict[str, Any], untied: Target, tmp_path: Path
) -> None:
    save_flat_head(tmp_path, untied.directory, taps=(2, 4, 5))
    change_config(tmp_path, architectures=["LlamaForCausalLM"], eagle_config=None)
    change_config(tmp_path, **change)
    assert assert_same(tmp_path, untied).config.taps == (2, LAYERS // 2, LAYERS - 3)


def test_fields_left_over_from_a_target_of_another_family_are_passed_over(
    untied: Target, tmp_path: Path
) -> None:
    save_flat_head(tmp_path, untied.directory)
    windows = {"sliding_window": 64, "use_sliding_window": False, "max_window_layers": 36}
    change_config(tmp_path, **windows, layer_types=["full_attention"] * 36)
    assert_same(tmp_path, untied)
