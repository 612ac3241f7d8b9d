"""Model pairs of a tiny random target and drafts cut from it, and texts for them to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import torch

from paceline.kernels.int8 import NOT_FINITE
from paceline.kv.capacity import KvShape
from paceline.kv.layers import Int8Layer
from paceline.kv.tensors import KvStore, allocate
from paceline.models.config import load_config
from paceline.models.decoder import Decoder
from paceline.models.weights import load_weights
from paceline.spec.draft_model import DraftModel
from paceline.spec.drafter import Drafter
from paceline.spec.ngram import NgramDrafter
from paceline.spec.pair import ModelPair
from paceline.spec.params import Method, SamplingParams
from paceline.spec.plan import Opening, Row, StepDone, StepPlan
from paceline.spec.suffix import SuffixDrafter
from support.drive import Driver, Job
from support.tiny_models import cut_layers, save_tiny

VOCAB = 151
MAX_LEN = 160
SLOTS = 8
BLOCKS = 100
BLOCK_SIZE = 16
ENDS = frozenset({1, 2})

KvDtype = Literal["auto", "int8"]

GREEDY = SamplingParams(temperature=0.0, seed=0)
SAMPLED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=2**62 + 9)
NEW_TOKENS = 64


def save_models(directory: Path, family: str = "llama", **changes: object) -> Path:
    """A target of three layers under `target`, its first layer alone under `first`."""
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 3} | changes
    target = save_tiny(directory / "target", family, **sizes)
    cut_layers(target, directory / "first", 1)
    return directory


def load(directory: Path, dtype: torch.dtype, poisoned: int | None = None) -> Decoder:
    """A decoder; `poisoned` names a token whose embedding is not a number."""
    weights = load_weights(directory)
    if poisoned is not None:
        weights["model.embed_tokens.weight"][poisoned, 3] = torch.nan
    return Decoder(load_config(directory), weights, device="cpu", dtype=dtype)


def kv_for(decoder: Decoder, kv_dtype: KvDtype = "auto") -> KvStore:
    c = decoder.config
    shape = KvShape(c.layers, c.kv_heads, c.head_dim, decoder.dtype.itemsize).in_format(kv_dtype)
    return allocate(shape, BLOCKS, BLOCK_SIZE, decoder.dtype, "cpu", slots=SLOTS)


def finite(kv: KvStore) -> bool:
    """Whether all that is kept of blocks is."""
    sound = all(bool(t.isfinite().all()) for layer in kv.layers for t in layer.tensors)
    scales = [layer.cells.key_scales for layer in kv.layers if isinstance(layer, Int8Layer)]
    return sound and not any(bool((scale == NOT_FINITE).any()) for scale in scales)


@dataclass
class Models:
    """Target and first-layer draft in one dtype, and the format of both models' KV; their weights
    serve any number of pairs."""

    directory: Path
    dtype: torch.dtype
    kv_dtype: KvDtype = "auto"

    def __post_init__(self) -> None:
        self.target = load(self.directory / "target", self.dtype)
        self.first = load(self.directory / "first", self.dtype)

    def kv_for(self, decoder: Decoder) -> KvStore:
        return kv_for(decoder, self.kv_dtype)

    def pair(
        self,
        draft: Decoder | None = None,
        *,
        target: Decoder | None = None,
        drafters: Mapping[Method, Drafter] | None = None,
        beside: bool = True,
    ) -> ModelPair:
        """A pair with fresh KV, n-grams, suffixes and, if given, a draft model; or other
        drafters. beside: whether there are suffixes, which may stand in for a draft model."""
        own: dict[Method, Drafter] = {"ngram": NgramDrafter()}
        if beside:
            own["suffix"] = SuffixDrafter(500)
        if draft is not None:
            own["draft"] = DraftModel(draft, self.kv_for(draft), BLOCK_SIZE, VOCAB)
        target = target or self.target
        return ModelPair(
            target,
            self.kv_for(target),
            own if drafters is None else drafters,
            slots=SLOTS,
            max_len=MAX_LEN,
            block_size=BLOCK_SIZE,
            ends=ENDS,
        )


def driver(pair: ModelPair, random: Random | None = None, **settings: float) -> Driver:
    """A driver of the pair's sizes; see Driver for the settings."""
    sizes = {"slots": SLOTS, "blocks": BLOCKS, "block_size": BLOCK_SIZE, "max_len": MAX_LEN}
    return Driver(pair, random=random, **(sizes | settings))  # type: ignore[arg-type]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of 1 to 80 tokens; every other one repeats itself."""
    random = Random(11)
    texts = []
    for i in range(count):
        words = [random.randrange(3, VOCAB) for _ in range([1, 7, 16, 33, 80][i % 5])]
        texts.append(tuple(words * (1 + i % 2))[:80])
    return texts


def jobs_of(params: SamplingParams, method: Method | None = None, k: int = 0) -> list[Job]:
    return [Job(p, params, len(p) + NEW_TOKENS, method, k) for p in prompts(8)]


@dataclass
class Texts:
    """What each prompt's text is without speculation, alone, its prompt computed at once."""

    greedy: list[list[int]]
    sampled: list[list[int]]

    def of(self, params: SamplingParams) -> list[list[int]]:
        return self.greedy if params.greedy else self.sampled


def plain_texts(models: Models, params: SamplingParams) -> list[list[int]]:
    jobs = jobs_of(params)
    for job in jobs:
        driver(models.pair()).run([job])
    return [job.text for job in jobs]


def mixed_jobs() -> tuple[list[Job], list[tuple[SamplingParams, int]]]:
    """Sequences of every method and both kinds of sampling, with what text each should have."""
    jobs, keys = [], []
    for i, prompt in enumerate(prompts(8)):
        params = SAMPLED if i in (1, 2, 5, 7) else GREEDY
        method: Method | None = (None, "ngram", "draft", "suffix")[i % 4]
        jobs.append(Job(prompt, params, len(prompt) + NEW_TOKENS, method, 1 + i % 5))
        keys.append((params, i))
    return jobs, keys


def open_one(pair: ModelPair, length: int, draft: int, method: Method = "draft") -> StepDone:
    prompt = tuple(Random(2).randrange(3, VOCAB) for _ in range(length))
    blocks = tuple(range(MAX_LEN // BLOCK_SIZE))
    return pair.launch(
        StepPlan(
            1,
            (Row(0, 0, length, draft, True, blocks),),
            (Opening(0, 0, prompt, GREEDY, method),),
        )
    ).land()
