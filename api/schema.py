"""What a client may send to each of the two generating endpoints, and how it is read.

Read by the HTTP handlers and by the socket. Decoding is strict: an unknown field, a wrong type and
a field whose value would ask for something this server does not do are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..actors.messages import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from ..spec.params import InputError
from .ask import Ask, AskT
from .errors import from_validation, model_not_found
from .fields import Alternatives, TokenId
from .neutral import CHAT_NEUTRAL, MESSAGE_NEUTRAL, NEUTRAL, Table, without_neutral


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


class ChatAsk(Ask, frozen=True, kw_only=True, forbid_unknown_fields=True):
    neutral: ClassVar[Table] = CHAT_NEUTRAL

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
    """echo: the prompt's text stands before the answer's, and its tokens among the logprobs."""

    neutral: ClassVar[Table] = NEUTRAL

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool = False
    logprobs: Alternatives | None = None

    def alternatives(self) -> int | None:
        return self.logprobs

    def prompt_alternatives(self) -> int | None:
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in wanted if count is not None), default=None)

    @property
    def wants_prompt(self) -> bool:
        return self.echo or super().wants_prompt

    def opening(self, decode: Callable[[Sequence[int]], str]) -> str:
        match self.content() if self.echo else None:
            case TextPrompt(text):
                return text
            case TokenPrompt(ids):
                return decode(ids)
        return ""

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
    fields = without_neutral(fields, kind.neutral)
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
