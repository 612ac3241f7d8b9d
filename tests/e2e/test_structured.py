"""Outputs that must keep to a format, over HTTP, from the demo model at temperature 1 while it is
drafted for: a small model that rambles, so whatever a mask lets through comes sooner or later."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema
import openai
import pytest
from asking import METHODS
from prompts import asked

from paceline.api.client import Client
from paceline.api.received import Answer, ApiError

pytestmark = pytest.mark.demo

AT_ONCE = 8
LONGEST = 400


@dataclass(frozen=True)
class Format:
    """What is asked, the fields that say what the answer must look like, and whether it does.

    bounded: whether every answer has an end within LONGEST tokens.
    """

    question: str
    fields: dict[str, Any]
    fits: Callable[[str], object]
    bounded: bool = True

    @property
    def response_format(self) -> dict[str, Any]:
        return self.fields["response_format"]


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _json(question: str, schema: dict[str, Any], *, bounded: bool = True) -> Format:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    validator = jsonschema.Draft202012Validator(schema)
    return Format(
        question,
        {"response_format": wanted},
        lambda text: validator.validate(json.loads(text)),
        bounded,
    )


def _regex(question: str, pattern: str) -> Format:
    def fits(text: str) -> None:
        assert re.fullmatch(pattern, text)

    return Format(question, {"response_format": {"type": "regex", "pattern": pattern}}, fits)


def _choice(question: str, *choices: str) -> Format:
    def fits(text: str) -> None:
        assert text in choices

    wanted = {"type": "choice", "choices": list(choices)}
    return Format(question, {"response_format": wanted}, fits)


def _is_object(text: str) -> None:
    assert type(json.loads(text)) is dict


def _is_sum(text: str) -> None:
    assert re.fullmatch(r"[0-9 ()+*]+", text)
    compile(re.sub(r"\b0+(?=[0-9])", "", text), "sum", "eval")


SHORT = {"type": "string", "maxLength": 24}
COUNT = {"type": "integer", "minimum": 0, "maximum": 100000}
SUM = """
start: sum
sum: atom (" + " atom){0,3}
atom: NUMBER | NUMBER " * " NUMBER | "(" NUMBER " + " NUMBER ")"
NUMBER: /[0-9]{1,4}/
"""
FORMATS = {
    "person": _json(
        "Describe a person as JSON.", _object(name=SHORT, age=COUNT, married={"type": "boolean"})
    ),
    "order": _json(
        "Write an order of a book shop as JSON.",
        _object(customer=_object(name=SHORT, city=SHORT), items={
            "type": "array", "minItems": 1, "maxItems": 2,
            "items": _object(title=SHORT, price={
                "type": "number", "minimum": 1, "maximum": 99, "multipleOf": 0.5})}),
    ),
    "shirt": _json(
        "Describe a shirt as JSON.",
        _object(colour={"enum": ["red", "green", "dark blue"]}, size={"enum": ["S", "M", "L"]},
                price={"enum": [10, 12.5, None]}, kind={"const": "shirt"}),
    ),
    "codes": _json(
        "Invent a product code and a slug as JSON.",
        _object(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
                slug={"type": "string", "pattern": "^[a-z]{1,9}(-[a-z]{1,9}){0,3}$"}),
    ),
    "event": _json(
        "Describe an event as JSON.",
        _object(title=SHORT, day={"type": "string", "format": "date"},
                id={"type": "string", "format": "uuid"}),
    ),
    "shape": _json(
        "Describe a shape as JSON.",
        {"oneOf": [_object(kind={"const": "circle"}, radius=COUNT),
                   _object(kind={"const": "box"}, width=COUNT, height=COUNT)]},
    ),
    "merged": _json(
        "Give a name and a small number as JSON.",
        {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"n": {"maximum": 9}}}],
         "$defs": {"base": _object(n=COUNT, name=SHORT)}},
    ),
    "mixed list": _json(
        "Give a list of things as JSON.",
        {"type": "array", "minItems": 1, "maxItems": 4,
         "items": {"anyOf": [{"type": "null"}, SHORT, COUNT, _object(ok={"type": "boolean"})]}},
    ),
    "tree": _json(
        "Draw a family tree as JSON.",
        {"$ref": "#/$defs/node", "$defs": {"node": _object(name=SHORT, children={
            "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2})}},
        bounded=False,
    ),
    "any object": Format("Describe a cat as JSON, in one short line.",
                         {"response_format": {"type": "json_object"}}, _is_object, bounded=False),
    "date": _regex("On which day was the moon landing?", r"(19|20)[0-9]{2}-[01][0-9]-[0-3][0-9]"),
    "sentence": _regex("Say something about cats.", r"[A-Z][a-z]{0,9}( [a-z]{1,10}){2,8}\."),
    "answer": _choice("Is the sky blue?", "yes", "no", "yes, mostly", "I do not know"),
    "symbols": _choice("Pick one.", "a.b*", "(", '"é', "a\nb", "[x]|y"),
    "sum": Format("Write a sum.", {"response_format": {"type": "grammar", "grammar": SUM}},
                  _is_sum),
}  # fmt: skip


async def ask(client: Client, wanted: Format, seed: int, method: str, **changes: Any) -> Answer:
    parameters = {
        "temperature": 1,
        "max_tokens": LONGEST,
        "seed": seed,
        "speculation": METHODS[method],
        **wanted.fields,
        **changes,
    }
    return await client.chat("demo", asked(wanted.question), **parameters)


async def ask_all(
    client: Client, ways: list[tuple[str, int, str]]
) -> dict[tuple[str, int, str], Answer]:
    """Answers to formats by name, seed and method, some at once."""
    seats = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, seed: int, method: str) -> Answer:
        async with seats:
            return await ask(client, FORMATS[name], seed, method)

    async with asyncio.TaskGroup() as group:
        tasks = {way: group.create_task(one(*way)) for way in ways}
    return {way: task.result() for way, task in tasks.items()}


@pytest.mark.parametrize(
    ("seeds", "methods"),
    [
        pytest.param(1, ["ngram"], id="quick"),
        pytest.param(
            17, ["ngram", "draft"], id="full", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]
        ),
    ],
)
async def test_every_output_keeps_to_its_format(client, seeds, methods):
    """In full 17 seeds of 15 formats, drafted in two ways: 510 outputs."""
    ways = [(name, seed, method) for name in FORMATS for seed in range(seeds) for method in methods]
    answers = await ask_all(client, ways)
    drafted = accepted = unfinished = 0
    for (name, seed, method), answer in answers.items():
        (text,), (reason,) = answer.texts, answer.finish_reasons
        drafted += answer.usage.speculation.drafted
        accepted += answer.usage.speculation.accepted
        if reason == "length" and not FORMATS[name].bounded:
            unfinished += 1
            continue
        assert reason == "stop", (name, seed, method, text)
        try:
            FORMATS[name].fits(text)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, {method}: {text!r}: {error}") from error
    assert drafted > accepted > 0
    assert unfinished <= len(answers) / 10


async def test_guesses_do_not_change_what_keeps_to_a_format(client):
    names = ["shirt", "sum", "sentence", "answer"]
    answers = await ask_all(client, [(name, 3, method) for name in names for method in METHODS])
    for name in names:
        texts = {method: answers[name, 3, method].texts for method in METHODS}
        assert texts["ngram"] == texts["draft"] == texts["off"]
        assert answers[name, 3, "off"].usage.speculation.drafted == 0


async def test_what_the_format_forces_is_drafted_for_nothing(client):
    """Long names of which nobody has spoken: the n-grams alone would know none."""
    names = [f"{word}_of_the_{place}" for word in ("keeper", "ward") for place in ("moss", "reed")]
    wanted = _json("Answer yes or no.", _object(**{name: {"type": "boolean"} for name in names}))
    answer = await ask(client, wanted, 1, "ngram")
    wanted.fits(answer.texts[0])
    spent = answer.usage
    assert spent.speculation.accepted > spent.completion_tokens / 2
    assert spent.speculation.steps < spent.completion_tokens / 2


async def test_the_other_spellings_say_the_same(client):
    spellings = {
        "shirt": ("guided_json", lambda it: it["json_schema"]["schema"]),
        "date": ("guided_regex", lambda it: it["pattern"]),
        "answer": ("guided_choice", lambda it: it["choices"]),
        "sum": ("guided_grammar", lambda it: it["grammar"]),
    }
    for name, (field, read) in spellings.items():
        wanted = FORMATS[name]
        other = Format(wanted.question, {field: read(wanted.response_format)}, wanted.fits)
        first, second = await asyncio.gather(
            *(ask(client, spelling, 4, "ngram") for spelling in (wanted, other))
        )
        assert first.texts == second.texts
        wanted.fits(second.texts[0])


async def test_choices_streams_and_completions_keep_to_it_too(client, official):
    wanted = FORMATS["person"]
    several = await ask(client, wanted, 9, "ngram", n=3)
    assert len(set(several.texts)) > 1
    for text in several.texts:
        wanted.fits(text)

    stream = await official.chat.completions.create(
        model="demo",
        messages=asked(wanted.question),
        temperature=1,
        seed=9,
        max_tokens=LONGEST,
        response_format=wanted.response_format,
        stream=True,
        extra_body={"speculation": METHODS["ngram"]},
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == several.texts[0]

    completed = await client.complete(
        "demo", "A person as JSON: ", temperature=1, seed=2, max_tokens=LONGEST, **wanted.fields
    )
    wanted.fits(completed.texts[0])


async def test_what_cannot_be_kept_to_is_refused(client, official):
    refusals = [
        ({"guided_regex": "a(?=b)"}, "guided_regex", "look-ahead"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "guided_regex"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
        ({"guided_json": {"const": 1 - 2**63}}, "guided_json", "beyond 2^53"),
    ]
    for fields, param, words in refusals:
        with pytest.raises(ApiError) as refused:
            await client.chat("demo", asked("Hello"), max_tokens=4, **fields)
        assert (refused.value.status, refused.value.param) == (400, param)
        assert words in refused.value.message
    schema = {"type": "integer", "minimun": 3}
    with pytest.raises(openai.BadRequestError) as wrong:
        await official.chat.completions.create(
            model="demo",
            messages=asked("Hello"),
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )
    assert wrong.value.param == "response_format"
    assert "minimun" in wrong.value.message


async def test_a_grammar_that_kills_its_compiler_harms_nobody(client):
    """A chain of references that overflows the stack of whoever follows it."""
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
    schema = {"$ref": "#/$defs/d0", "$defs": links | {"d5000": {"type": "null"}}}
    talking = asyncio.create_task(ask(client, FORMATS["shirt"], 5, "ngram"))
    with pytest.raises(ApiError, match="too complex"):
        await client.chat("demo", asked("Hello"), guided_json=schema)
    FORMATS["shirt"].fits((await talking).texts[0])
