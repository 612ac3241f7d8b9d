"""Masks of grammars against a slow reference, inside draft windows, and for texts drawn at random;
and what is refused."""

from __future__ import annotations

import json
import random
import re
import threading
from datetime import date
from itertools import product

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paceline.bench.grammar_cases import BURDENS, CHOICES, KEYWORDS, LARK, REGEXES, SCHEMAS
from paceline.spec.grammar import Grammars, GrammarState
from paceline.spec.grammar_trial import Trial
from paceline.spec.params import Grammar

ENDS = ("<end>", "<over>")
PADDING = 5
"""Logits beyond the tokenizer's tokens."""

PIECES = (
    "{\"", "\": ", "\", \"", "\"}", "}}", "[]", ", ", "true", "false", "null", "name", "na", "me",
    "value", "child", "ren", "kind", "ab", "abc", "bc", "10", "20", "- ", " the", "é",
)  # fmt: skip
WIDE = [*(bytes([i]) for i in range(256)), *(piece.encode() for piece in PIECES)]
"""All bytes, and some longer tokens."""

OBJECT = Grammar("json_object")


def _names() -> dict[int, str]:
    """How byte-level tokenizers spell bytes: printable ones as they are, the others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [i for i in range(256) if i not in plain]
    return {i: chr(i) for i in plain} | {i: chr(256 + n) for n, i in enumerate(others)}


NAMES = _names()


class Vocabulary:
    """A byte-level tokenizer of these tokens, shorter ones first, and of two that end a text."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        spelled = ["".join(NAMES[byte] for byte in token) for token in tokens]
        known = set(spelled)
        merges = [
            (word[:i], word[i:])
            for word in spelled
            for i in range(1, len(word))
            if word[:i] in known and word[i:] in known
        ]
        vocab = {word: i for i, word in enumerate(spelled)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(end, special=True) for end in ENDS])
        self.json = tokenizer.to_str()
        self.ends = frozenset(range(len(tokens), len(tokens) + len(ENDS)))
        self.size = len(tokens) + len(ENDS) + PADDING

    def grammars(self, **options: int) -> Grammars:
        return Grammars(self.json, self.size, self.ends, **options)

    def text(self, tokens: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in tokens if token not in self.ends)


def allowed(row: np.ndarray) -> set[int]:
    return set(np.flatnonzero(row).tolist())


def start(grammars: Grammars, grammar: Grammar) -> GrammarState:
    grammars.compile(grammar)
    return grammars.state(grammar)


def schema(name: str) -> Grammar:
    return Grammar("json_schema", json.dumps(SCHEMAS[name]))


EVERY = [
    OBJECT,
    Grammar("choice", json.dumps(CHOICES)),
    Grammar("grammar", LARK),
    *(Grammar("regex", regex) for regex in REGEXES.values()),
    *(schema(name) for name in SCHEMAS),
]


@pytest.fixture(scope="module")
def wide() -> Vocabulary:
    return Vocabulary(WIDE)


@pytest.fixture(scope="module")
def grammars(wide):
    grammars = wide.grammars()
    yield grammars
    grammars.close()


def draw(state: GrammarState, vocabulary: Vocabulary, seed: int, longest: int = 400) -> list[int]:
    """Tokens drawn under the masks from random logits, in which what closes (quotes, brackets, a
    null, the end) is likelier the longer the text is; without the end."""
    rng = np.random.default_rng(seed)
    closing = np.array([token[:1] in (b'"', b"]", b"}", b"n") for token in vocabulary.tokens])
    closing = np.append(closing, np.ones(vocabulary.size - len(closing)))
    tokens: list[int] = []
    while len(tokens) < longest:
        (row,) = state.masks([])
        logits = rng.normal(size=vocabulary.size) * 3 + closing * len(tokens) / 20
        token = int(np.where(row, logits, -np.inf).argmax())
        assert row[token], f"a dead end behind {vocabulary.text(tokens)!r}: {state.problem}"
        if token in vocabulary.ends:
            return tokens
        state.accept([token])
        tokens.append(token)
    raise AssertionError(f"no end in {longest} tokens: {vocabulary.text(tokens)!r}")


# --- against a slow reference --------------------------------------------------------------------

NARROW = Vocabulary([b"a", b"b", b"c", b"ab", b"bc", b"abc", b"aa", b"\xc3", b"\xa9", b"\xa8"])
LANGUAGES = [
    "a(b|c){1,3}(ab)?", "(a|ab)(c|bc)", "[abc]{0,4}", "(ab|a){1,3}", "a?b?c?", "(abc){2}",
    "a{3}|a{5}", "é|è|a", "é(é|a)?", "", "a|", "[^ab]", "^a|b$",
]  # fmt: skip


