"""Grammars over a tiny tokenizer: random texts under the masks match, and masks are consistent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from paceline.models.tokenizer import TextCodec
from paceline.spec.grammar import Grammars
from paceline.spec.params import Grammar
from support.tiny_models import VOCAB, save_tokenizer

ENDS = frozenset({1})
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "ccc"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST = 'start: "[" NUMBER ("," NUMBER)* "]"\nNUMBER: /[0-9]{1,3}/'
VALID = {
    Grammar("regex", "(ab|cd)+[0-9]{2,3}"): lambda t: re.fullmatch("(ab|cd)+[0-9]{2,3}", t),
    Grammar("choice", '["yes", "no", "not yet"]'): lambda t: t in ("yes", "no", "not yet"),
    Grammar("json_object"): lambda t: isinstance(json.loads(t), dict),
    Grammar("json_schema", json.dumps(PERSON)): lambda t: (
        jsonschema.validate(json.loads(t), PERSON) is None
    ),
    Grammar("grammar", LIST): lambda t: re.fullmatch(r"\[\d{1,3}(,\d{1,3})*\]", t),
}
each_grammar = pytest.mark.parametrize("grammar", VALID, ids=lambda g: g.kind)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("literate")
    save_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def codec(directory: Path) -> TextCodec:
    return TextCodec.load(directory)


@pytest.fixture(scope="module")
def grammars(directory: Path) -> Iterator[Grammars]:
    made = Grammars(directory / "tokenizer.json", VOCAB, ENDS)
    yield made
    made.close()


def walk(grammars: Grammars, grammar: Grammar, seed: int, most: int = 200) -> list[int] | None:
    """A random text: every allowed token alike, an end as soon as one is likely enough."""
    rng = np.random.default_rng(seed)
    state, tokens = grammars.state(grammar), []
    while len(tokens) < most:
        (row,) = state.masks(())
        allowed = np.flatnonzero(row)
        assert len(allowed), "nothing is allowed"
        ends = [t for t in allowed if t in ENDS]
        if ends and (len(ends) == len(allowed) or rng.random() < 0.3):
            return tokens
        token = int(rng.choice([t for t in allowed if t not in ENDS]))
        state.accept([token])
        tokens.append(token)
    return None


@each_grammar
def test_random_texts_under_the_masks_match(grammars, codec, grammar):
    grammars.compile(grammar)
    ended = 0
    for seed in range(12):
        tokens = walk(grammars, grammar, seed)
        if tokens is not None:
            ended += 1
            text = codec.decode(tokens)
            assert VALID[grammar](text), text
    assert ended > 3


@each_grammar
def test_masks_of_a_draft_are_those_of_single_steps(grammars, grammar):
    grammars.compile(grammar)
    tokens = next(t for t in (walk(grammars, grammar, s) for s in range(20)) if t)[:12]
    state, single = grammars.state(grammar), grammars.state(grammar)
    rows = state.masks(tokens)
    for j, token in enumerate(tokens):
        assert np.array_equal(rows[j], single.masks(())[0])
        single.accept([token])
    assert np.array_equal(rows[-1], single.masks(())[0])
    assert np.array_equal(state.masks(())[0], rows[0]), "masks must not move the state"


@each_grammar
def test_behind_a_forbidden_draft_token_everything_is_open(grammars, grammar):
    grammars.compile(grammar)
    state = grammars.state(grammar)
    bad = int(np.flatnonzero(~state.masks(())[0])[0])
    assert state.masks([bad, bad])[1:].all()


@each_grammar
def test_forced_tokens_are_the_places_without_a_choice(grammars, grammar):
    grammars.compile(grammar)
    tokens = next(t for t in (walk(grammars, grammar, s) for s in range(20)) if t)
    state = grammars.state(grammar)
    for token in tokens:
        forced, single = state.forced(1), np.flatnonzero(state.masks(())[0])
        assert forced == (single.tolist() if len(single) == 1 else [])
        state.accept([token])


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "[a-"),
        Grammar("json_schema", "{"),
        Grammar(
            "json_schema", '{"type": "object", "unknownKeyword": 1, "not": {"type": "string"}}'
        ),
        Grammar("choice", "[]"),
        Grammar("choice", '["a", 1]'),
        Grammar("grammar", "start: missing_rule"),
    ],
    ids=lambda g: f"{g.kind}-{g.text[:12]}",
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(grammars, grammar):
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        grammars.compile(grammar)
