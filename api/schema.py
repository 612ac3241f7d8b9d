"""What a client may send to the two generating endpoints, and how it becomes a `Submit`.

Read by the HTTP handlers and by the socket. Decoding is strict: an unknown field, a wrong type and
a field whose value would ask for something this server does not do are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ..actors.messages import ChatPrompt, Prompt, Submit, TextPrompt, TokenPrompt
from ..spec.params import MAX_LOGPROBS, InputError, SamplingParams, Speculation, check
from .errors import from_validation, model_not_found
from .neutral import MESSAGE_NEUTRAL, NEUTRAL, without_neutral

MAX_CHOICES = 128
INT32_MAX = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Limit = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Alternatives = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
_DEFAULT = SamplingParams()


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1)]

    def turn(self) -> dict[str, str]:
        """The message as the chat template reads it."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints share. Defaults are the sampler's own."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    stop: str | list[str] = []
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] = 1
    seed: int | None = None
    temperature: float = _DEFAULT.temperature
    top_p: float = _DEFAULT.top_p
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = _DEFAULT.top_k
    min_p: float = _DEFAULT.min_p
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = []
    user: str | None = None
    speculation: Speculation = _DEFAULT.speculation

    def alternatives(self) -> int | None:
        """How many alternatives to report per token; None: no log probabilities."""
        raise NotImplementedError

    def content(self) -> Prompt:
        """The prompt in the engine's words."""
        raise NotImplementedError

    def submit(self, request: str) -> Submit:
        """The whole request, checked. Raises InputError naming the field at fault."""
        if self.stream_options is not None and not self.stream:
            raise InputError(
                "stream_options is only allowed when stream is true", param="stream_options"
            )
        params = SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            max_tokens=self._limit(),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=self.alternatives(),
            speculation=self.speculation,
        )
        check(params)
        return Submit(request, self.content(), params, self.n)

    def spelling(self, param: str | None) -> str | None:
        """A parameter's name as this client wrote it."""
        if param == "max_tokens" and self.max_tokens is None and self.max_completion_tokens:
            return "max_completion_tokens"
        return param

    def _limit(self) -> int | None:
        new, old = self.max_completion_tokens, self.max_tokens
        if new is not None and old is not None and new != old:
            raise InputError(
                f"max_completion_tokens ({new}) and max_tokens ({old}) differ; give one",
                param="max_completion_tokens",
            )
        return old if new is None else new


class ChatAsk(Ask, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    logprobs: bool = False
    top_logprobs: Alternatives | None = None

    def alternatives(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError(
                "top_logprobs is only allowed when logprobs is true", param="top_logprobs"
            )
        return (self.top_logprobs or 0) if self.logprobs else None

    def content(self) -> Prompt:
        return ChatPrompt(tuple(message.turn() for message in self.messages))


class CompletionAsk(Ask, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Alternatives | None = None

    def alternatives(self) -> int | None:
        return self.logprobs

    def content(self) -> Prompt:
        prompt: str | list[Any] = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise InputError("prompt: only one prompt per request", param="prompt")
            prompt = prompt[0]
        if not prompt:
            raise InputError("prompt must not be empty", param="prompt")
        if isinstance(prompt, str):
            return TextPrompt(prompt)
        if not all(isinstance(token, int) for token in prompt):
            raise InputError("prompt: token ids and texts cannot be mixed", param="prompt")
        return TokenPrompt(tuple(prompt))


AskT = TypeVar("AskT", bound=Ask)


def decode_json(raw: bytes | str) -> dict[str, Any]:
    """A JSON object. Raises InputError (400, code `invalid_json`) for anything else."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise InputError(f"this is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InputError("a JSON object is expected", code="invalid_json")
    return fields


def decode_ask(fields: dict[str, Any], kind: type[AskT], model: str) -> AskT:
    """Typed parameters for the served `model`.

    Raises InputError naming the field: unknown, unsupported, of a wrong type, or (404) a model
    that is not served. A null stands for a field that is not given.
    """
    fields = without_neutral(fields, NEUTRAL)
    names = kind.__struct_fields__
    fields = {key: it for key, it in fields.items() if it is not None or key not in names}
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [
            without_neutral(message, MESSAGE_NEUTRAL, f"messages[{i}].")
            if isinstance(message, dict)
            else message
            for i, message in enumerate(messages)
        ]
    try:
        ask = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise from_validation(error) from None
    except OverflowError:
        raise InputError("a number is out of range", code="invalid_value") from None
    if ask.model != model:
        raise model_not_found(ask.model)
    return ask