def language(regex: str) -> set[bytes]:
    """Every text that the regular expression matches, up to six characters: all of it."""
    texts = ("".join(letters) for n in range(7) for letters in product("abcéè", repeat=n))
    return {text.encode() for text in texts if re.fullmatch(regex, text)}


def reference(texts: set[bytes], begun: bytes) -> set[int]:
    """What may follow: tokens that lead towards a text, ends where it is one."""
    follow = {
        i
        for i, token in enumerate(NARROW.tokens)
        if any(text.startswith(begun + token) for text in texts)
    }
    return follow | (NARROW.ends if begun in texts else set())


@pytest.fixture(scope="module")
def narrow():
    grammars = NARROW.grammars()
    yield grammars
    grammars.close()


@pytest.mark.parametrize("regex", LANGUAGES)
def test_a_regular_expression_allows_exactly_what_leads_to_a_match(narrow, regex):
    texts = language(regex)
    state = start(narrow, Grammar("regex", regex))
    found: set[bytes] = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        tokens = waiting.pop()
        begun = NARROW.text(tokens)
        row = allowed(state.masks(tokens)[-1])
        if regex != "[^ab]":  # characters that no token of the reference spells
            assert row == reference(texts, begun), begun
        if row & NARROW.ends:
            found.add(begun)
        waiting += [[*tokens, token] for token in row - NARROW.ends]
    assert found == texts


@pytest.mark.parametrize(
    "choices", [["abc", "abcbc", "b"], ["aaaa"], ["aab", "aaab", "ab"], ["é", "è"], ["", "ca"]]
)
def test_choices_can_all_be_reached_and_nothing_else(narrow, choices):
    """Where only one character can follow, one way to write it is enough; else all are allowed."""
    texts = {choice.encode() for choice in choices}
    state = start(narrow, Grammar("choice", json.dumps(choices)))
    found: set[bytes] = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        tokens = waiting.pop()
        begun = NARROW.text(tokens)
        row, full = allowed(state.masks(tokens)[-1]), reference(texts, begun)
        assert row <= full
        assert row & NARROW.ends == full & NARROW.ends
        nexts = {text[len(begun) : len(begun) + 1] for text in texts if text.startswith(begun)}
        assert row == full if len(nexts) > 1 else row
        if row & NARROW.ends:
            found.add(begun)
        waiting += [[*tokens, token] for token in row - NARROW.ends]
    assert found == texts


# --- inside a draft window -----------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.integers(0, 2**32), st.integers(0, 30), st.integers(0, 8))
def test_masks_of_a_draft_are_those_of_its_tokens_one_by_one(grammars, wide, grammar, seed, at, k):
    """A draft that goes wrong at any place, or nowhere, or holds ends."""
    choose = random.Random(seed)
    state, twin, draft = start(grammars, grammar), start(grammars, grammar), []
    for i in range(at + k):
        row = allowed(twin.masks([])[0])
        token = choose.choice(sorted(row))
        twin.accept([token])
        if i < at:
            state.accept([token])
        else:
            draft.append(token)
    if draft and choose.random() < 0.5:
        draft[choose.randrange(k)] = choose.randrange(wide.size + 2)
    before = state.masks([])
    masks = state.masks(draft)
    assert masks.shape == (1 + len(draft), wide.size)
    assert (state.masks([]) == before).all()
    assert (state.masks(draft) == masks).all()
    legal = True
    for j, row in enumerate(masks):
        if not legal:
            assert row.all()
            continue
        assert (row == state.masks([])[0]).all()
        if j < len(draft):
            legal = draft[j] < wide.size and bool(row[draft[j]])
            if legal:
                state.accept([draft[j]])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 9))
def test_forced_tokens_are_the_places_without_a_choice(grammars, wide, grammar, seed, at, limit):
    choose = random.Random(seed)
    state = start(grammars, grammar)
    for _ in range(at):
        state.accept([choose.choice(sorted(allowed(state.masks([])[0])))])
    forced = state.forced(limit)
    assert state.forced(limit) == forced
    expected: list[int] = []
    while len(expected) < limit and len(row := allowed(state.masks([])[0])) == 1:
        expected += row
        state.accept(expected[-1:])
    assert forced == expected


def test_names_are_forced_in_the_tokenizers_own_tokens(grammars, wide):
    state = start(grammars, schema("person"))
    forced = state.forced(100)
    text = wide.text(forced)
    assert b'{"name": "'.startswith(text)
    assert len(text) >= len(b'{"name')
    assert forced == Tokenizer.from_str(wide.json).encode('{"name": "').ids[: len(forced)]


