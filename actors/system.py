"""The composition root: from settings to the parts that the supervisor runs.

Models are loaded in the launch thread, where they will run; tokenizers in the threads that will use
them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
import torch

from ..kv.budget import pool_size
from ..kv.capacity import KvShape, format_names
from ..kv.tensors import KvStore, allocate
from ..kv.window import pool_tokens
from ..models.checkpoint import load_checkpoint
from ..models.config import load_config, widest
from ..models.errors import ModelError
from ..models.progress import Progress, silent
from ..models.source import resolve
from ..models.target import place
from ..models.tokenizer import TextCodec
from ..spec.drafter import Drafter
from ..spec.drafts import Origin, load_draft
from ..spec.failure import classify
from ..spec.footprint import far_positions, footprint
from ..spec.grammar import Grammars
from ..spec.ngram import NgramDrafter
from ..spec.pacing import MODEL_K, Pacer
from ..spec.pair import ModelPair
from ..spec.params import Method
from ..spec.rehearsal import rehearse
from ..spec.suffix import SuffixDrafter
from .admission import AdmissionLimits
from .engine import ServingInfo
from .forecast import forecast, wish_of
from .launch import LaunchThread
from .machine import device_of, dtype_of, give_back_memory, kind_of, machine_of
from .planner import Limits
from .settings import Settings
from .supervisor import Parts
from .tape import Tape
from .traffic import known_lengths
from .wanted import (
    default_method_of,
    draft_directory,
    draft_lengths,
    draft_name,
    formats_of,
    length_of,
    native_folder,
    quantization_of,
    subject_of,
)

log = structlog.get_logger("paceline.system")


async def load(settings: Settings, progress: Progress = silent) -> Parts:
    """Fetch, read and place everything. Raises ModelError with a sentence for the user, and
    TapeError where it cannot record."""
    device = device_of(settings)
    tape = Tape(settings.record) if settings.record is not None else None
    launch = LaunchThread("paceline-launch", partial(_prepare_thread, settings.threads))
    text = ThreadPoolExecutor(1, thread_name_prefix="paceline-text")
    try:
        loop = asyncio.get_running_loop()
        built = await loop.run_in_executor(launch, _build, settings, device, progress)
        encoder = await loop.run_in_executor(text, TextCodec.load, built.directory)
    except BaseException:
        if tape is not None:
            tape.discard()
        launch.shutdown(wait=False)
        text.shutdown(wait=False)
        raise
    gc.collect()
    gc.freeze()  # what has been loaded stays: full collections need not walk it again
    give_back_memory()
    info = built.info
    limits = Limits(
        step_tokens=settings.batched_tokens(device.type),
        length=info.max_model_len,
        flights=settings.max_flights,
        caching=settings.enable_prefix_caching,
        forming=settings.max_waiting_time,
        window=built.window,
        far=built.far,
    )
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
        limits=limits,
        admission=AdmissionLimits(
            open_requests=settings.max_num_seqs + settings.max_queued_requests,
            length=info.max_model_len,
            pool_tokens=pool_tokens(limits, info.blocks, info.block_size, info.max_model_len),
            vocab_size=built.vocab_size,
            methods=info.methods,
            default_method=info.default_method,
            k=draft_lengths(settings),
        ),
        audit_every=settings.audit_every,
        tape=tape,
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
    window: int | None
    far: int | None


def _build(settings: Settings, device: torch.device, progress: Progress) -> _Built:
    """Runs in the launch thread: both models, the pool, the pair."""
    lengths = known_lengths(settings)
    dtype = dtype_of(settings)
    directory = resolve(settings.model, settings.cache_dir, progress)
    config = load_config(directory)
    mode, obstacle = quantization_of(settings, directory, config, device.type)
    if obstacle is not None:
        log.info("weights are not kept in few bits", reason=obstacle)
    checkpoint = load_checkpoint(directory, config, mode, _as_stage("model", progress))
    codec = TextCodec.load(directory)
    drafts_from = draft_directory(settings, progress)
    draft = None
    if drafts_from is not None:
        origin = Origin(directory, config, checkpoint, codec)
        draft = load_draft(drafts_from, origin, _as_stage("draft", progress))
    length = length_of(settings, directory, config)
    foreseen = footprint(
        directory, config, drafts_from, dtype=dtype, device=device.type,
        step_tokens=settings.batched_tokens(device.type), formats=formats_of(settings),
        weights=mode,
    )  # fmt: skip
    wish = wish_of(settings, length, foreseen, lengths)
    # with no more positions than are served, which is what longrope goes by
    served = replace(config, max_position=length)
    target = place(
        served, checkpoint, device=device, dtype=dtype,
        threads=torch.get_num_threads(), folder=native_folder(settings),
    )  # fmt: skip
    if mode != "none":
        # Its team would spin beside the kernels' own, for the little that is left to torch.
        torch.set_num_threads(1)
    placed = draft(target) if draft else None
    weight_bytes = target.weight_bytes + (placed.weight_bytes if placed else 0)
    machine = machine_of(settings, kind_of(device), held=weight_bytes)
    taken = weight_bytes if device.type == "cpu" else torch.cuda.memory_allocated(device)
    try:
        blocks = pool_size(machine, foreseen.holding(taken), wish)
        expected = forecast(subject_of(settings), machine, foreseen, wish, lengths)
    except ValueError as error:
        raise ModelError(str(error)) from None

    def room_for(shape: KvShape) -> KvStore:
        slots = settings.max_num_seqs
        return allocate(shape, blocks, wish.block_size, dtype, device, slots=slots)

    kv = room_for(foreseen.target.kv)
    kv_bytes = kv.nbytes
    grammars = Grammars(codec.json, config.vocab_size, frozenset(config.eos_ids))
    drafters: dict[Method, Drafter] = {
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(settings.suffix_memory),
    }
    if placed is not None and foreseen.draft is not None:
        own_kv = room_for(foreseen.draft.kv)
        drafter = placed.drafter(own_kv, wish.block_size)
        drafters["draft"] = drafter
        kv_bytes += own_kv.nbytes + drafter.state_bytes
    costs = rehearse(
        target, kv, drafters.get("draft"),
        streams=settings.max_num_seqs, block_size=wish.block_size,
    )  # fmt: skip
    pair = ModelPair(
        target,
        kv,
        drafters,
        slots=settings.max_num_seqs,
        max_len=length,
        block_size=wish.block_size,
        ends=frozenset(config.eos_ids),
        grammars=grammars,
        pacer=Pacer(costs, settings.num_speculative_tokens or MODEL_K),
    )
    draft_kv = foreseen.draft.kv if foreseen.draft else None
    default_method = default_method_of(settings, placed is not None)
    info = ServingInfo(
        model=settings.public_name,
        created=int(time.time()),
        max_model_len=length,
        draft=draft_name(settings),
        device=str(device),
        dtype=expected.dtype,
        methods=tuple(drafters),
        default_method=default_method,
        default_k=draft_lengths(settings)[default_method] if default_method else 0,
        blocks=blocks,
        block_size=wish.block_size,
        max_num_seqs=settings.max_num_seqs,
        kv_bytes=kv_bytes,
        weight_bytes=weight_bytes,
        kv_dtype=format_names(expected.dtype, foreseen.target.kv, draft_kv),
        exact=target.exact,
        forecast=expected,
    )
    window = widest((config.window, placed.window) if placed else (config.window,))
    return _Built(
        directory, codec, pair, grammars, info, config.eos_ids, config.vocab_size, window,
        far_positions(config, mode),
    )  # fmt: skip


def _as_stage(name: str, progress: Progress) -> Progress:
    return lambda _, done, total: progress(name, done, total)


def _prepare_thread(threads: int | None) -> None:
    """Once, in the launch thread: everything of torch that is a thread's own."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.autograd.grad_mode.set_grad_enabled(False)
