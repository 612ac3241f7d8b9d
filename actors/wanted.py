"""What settings mean for the models that they name: which draft, how long, in which format.

Called by the composition root and by the commands that only foresee. Raises ModelError where the
settings ask for what a model does not have.
"""

from __future__ import annotations

from pathlib import Path

from ..kv.capacity import KvFormats
from ..models.cache import default_cache_dir
from ..models.checkpoint import PackedWeights
from ..models.config import ModelConfig
from ..models.errors import ModelError
from ..models.progress import Progress, silent
from ..models.source import companion, resolve
from ..models.target import weights_of
from ..spec.pacing import DEFAULT_K, MODEL_K
from ..spec.params import Method
from .forecast import Subject
from .machine import dtype_of
from .settings import Settings


def subject_of(settings: Settings, *, given: bool = False) -> Subject:
    """What a forecast of these settings is of. given: whether the memory was said, not found."""
    draft = draft_name(settings)
    return Subject(
        settings.public_name,
        draft,
        str(dtype_of(settings)).removeprefix("torch."),
        "given" if given else "found on this machine",
        (settings.num_speculative_tokens or MODEL_K) if draft else 0,
    )


def draft_name(settings: Settings) -> str | None:
    """The draft to look for: what the settings say, or what comes with the model."""
    if settings.draft != "auto":
        return settings.draft
    return companion(settings.model)


def draft_directory(settings: Settings, progress: Progress = silent) -> Path | None:
    name = draft_name(settings)
    return None if name is None else resolve(name, settings.cache_dir, progress)


def length_of(settings: Settings, directory: Path, config: ModelConfig) -> int:
    """The longest sequence. ModelError where one is wanted that the model cannot follow."""
    wanted, longest = settings.max_model_len, config.max_position
    if wanted is not None and wanted > longest:
        raise ModelError(f"max_model_len {wanted} exceeds the {longest} positions of {directory}")
    return wanted or longest


def native_folder(settings: Settings) -> Path:
    """Where compiled kernels are kept."""
    return (settings.cache_dir or default_cache_dir()) / "native"


def quantization_of(
    settings: Settings, directory: Path, config: ModelConfig, device: str
) -> tuple[PackedWeights, str | None]:
    """The weights that the target gets, and why it does not get those in few bits that its file
    holds."""
    return weights_of(
        directory, config, settings.quantization, device=device, dtype=dtype_of(settings),
        plain_kv=settings.kv_dtype == "auto", folder=native_folder(settings),
    )  # fmt: skip


def formats_of(settings: Settings) -> KvFormats:
    return KvFormats(settings.kv_dtype, settings.draft_kv_dtype, settings.kv_full_layers)


def default_method_of(settings: Settings, has_draft: bool) -> Method | None:
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


def draft_lengths(settings: Settings) -> dict[Method, int]:
    asked = settings.num_speculative_tokens
    return DEFAULT_K if asked is None else dict.fromkeys(DEFAULT_K, asked)