# --- ends ----------------------------------------------------------------------------------------


def test_ends_are_allowed_where_the_text_may_end_and_change_nothing(narrow):
    state = start(narrow, Grammar("regex", "(ab)+"))
    end, over = sorted(NARROW.ends)
    ab = NARROW.tokens.index(b"ab")
    masks = state.masks([ab, end, ab, over, over])
    assert [bool(row[end]) for row in masks] == [False, True, True, True, True, True]
    assert all(row[end] == row[over] for row in masks)
    assert not state.finished
    state.accept([ab, end, over])
    assert (state.masks([ab])[0] == masks[1]).all()


def test_a_text_is_finished_when_nothing_but_an_end_may_follow(narrow):
    a, b = NARROW.tokens.index(b"a"), NARROW.tokens.index(b"b")
    state = start(narrow, Grammar("regex", "ab?"))
    for token, finished in ((a, False), (b, True), (min(NARROW.ends), True)):
        assert not state.finished
        state.accept([token])
        assert state.finished == finished
        if finished:
            break
    assert allowed(state.masks([])[0]) == NARROW.ends
    assert start(narrow, Grammar("choice", '[""]')).finished


def test_with_one_end_token_the_end_is_forced():
    end = min(NARROW.ends)
    grammars = Grammars(NARROW.json, NARROW.size, frozenset({end}))
    state = start(grammars, Grammar("choice", '["abc"]'))
    assert state.forced(9) == [NARROW.tokens.index(b"abc"), end]
    assert state.forced(1) == [NARROW.tokens.index(b"abc")]
    grammars.close()


def test_fewer_logits_than_tokens_is_no_matter():
    grammars = Grammars(NARROW.json, 3, NARROW.ends & {2})
    assert start_error(grammars, Grammar("regex", "a"))
    grammars = Grammars(NARROW.json, len(NARROW.tokens) + 1, frozenset({len(NARROW.tokens)}))
    row = start(grammars, Grammar("regex", "[ab]+")).masks([])[0]
    assert {NARROW.tokens[i] for i in allowed(row)} == {b"a", b"b", b"ab", b"aa"}
    grammars.close()


# --- whole texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_drawn_at_random_fulfil_their_schema(grammars, wide, name):
    checker = jsonschema.FormatChecker(formats=("uuid", "ipv4", "email"))
    checker.checks("date", raises=ValueError)(  # every February may have 29 days
        lambda day: date.fromisoformat(re.sub("02-29$", "02-28", day))
    )
    validator = jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=checker)
    for seed in range(14):
        text = wide.text(draw(start(grammars, schema(name)), wide, seed)).decode()
        validator.validate(json.loads(text))
        assert not re.search(r"\s\s", re.sub(r'"(\\.|[^"\\])*"', '""', text))


def test_texts_drawn_at_random_fulfil_the_other_grammars(grammars, wide):
    for seed in range(12):
        assert type(json.loads(wide.text(draw(start(grammars, OBJECT), wide, seed)))) is dict
        for regex in REGEXES.values():
            text = wide.text(draw(start(grammars, Grammar("regex", regex)), wide, seed)).decode()
            assert re.fullmatch(regex, text)
        sum_ = wide.text(draw(start(grammars, Grammar("grammar", LARK)), wide, seed)).decode()
        assert re.fullmatch(r"[0-9.()*+ -]+", sum_)
        compile(re.sub(r"\b0+(?=[0-9])", "", sum_), "sum", "eval")


def test_a_choice_is_a_text_and_not_an_expression(grammars, wide):
    choices = ["a.b*", "(", "[x]", "a\nb\t\0", "{1}", "^$|\\", "é-😀", '"#&~/', ""]
    grammar = Grammar("choice", json.dumps(choices))
    seen = {wide.text(draw(start(grammars, grammar), wide, seed)).decode() for seed in range(200)}
    assert seen == set(choices)


# --- refusals ------------------------------------------------------------------------------------


def start_error(grammars: Grammars, grammar: Grammar) -> str:
    with pytest.raises(ValueError, match=r"\w \w") as refused:
        grammars.compile(grammar)
    return str(refused.value)


@pytest.mark.parametrize("keyword", KEYWORDS, ids=lambda keyword: keyword.name)
def test_no_keyword_is_overlooked(grammars, wide, keyword):
    """A schema is refused, or admits the valid value and not the invalid one."""
    grammar = Grammar("json_schema", json.dumps(keyword.schema))
    error = None
    try:
        grammars.compile(grammar)
    except ValueError as refusal:
        error = str(refusal)
    if error is not None:
        assert error.startswith(("the JSON schema", "minProperties"))
        return
    assert keyword.valid is not None
    assert fits(grammars.state(grammar), wide, keyword.valid)
    assert not fits(grammars.state(grammar), wide, keyword.invalid)


