"""Every knob of the server: its default, its range and a sentence about it.

Filled by `sources`, which derives flags, variables and file keys from the fields here: a new knob
is one new field. Read by the composition root, the actors and the edge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    ByteSize,
    Field,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ..spec.params import MAX_DRAFT

TILE = 64
"""Keys that attention reads at once; blocks must divide it."""
DEFAULT_BLOCK = 16
"""Tokens of a block where nothing says what would suit."""

Device = Literal["auto", "cpu", "cuda"]
KvDtype = Literal["auto", "int8"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
SpeculativeMethod = Literal["auto", "ngram", "suffix", "draft", "off"]
Quantization = Literal["none", "auto", "int8", "int4"]
LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

_Unset = BeforeValidator(lambda value: None if value == "none" else value)


def _setting(group: str, default: object, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group}, **limits)


class Settings(BaseSettings):
    """The effective configuration. Built directly it takes its arguments and nothing else.

    None means what the field's description says of "none", the word that sets it in a flag, a
    variable or a file. Raises pydantic's ValidationError.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        env_prefix="PACELINE_",
        env_prefix_target="all",
        env_ignore_empty=True,
        populate_by_name=True,
        protected_namespaces=(),
    )

    model: str = _setting(
        "model",
        "demo",
        'Model to serve: "demo", a Hugging Face directory, a .gguf file, or a hub id.',
        min_length=1,
    )
    served_model_name: Annotated[str | None, _Unset] = _setting(
        "model", None, "Name of the model in the API; none: derived from the model.", min_length=1
    )
    device: Device = _setting("model", "auto", "Where the model runs; auto: a GPU if there is one.")
    dtype: Dtype = _setting("model", "auto", "Number format of weights and KV; auto: bfloat16.")
    quantization: Quantization = _setting(
        "model",
        "auto",
        "Bits of weights on a CPU; auto: as few as the model's file has; none: those of dtype.",
    )
    max_model_len: Annotated[int | None, _Unset] = _setting(
        "model", None, "Longest prompt plus answer in tokens; none: the model's own limit.", ge=2
    )
    cache_dir: Annotated[Path | None, _Unset] = _setting(
        "model", None, "Folder for fetched and converted models; none: the standard place."
    )

    draft: Annotated[str | None, _Unset] = _setting(
        "speculation",
        "auto",
        "Draft, written like the model; auto: what comes with the model; none: no draft.",
        min_length=1,
    )
    speculative_method: SpeculativeMethod = _setting(
        "speculation",
        "auto",
        "Who drafts when a request does not say; auto: a draft, or else suffix; off: nobody.",
    )
    num_speculative_tokens: Annotated[int | None, _Unset] = _setting(
        "speculation",
        None,
        "Draft tokens per step at most; none: as many as pay, of a model 4.",
        ge=1,
        le=MAX_DRAFT,
    )
    suffix_memory: int = _setting(
        "speculation", 0, "Tokens of recent traffic that suffix drafts remember; 0: none.", ge=0
    )

    max_num_seqs: int = _setting("batching", 16, "Sequences that run at once at most.", ge=1)
    max_num_batched_tokens: Annotated[int | None, _Unset] = _setting(
        "batching", None, "Tokens computed in one step at most; none: by device.", ge=1
    )
    max_flights: int = _setting(
        "batching", 1, "Steps in the air at once: above 1 the scheduler runs ahead.", ge=1, le=4
    )

    max_waiting_time: float = _setting(
        "batching",
        0.0,
        "Seconds that a new batch waits for more requests before it starts, unless it is full.",
        ge=0,
        le=60,
    )

    block_size: Literal["auto"] | Annotated[int, Field(ge=1)] = _setting(
        "memory",
        DEFAULT_BLOCK,
        f"Tokens per KV block; must divide {TILE}; auto: what suits the lengths in traffic.",
    )
    traffic: Annotated[Path | None, _Unset] = _setting(
        "memory", None, "Log of requests whose lengths block_size auto and plan go by; none: none."
    )
    kv_memory: Literal["auto"] | Annotated[ByteSize, Field(gt=0)] = _setting(
        "memory",
        "auto",
        'Memory for KV blocks, such as "2GiB"; auto: what there is room for.',
    )
    kv_dtype: KvDtype = _setting(
        "memory",
        "auto",
        "Number format of KV; auto: the model's; int8: eight bits, half the memory of bfloat16.",
        validation_alias=AliasChoices("kv_dtype", "kv_cache_dtype"),
    )
    draft_kv_dtype: KvDtype = _setting(
        "memory",
        "auto",
        "The same for the KV of a draft.",
        validation_alias=AliasChoices("draft_kv_dtype", "draft_kv_cache_dtype"),
    )
    kv_full_layers: int = _setting(
        "memory",
        0,
        "Layers at either end that keep KV in the model's format; for kv_dtype int8.",
        ge=0,
    )
    memory_utilization: float = _setting(
        "memory",
        0.9,
        "Share of a GPU's memory that weights and KV may take; for kv_memory auto.",
        gt=0,
        le=1,
        validation_alias=AliasChoices("memory_utilization", "gpu_memory_utilization"),
    )

    enable_prefix_caching: bool = _setting(
        "memory", True, "Keep KV of full blocks, and reuse it for prompts that begin the same."
    )

    host: str = _setting("serving", "127.0.0.1", "Address to listen on.", min_length=1)
    port: int = _setting("serving", 8000, "Port to listen on; 0: any free one.", ge=0, le=65535)
    max_queued_requests: int = _setting(
        "serving", 256, "Requests that may wait before more are turned away.", ge=0
    )
    max_body_bytes: ByteSize = _setting(
        "serving", "4MiB", 'Largest request body, such as "4MiB".', ge=1024
    )
    sse_keep_alive: float = _setting(
        "serving", 15.0, "Seconds of silence after which a stream gets a keep-alive comment.", gt=0
    )
    shutdown_timeout: float = _setting(
        "serving", 30.0, "Seconds that open requests get to finish at shutdown.", ge=0
    )

    threads: Annotated[int | None, _Unset] = _setting(
        "process", None, "CPU threads of the model; none: all cores.", ge=1
    )
    record: Annotated[Path | None, _Unset] = _setting(
        "process",
        None,
        "New file for a recording of the scheduler, token ids included; none: none is made.",
    )
    audit_every: int = _setting(
        "process", 0, "Steps between audits of the pool while busy; 0: only when idle.", ge=0
    )
    log_format: LogFormat = _setting(
        "process", "auto", "How logs are written; auto: console on a terminal, else json."
    )
    log_level: LogLevel = _setting("process", "info", "Least severe log lines that are written.")

    @field_validator("block_size")
    @classmethod
    def _divides_tile(cls, value: int | str) -> int | str:
        if isinstance(value, int) and TILE % value:
            raise ValueError(f"must divide {TILE}")
        return value

    @model_validator(mode="after")
    def _draft_is_there(self) -> Settings:
        if self.speculative_method == "draft" and self.draft is None:
            raise ValueError('speculative_method is "draft" but no draft model is set')
        return self

    @model_validator(mode="after")
    def _a_step_has_room_for_all(self) -> Settings:
        tokens = self.max_num_batched_tokens
        if tokens is not None and tokens < 2 * self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {tokens}: it must be at least twice max_num_seqs "
                f"({self.max_num_seqs}), so that every sequence and a prompt fit into a step"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @property
    def public_name(self) -> str:
        """The model's name in the API: as set, else a path's last part, else as written."""
        if self.served_model_name is not None:
            return self.served_model_name
        path = Path(self.model).expanduser()
        if not path.exists():
            return self.model
        return path.stem if path.suffix == ".gguf" else path.resolve().name

    def batched_tokens(self, device: str) -> int:
        """Tokens computed in one step at most on `device` ("cpu" or "cuda")."""
        by_device = 256 if device == "cpu" else 2048
        return self.max_num_batched_tokens or max(by_device, 2 * self.max_num_seqs)

    @classmethod
    def groups(cls) -> dict[str, list[str]]:
        """Field names by group, in the order of the class."""
        found: dict[str, list[str]] = {}
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra
            assert isinstance(extra, dict), f"the setting {name} has no group"
            found.setdefault(str(extra["group"]), []).append(name)
        return found
