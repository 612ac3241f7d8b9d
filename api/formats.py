"""What an output must look like: the field `response_format`, and its other spellings.

`text`, `json_object` and `json_schema` are OpenAI's; `regex`, `choice` and `grammar` extend them.
The `guided_…` fields of other servers say the same in one field each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..spec.params import Grammar, InputError

Choices = Annotated[list[str], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1)]


class _Format(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    def grammar(self) -> Grammar | None:
        """What the whole output must match; None: anything."""
        raise NotImplementedError


class TextFormat(_Format, frozen=True, tag="text"):
    def grammar(self) -> Grammar | None:
        return None


class JsonObjectFormat(_Format, frozen=True, tag="json_object"):
    def grammar(self) -> Grammar:
        return Grammar("json_object")


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema is always kept to, so `strict` changes nothing; `name` and `description` are for
    models that are told of it."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Format, frozen=True, tag="json_schema"):
    json_schema: JsonSchema

    def grammar(self) -> Grammar:
        return Grammar("json_schema", _json(self.json_schema.schema, "response_format"))


class RegexFormat(_Format, frozen=True, tag="regex"):
    pattern: Text

    def grammar(self) -> Grammar:
        return Grammar("regex", self.pattern)


class ChoiceFormat(_Format, frozen=True, tag="choice"):
    choices: Choices

    def grammar(self) -> Grammar:
        return Grammar("choice", _json(self.choices, "response_format"))


class GrammarFormat(_Format, frozen=True, tag="grammar"):
    """grammar: context-free, in Lark's notation."""

    text: Text = msgspec.field(name="grammar")

    def grammar(self) -> Grammar:
        return Grammar("grammar", self.text)


ResponseFormat = (
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | ChoiceFormat | GrammarFormat
)


class Formatted(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that say what its output must look like; one at most."""

    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None

    def grammar(self) -> Grammar | None:
        """What the output must match; None: anything. Raises InputError when several are given."""
        given = [*self._grammars()]
        if len(given) > 1:
            (first, _), (second, _) = given[:2]
            raise InputError(f"{second} cannot be given beside {first}", param=second)
        return given[0][1] if given else None

    def format_field(self) -> str:
        """The name under which this client gave the format."""
        return next((name for name, _ in self._grammars()), "response_format")

    def _grammars(self) -> Iterator[tuple[str, Grammar]]:
        """The fields that ask for something, and what."""
        if self.response_format and (grammar := self.response_format.grammar()):
            yield "response_format", grammar
        if self.guided_json is not None:
            schema = _json(_schema(self.guided_json), "guided_json")
            yield "guided_json", Grammar("json_schema", schema)
        if self.guided_regex is not None:
            yield "guided_regex", Grammar("regex", self.guided_regex)
        if self.guided_choice is not None:
            yield "guided_choice", Grammar("choice", _json(self.guided_choice, "guided_choice"))
        if self.guided_grammar is not None:
            yield "guided_grammar", Grammar("grammar", self.guided_grammar)


def _schema(schema: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        message = f"guided_json: a JSON schema is expected: {error}"
        raise InputError(message, param="guided_json") from None


def _json(value: object, field: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        raise InputError(f"{field}: this is nested too deeply", param=field) from None