def fits(state: GrammarState, vocabulary: Vocabulary, text: str) -> bool:
    """Whether the text can be written to its end, by the longest token allowed each time."""
    left = text.encode()
    while left:
        row = allowed(state.masks([])[0]) - vocabulary.ends
        tokens = [token for token in row if left.startswith(vocabulary.tokens[token])]
        if not tokens:
            return False
        longest = max(tokens, key=lambda token: len(vocabulary.tokens[token]))
        state.accept([longest])
        left = left[len(vocabulary.tokens[longest]) :]
    return bool(allowed(state.masks([])[0]) & vocabulary.ends)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", "{", "is not JSON"),
        ("json_schema", "[1]", "is an object"),
        ("json_schema", "false", "admits nothing"),
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"minLength": "3"}', "minLength"),
        ("json_schema", '{"properties": {"a": {"uniqueItems": true}}}', "#/properties/a"),
        ("json_schema", '{"$ref": "#/a", "x-a": 1, "a": {"not": {}}}', "'a'"),
        ("json_schema", '{"$ref": "#/x-a", "x-a": {"not": {}}}', "'not' at #/x-a"),
        ("json_schema", '{"x-guidance": {"lenient": true}}', "x-guidance"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "none"),
        ("json_schema", '{"$ref": "https://example.com/schema"}', "example.com"),
        ("json_schema", '{"type": "number", "minimum": 3, "maximum": 1}', "minimum"),
        ("json_schema", '{"enum": []}', "anyOf is empty"),
        ("json_schema", '{"maximum": 1e300}', "beyond 2^53"),
        ("json_schema", '{"const": NaN}', "NaN"),
        ("json_schema", '{"items": ' * 9000 + "{}" + "}" * 9000, "nested too deeply"),
        ("json_schema", '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', "endlessly"),
        ("json_schema", '{"oneOf": [{"minimum": 1}, {"maximum": 5}]}', "anyOf"),
        ("json_schema", '{"title": "\ud800"}', "Unicode"),
        ("regex", "(a", "unclosed group"),
        ("regex", "a(?=b)b", "look-ahead"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", "a^b", "look"),
        ("regex", r"[^\s\S]", "admits nothing"),
        ("choice", "[]", "empty"),
        ("choice", '["a", 1]', "list of strings"),
        ("choice", "a", "list of strings"),
        ("grammar", 'begin: "a"', "no start rule"),
        ("grammar", "start: more", 'line 1, column 8: unknown name: "more"'),
        ("grammar", 'start: ("a"', "Expected token"),
        ("grammar", "start: start", "admits nothing"),
        ("grammar", 'start: "a" <|im_end|>', "<|im_end|>"),
        ("grammar", 'start: "a" <[7]>', "<[7]>"),
        ("grammar", "start: a\na[temperature=0.1]: /a+/", "temperature"),
        ("grammar", "start: a\na[lazy, max_tokens=3]: /a+/", "max_tokens"),
        ("grammar", '%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "%llguidance"),
        ("grammar", 'start: %json {"uniqueItems": true}', "uniqueItems"),
    ],
)
def test_what_is_refused_is_named(grammars, kind, text, words):
    error = start_error(grammars, Grammar(kind, text))
    assert words in error
    assert "\n" not in error
    assert len(error) < 400


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "<|im_end|>" /<a>[t]/ // <b> x[temperature=1]: "a"',
        "start: a # <c>\na[lazy]: /x+y/",
        'start: %json {"type": "array", "items": {"enum": ["<d>"]}}',
    ],
)
def test_what_only_looks_like_a_token_is_taken(grammars, grammar):
    grammars.compile(Grammar("grammar", grammar))


def test_remarks_in_a_schema_are_taken(grammars):
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a title", "description": "…", "examples": [1], "x-order": 3, "deprecated": True,
        "type": "object", "properties": {"minLenght": {"type": "string", "default": ""}},
    }  # fmt: skip
    grammars.compile(Grammar("json_schema", json.dumps(schema)))
    grammars.compile(Grammar("json_schema", "true"))


def test_without_an_end_token_nothing_can_be_complete():
    grammars = Grammars(NARROW.json, NARROW.size, frozenset())
    assert "no end token" in start_error(grammars, OBJECT)


