"""The composition root: from settings to the parts that the supervisor runs.

The only module of `actors` that may import torch. Models are loaded in the launch thread, where
they will run; tokenizers in the threads that will use them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..kv.capacity import (
    KvShape,
    block_bytes,
    cpu_budget,
    gpu_budget,
    pool_blocks,
    read_available_memory,
)
from ..kv.tensors import allocate, allocated_bytes
from ..models.config import ModelConfig, load_config
from ..models.decoder import Decoder
from ..models.errors import ModelError
from ..models.progress import Progress, silent
from ..models.source import companion, resolve
from ..models.tokenizer import TextCodec
from ..models.weights import load_weights
from ..spec.drafter import Drafter
from ..spec.drafts import Draft, Origin, load_draft
from ..spec.failure import classify
from ..spec.grammar import Grammars
from ..spec.ngram import NgramDrafter
from ..spec.pacing import DEFAULT_K, FREE_ROWS, MODEL_K, ModelPace
from ..spec.pair import ModelPair
from ..spec.params import Method
from ..spec.suffix import SuffixDrafter
from .admission import AdmissionLimits
from .engine import ServingInfo
from .planner import Limits
from .settings import Settings
from .supervisor import Parts

POOL_LENGTH = 2048
"""Tokens per sequence that the default pool on a CPU has room for, times max_num_seqs."""

ACTIVATIONS_PER_TOKEN = 24
"""Bytes of a GPU kept free for each hidden unit and each logit of a step's token, generously."""


async def load(settings: Settings, progress: Progress = silent) -> Parts:
    """Fetch, read and place everything. Raises ModelError with a sentence for the user."""
    device = _device(settings.device)
    launch = _thread("paceline-launch", partial(_prepare_thread, settings.threads))
    text = _thread("paceline-text")
    try:
        loop = asyncio.get_running_loop()
        built = await loop.run_in_executor(launch, _build, settings, device, progress)
        encoder = await loop.run_in_executor(text, TextCodec.load, built.directory)
    except BaseException:
        launch.shutdown(wait=False)
        text.shutdown(wait=False)
        raise
    gc.collect()
    gc.freeze()  # what has been loaded stays: full collections need not walk it again
    info = built.info
    return Parts(
        info=info,
        pair=built.pair,
        classify=classify,
        launch=launch,
        text=text,
        encoder=encoder,
        grammars=built.grammars,
        decode=built.codec.decode,
        piece=built.codec.piece,
        ends=frozenset(built.ends),
        limits=Limits(
            step_tokens=settings.batched_tokens(device.type),
            length=info.max_model_len,
            flights=settings.max_flights,
            caching=settings.enable_prefix_caching,
            forming=settings.max_waiting_time,
        ),
        admission=AdmissionLimits(
            open_requests=settings.max_num_seqs + settings.max_queued_requests,
            length=info.max_model_len,
            pool_tokens=info.pool_tokens,
            vocab_size=built.vocab_size,
            methods=info.methods,
            default_method=info.default_method,
            k=_draft_lengths(settings),
        ),
    )


@dataclass(slots=True, frozen=True)
class _Built:
    directory: Path
    codec: TextCodec
    pair: ModelPair
    grammars: Grammars
    info: ServingInfo
    ends: tuple[int, ...]
    vocab_size: int


