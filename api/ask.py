"""What the two generating endpoints and the socket's turns share: every parameter but the prompt,
and how they become a `Submit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta, field

from ..actors.messages import Prompt, Submit
from ..spec.params import Granularity, InputError, SamplingParams, Speculation, check
from .fields import Alternatives, ChoiceCount, Count, Priority, TokenId, TopK, read_bias
from .formats import Formatted
from .neutral import Table

_DEFAULT = SamplingParams()


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class Ask(Formatted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints share. Defaults are the sampler's own."""

    neutral: ClassVar[Table]

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    stream_granularity: Granularity = "step"
    return_token_ids: bool = False
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count = _DEFAULT.min_tokens
    stop: str | list[str] = field(default_factory=list)
    stop_token_ids: list[TokenId] = field(default_factory=list)
    include_stop_str_in_output: bool = _DEFAULT.include_stop
    ignore_eos: bool = _DEFAULT.ignore_eos
    n: ChoiceCount = 1
    seed: int | None = None
    temperature: float = _DEFAULT.temperature
    top_p: float = _DEFAULT.top_p
    top_k: TopK = _DEFAULT.top_k
    min_p: float = _DEFAULT.min_p
    typical_p: float = _DEFAULT.typical_p
    presence_penalty: float = _DEFAULT.presence_penalty
    frequency_penalty: float = _DEFAULT.frequency_penalty
    repetition_penalty: float = _DEFAULT.repetition_penalty
    logit_bias: dict[str, Any] = field(default_factory=dict)
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: list[str] = field(default_factory=list)
    prompt_logprobs: Alternatives | None = None
    cache_salt: str = _DEFAULT.cache_salt
    priority: Priority = 0
    user: str | None = None
    speculation: Speculation = _DEFAULT.speculation

    def alternatives(self) -> int | None:
        """How many alternatives to report per token; None: no log probabilities."""
        raise NotImplementedError

    def prompt_alternatives(self) -> int | None:
        """The same for the tokens of the prompt."""
        return self.prompt_logprobs

    @property
    def wants_prompt(self) -> bool:
        """Whether the answer says something even without a new token."""
        return self.prompt_alternatives() is not None

    def content(self) -> Prompt:
        """The prompt in the engine's words."""
        raise NotImplementedError

    def opening(self, decode: Callable[[Sequence[int]], str]) -> str:
        """Text that stands before every answer."""
        return ""

    def submit(self, request: str) -> Submit:
        """The whole request, checked. Raises InputError naming the field at fault."""
        self._check_stream()
        params = self._params()
        try:
            check(params)
        except InputError as error:
            raise self._respelled(error) from None
        return Submit(
            request, self.content(), params, self.n, self.stream_granularity, self.priority
        )

    def spelling(self, param: str | None) -> str | None:
        """A parameter's name as this client wrote it."""
        if param == "max_tokens" and self.max_tokens is None:
            return "max_completion_tokens" if self.max_completion_tokens is not None else param
        return self.format_field() if param == "response_format" else param

    def _respelled(self, error: InputError) -> InputError:
        """A complaint about a parameter, with the name that this client gave it."""
        ours, theirs = error.param or "", self.spelling(error.param) or ""
        return InputError(error.message.replace(ours, theirs, 1), param=theirs)

    def _params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=read_bias(self.logit_bias),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            bad_words=tuple(self.bad_words),
            min_tokens=self.min_tokens,
            grammar=self.grammar(),
            seed=self.seed,
            max_tokens=self._limit(),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            logprobs=self.alternatives(),
            prompt_logprobs=self.prompt_alternatives(),
            cache_salt=self.cache_salt,
            speculation=self.speculation,
        )

    def _check_stream(self) -> None:
        if self.stream:
            return
        if self.stream_options is not None:
            raise InputError(
                "stream_options is only allowed when stream is true", param="stream_options"
            )
        if self.stream_granularity != "step":
            raise InputError(
                "stream_granularity is only allowed when stream is true",
                param="stream_granularity",
            )

    def _limit(self) -> int | None:
        new, old = self.max_completion_tokens, self.max_tokens
        if new is not None and old is not None and new != old:
            raise InputError(
                f"max_completion_tokens ({new}) and max_tokens ({old}) differ; give one",
                param="max_completion_tokens",
            )
        limit = old if new is None else new
        if limit == 0 and not self.wants_prompt:
            raise InputError(
                f"{self.spelling('max_tokens')} must be at least 1, unless prompt_logprobs or echo "
                "asks for the prompt",
                param=self.spelling("max_tokens"),
            )
        return limit


AskT = TypeVar("AskT", bound=Ask)