# --- too much ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["5,000 $refs in a chain", "20,000 rules in a chain"])
def test_what_kills_the_compiler_is_refused_and_the_next_is_not(grammars, name):
    assert "too complex" in start_error(grammars, Grammar(*BURDENS[name]))
    grammars.compile(Grammar("regex", "after " + str(len(name))))


def test_what_takes_too_long_is_refused_and_the_next_is_not():
    trial = Trial()
    assert trial.run(lark("start: /[0-9]+/")) is None
    huge = lark(f"start: %json {BURDENS['multipleOf 99999989'][1]}")
    assert trial.run(huge, wall_seconds=0.2) == "it is too complex"
    assert trial.run(lark("start: /[0-9]+/")) is None
    trial.close()


def test_closing_ends_what_is_being_tried_out():
    trial = Trial()
    assert trial.run(lark("start: /[0-9]+/")) is None
    (child,) = trial._idle
    found: list[str | None] = []
    huge = lark(f"start: %json {BURDENS['multipleOf 99999989'][1]}")
    thread = threading.Thread(target=lambda: found.append(trial.run(huge)))
    thread.start()
    while not trial._busy:
        thread.join(0.01)
    trial.close()
    thread.join()
    assert found == ["it is too complex"]
    assert child.poll() is not None
    assert not trial._idle


def test_a_grammar_that_outgrows_the_limits_allows_nothing_and_says_so():
    tokenizer = LLTokenizer(NARROW.json, eos_token=sorted(NARROW.ends))
    text = lark("start: /(a|b){1,30}c(a|b|ab){1,30}/")
    limits = LLParserLimits(max_lexer_states=25, verbose_errors=False)
    state = GrammarState(
        LLMatcher(tokenizer, text, log_level=0, limits=limits), NARROW.size, NARROW.ends
    )
    taken = 0
    while (row := state.masks([])[0]).any():
        assert state.problem is None
        state.accept([min(allowed(row))])
        taken += 1
    assert 0 < taken < 40
    assert "too many states" in state.problem
    assert not state.masks([0, 0])[0].any()
    assert state.forced(3) == []
    assert not state.finished
    state.accept([0])


def test_a_token_that_does_not_fit_ends_it(narrow):
    state = start(narrow, Grammar("regex", "ab"))
    state.accept([NARROW.tokens.index(b"c")])
    assert "does not follow the grammar" in state.problem
    assert not state.masks([]).any()


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


# --- the cache, and threads ----------------------------------------------------------------------


def test_a_grammar_is_tried_out_once_and_forgotten_when_there_is_no_room(monkeypatch):
    grammars = NARROW.grammars(cache_bytes=250_000)
    tried: list[str] = []
    try_out = grammars._compiler.try_out
    monkeypatch.setattr(
        grammars._compiler, "try_out", lambda one: (tried.append(one.text), try_out(one))
    )
    regexes = [Grammar("regex", f"a{{{n}}}") for n in range(1, 5)]
    for regex in regexes[:2] * 2:
        grammars.compile(regex)
    assert tried == ["a{1}", "a{2}"]
    for regex in regexes:
        grammars.compile(regex)
    assert tried == ["a{1}", "a{2}", "a{3}", "a{4}"]
    assert len(grammars) == 2
    for n, regex in enumerate(regexes, 1):  # forgotten or not
        state = grammars.state(regex)
        state.accept([0] * n)
        assert state.finished
    grammars.compile(regexes[0])
    assert tried[4:] == ["a{1}"]
    grammars.close()


def test_states_are_ready_and_share_nothing(narrow, monkeypatch):
    grammar = Grammar("regex", "[ab]{2}c")
    narrow.compile(grammar, count=3)
    build = narrow._compiler.build
    built: list[Grammar] = []
    monkeypatch.setattr(narrow._compiler, "build", lambda one: (built.append(one), build(one))[1])
    states = [narrow.state(grammar) for _ in range(3)]
    assert not built
    fourth = narrow.state(grammar)
    assert built == [grammar]
    states[0].accept([0, 1])
    assert allowed(states[0].masks([])[0]) == {NARROW.tokens.index(b"c")}
    assert (states[1].masks([]) == fourth.masks([])).all()


def test_threads_compile_and_follow_at_once(wide):
    """Two threads with the same grammars in another order, and masks as one thread has them."""
    alone = wide.grammars()
    expected = {grammar: draw(start(alone, grammar), wide, 7) for grammar in EVERY}
    alone.close()
    grammars, found, errors = wide.grammars(), [], []

    def work(order: list[Grammar]) -> None:
        try:
            found.append({one: draw(start(grammars, one), wide, 7) for one in order})
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in (EVERY, EVERY[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    grammars.close()
    assert not errors
    assert found == [expected, expected]