def _build(settings: Settings, device: torch.device, progress: Progress) -> _Built:
    """Runs in the launch thread: both models, the pool, the pair."""
    dtype = _dtype(settings.dtype)
    directory = resolve(settings.model, settings.cache_dir, progress)
    config = load_config(directory)
    weights = load_weights(directory, _as_stage("model", progress))
    codec = TextCodec.load(directory)
    draft = _draft(settings, Origin(directory, config, weights, codec), progress)
    length = _length(settings.max_model_len, directory, config)
    target = Decoder(config, weights, device=device, dtype=dtype)
    placed = draft(target) if draft else None
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, dtype.itemsize)
    blocks = _pool(settings, device, length, config, (shape, placed.kv if placed else None))

    def place(shape: KvShape) -> list[torch.Tensor]:
        return allocate(shape, blocks, settings.block_size, dtype, device)

    caches = place(shape)
    kv_bytes = allocated_bytes(caches)
    grammars = Grammars(codec.json, config.vocab_size, frozenset(config.eos_ids))
    drafters: dict[Method, Drafter] = {
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(settings.suffix_memory),
    }
    if placed is not None:
        draft_caches = place(placed.kv)
        kv_bytes += allocated_bytes(draft_caches)
        pace = ModelPace(settings.num_speculative_tokens or MODEL_K, FREE_ROWS[device.type])
        drafters["draft"] = placed.drafter(draft_caches, settings.block_size, pace)
    pair = ModelPair(
        target,
        caches,
        drafters,
        slots=settings.max_num_seqs,
        max_len=length,
        block_size=settings.block_size,
        ends=frozenset(config.eos_ids),
        grammars=grammars,
    )
    default_method = _default_method(settings, placed is not None)
    info = ServingInfo(
        model=settings.public_name,
        created=int(time.time()),
        max_model_len=length,
        draft=_draft_name(settings) if draft else None,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        methods=tuple(drafters),
        default_method=default_method,
        default_k=_draft_lengths(settings)[default_method] if default_method else 0,
        blocks=blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        kv_bytes=kv_bytes,
        weight_bytes=target.weight_bytes + (placed.weight_bytes if placed else 0),
        exact=target.exact,
    )
    return _Built(directory, codec, pair, grammars, info, config.eos_ids, config.vocab_size)


def _as_stage(name: str, progress: Progress) -> Progress:
    return lambda _, done, total: progress(name, done, total)


def _draft_name(settings: Settings) -> str | None:
    """The draft to look for: what the settings say, or what comes with the model."""
    if settings.draft != "auto":
        return settings.draft
    return companion(settings.model)


def _draft(settings: Settings, target: Origin, progress: Progress) -> Draft | None:
    name = _draft_name(settings)
    if name is None:
        return None
    directory = resolve(name, settings.cache_dir, progress)
    return load_draft(directory, target, _as_stage("draft", progress))


def _length(wanted: int | None, directory: Path, config: ModelConfig) -> int:
    """The longest sequence. ModelError where one is wanted that the model cannot follow."""
    longest = config.max_position
    if wanted is not None and wanted > longest:
        raise ModelError(f"max_model_len {wanted} exceeds the {longest} positions of {directory}")
    return wanted or longest


def _pool(
    settings: Settings,
    device: torch.device,
    length: int,
    config: ModelConfig,
    shapes: tuple[KvShape, KvShape | None],
) -> int:
    """Blocks of the pool, for target and draft. ModelError when not even two of them fit."""
    per_block = block_bytes(settings.block_size, *shapes)
    longest = -(-length // settings.block_size)
    if settings.kv_memory != "auto":
        budget = int(settings.kv_memory)
    elif device.type == "cpu":
        wanted = settings.max_num_seqs * min(length, POOL_LENGTH) // settings.block_size
        budget = cpu_budget(read_available_memory(), max(wanted, longest) * per_block)
    else:
        width = config.hidden_size + config.intermediate_size + config.vocab_size
        budget = gpu_budget(
            torch.cuda.mem_get_info(device)[1],
            settings.memory_utilization,
            torch.cuda.memory_allocated(device),
            settings.batched_tokens("cuda") * width * ACTIVATIONS_PER_TOKEN,
        )
    blocks = pool_blocks(budget, settings.block_size, *shapes)
    if blocks < 2:
        raise ModelError(f"{budget} bytes for KV are too few: two blocks take {2 * per_block}")
    return min(blocks, longest * settings.max_num_seqs)


def _default_method(settings: Settings, has_draft: bool) -> Method | None:
    """Who drafts unless a request says otherwise. ModelError for a draft that is not there."""
    if settings.speculative_method == "draft" and not has_draft:
        raise ModelError(f"no draft comes with {settings.model}: name one, or another method")
    match settings.speculative_method:
        case "off":
            return None
        case "auto":
            return "draft" if has_draft else "suffix"
        case method:
            return method


def _draft_lengths(settings: Settings) -> dict[Method, int]:
    asked = settings.num_speculative_tokens
    return DEFAULT_K if asked is None else dict.fromkeys(DEFAULT_K, asked)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("device cuda: no GPU that torch can use is here")
    return torch.device(name)


def _dtype(name: str) -> torch.dtype:
    return torch.bfloat16 if name == "auto" else getattr(torch, name)


def _thread(name: str, initializer: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=initializer)


def _prepare_thread(threads: int | None) -> None:
    """Once, in the launch thread: everything of torch that is a thread's own."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.autograd.grad_mode.set_grad_enabled(False)
