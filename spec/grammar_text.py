"""What a client wrote, as the grammar library reads it; and what the library objects to, in words.

Used by `grammar_compiler`. All JSON is written as Python's `json.dumps` writes it, on one line with
one space behind every comma and colon of the structure and no other: a small model cannot lose
itself in white space, and most of the structure is forced, so that it is drafted for nothing. The
properties of an object come in the order of its schema.

A regular expression is one of Rust's `regex` crate (so is one within a schema or a Lark grammar):
no look-around, no back-references; it matches the whole text. Lark grammars are the library's
dialect: terminals match as far as they can, as by any lexer; white space is what `%ignore` says.

The library can force: where only one text can follow, it allows only the tokens that the tokenizer
would write it with. To see how far that text goes it takes as long as it likes, for ever with a
terminal that repeats and cannot end. So it may do that only where what can be forced was written
out by the client, in names and values; elsewhere every token that fits is allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from llguidance import regex_to_lark

from .grammar_schema import read_schema
from .params import Grammar, GrammarKind

JSON_OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""Read by the library as the schema's `x-guidance`."""

NOUNS: Mapping[GrammarKind, str] = {
    "json_object": "the JSON object",
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LARK = re.compile(
    r"""
      (?P<skip> // [^\n]* | \# [^\n]* | "(?:\\.|[^"\\])*" | /(?:\\.|[^/\\\n])+/ )
    | (?P<token> <[^<>\n]*> )
    | (?P<directive> %llguidance\b )
    | ^ [ \t]* [!?]* [a-z_][\w-]* \[ (?P<options>[^\]\n]*) \]
    """,
    re.VERBOSE | re.MULTILINE,
)
_WORDS = (
    (re.compile(r"failed to compile JSON schema: "), ""),
    (re.compile(r'^invalid regex ".*" \(in regex\): '), ""),
    (re.compile(r"Unimplemented keys: (.*)"), r"these keywords are not supported: \1"),
    (re.compile(r"oneOf constraints are not .*"), "oneOf is only supported where no two branches "
     "can match the same value; anyOf is the other choice"),
)  # fmt: skip
LONGEST_OBJECTION = 300

LONGEST_FORCED = 16 * 1024
"""Characters of a grammar that may force: what follows is written out anew at every token."""


def library_text(grammar: Grammar) -> str:
    """The grammar in the library's own form. ValueError, in a sentence, for what it is sure not to
    take; the rest is for the library to say."""
    try:
        grammar.text.encode()
    except UnicodeEncodeError as error:
        noun = NOUNS[grammar.kind]
        raise ValueError(f"{noun} is not valid Unicode at character {error.start}") from error
    return _READERS[grammar.kind](grammar.text)


def objection(grammar: Grammar, error: str) -> str:
    """A sentence from what the library says when it refuses a grammar."""
    error = error.partition("<state>")[0].partition("<non-verbose/>")[0]
    found = re.search(r"\berror: (.+)", error)
    said = found[1] if found else error.partition("\n")[0]
    said = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", said.strip())
    if grammar.kind != "grammar":
        said = re.sub(r"^line \d+, column \d+: ", "", said)
    for pattern, words in _WORDS:
        said = pattern.sub(words, said)
    return f"{NOUNS[grammar.kind]} cannot be used: {said[:LONGEST_OBJECTION]}"


def _json_object(_: str) -> str:
    return _schema({"type": "object"})


def _json_schema(text: str) -> str:
    return _schema(read_schema(text))


def _schema(schema: dict[str, object]) -> str:
    try:
        text = json.dumps(schema | {"x-guidance": JSON_OPTIONS})
    except RecursionError:
        raise ValueError("the JSON schema is nested too deeply") from None
    free = '"pattern' in text or len(text) > LONGEST_FORCED
    return _wrap(f"start: %json {text}", free=free)


def _choice(text: str) -> str:
    try:
        choices = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise ValueError("the choices are a list of strings")
    if not choices:
        raise ValueError("the list of choices admits nothing: it is empty")
    return _terminal("|".join(map(_literally, choices)), free=len(text) > LONGEST_FORCED)


def _literally(text: str) -> str:
    escaped = _SPECIAL.sub(r"\\\g<0>", text)
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", escaped)


def _regex(text: str) -> str:
    return _terminal(text, free=True)


def _terminal(regex: str, *, free: bool) -> str:
    return _wrap(f"start: /{regex_to_lark(regex, '')}/", free=free)


def _lark(text: str) -> str:
    """The grammar as it is. What has nothing to do with its text is refused: tokens without a
    text, and orders to the sampler that nobody here would follow."""
    for found in _LARK.finditer(text):
        if found["token"]:
            raise ValueError(f"the grammar names the token {found['token']}; it can only hold text")
        if found["directive"]:
            raise ValueError("the grammar's directive %llguidance is not supported")
        for option in (found["options"] or "").split(","):
            name = option.partition("=")[0].strip()
            if name not in ("", "lazy", "suffix"):
                raise ValueError(f"the grammar's rule option {name!r} is not supported")
    return _wrap(text, free=True)


def _wrap(lark: str, *, free: bool) -> str:
    """free: nothing is forced."""
    if free:
        lark += '\n%llguidance {"no_forcing": true}\n'
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


_READERS: Mapping[GrammarKind, Callable[[str], str]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
