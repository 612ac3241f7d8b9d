"""Grammars to measure with, and to test with: schemas of every kind, expressions, a Lark grammar,
keywords that a library might overlook, and inputs that might be too much for one."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Schema = dict[str, Any]


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING: Schema = {"type": "string", "maxLength": 24}
INTEGER: Schema = {"type": "integer"}

SCHEMAS: dict[str, Schema] = {
    "person": _object(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 130},
                      member={"type": "boolean"}),
    "nested": _object(order=_object(id=INTEGER, customer=_object(
        name=STRING, address=_object(street=STRING, city=STRING, zip=STRING)))),
    "enums": _object(colour={"enum": ["red", "green", "dark blue"]}, size={"enum": [1, 2.5, None]},
                     kind={"const": "shirt"}),
    "bounds": _object(points={"type": "array", "minItems": 2, "maxItems": 4,
                              "items": _object(x={"type": "number"}, y={"type": "number"})}),
    "patterns": _object(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
                        slug={"type": "string", "pattern": "^[a-z]+(-[a-z]+){0,3}$",
                              "maxLength": 20},
                        part={"type": "string", "pattern": "ab+c", "maxLength": 12}),
    "numbers": _object(low={"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
                       step={"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 500},
                       half={"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
                       open={"type": "number"}),
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": _object(
        value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"},
                                 "maxItems": 2})}},
    "unions": {"type": "array", "minItems": 1, "maxItems": 5, "items": {"anyOf": [
        {"type": "null"}, STRING, _object(ok={"type": "boolean"}), {"type": ["integer", "array"],
                                                                  "maxItems": 1}]}},
    "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0},
            "minProperties": 1, "maxProperties": 4},
    "formats": _object(day={"type": "string", "format": "date"},
                       id={"type": "string", "format": "uuid"},
                       host={"type": "string", "format": "ipv4"},
                       mail={"type": "string", "format": "email", "maxLength": 40}),
    "merged": {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"n": {"maximum": 9}}}],
               "$defs": {"base": _object(n={"type": "integer", "minimum": 3}, s=STRING)}},
    "tuple": {"type": "array", "prefixItems": [INTEGER, STRING, {"type": "boolean"}],
              "items": False, "minItems": 3},
    "list": {"$ref": "#/$defs/link", "$defs": {"link": _object(
        value={"type": "boolean"}, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/link"}]})}},
    "optional": {"type": "object", "properties": dict.fromkeys("abcdef", STRING),
                 "required": ["b", "e"], "additionalProperties": False},
    "tagged": {"oneOf": [_object(kind={"const": "circle"}, radius=INTEGER),
                         _object(kind={"const": "box"}, width=INTEGER, height=INTEGER)]},
}  # fmt: skip

REGEXES = {
    "date": r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "phone": r"\+?[0-9]{1,3}( [0-9]{2,4}){2,4}",
    "words": r"([a-z]{1,10} ){3,8}[a-z]{1,10}\.",
    "email": r"[a-z0-9._]{1,20}@[a-z0-9]{1,15}\.(com|org|net)",
}

CHOICES = ["yes", "no", "I do not know", "yesterday"]

LARK = """
?start: sum
?sum: product | sum " + " product | sum " - " product
?product: atom | product " * " atom
?atom: NUMBER | "(" sum ")" | "-" atom
NUMBER: /[0-9]{1,4}(\\.[0-9]{1,2})?/
"""


class Keyword(NamedTuple):
    """A schema, a value that it admits (None: none is known), and one that it does not."""

    name: str
    schema: Schema
    valid: str | None
    invalid: str


KEYWORDS = tuple(Keyword(*row) for row in (
    ("uniqueItems", {"type": "array", "items": INTEGER, "uniqueItems": True}, "[1, 2]", "[1, 1]"),
    ("contains", {"type": "array", "contains": {"const": 5}}, "[5]", "[1]"),
    ("not", {"not": {"type": "string"}}, "1", '"a"'),
    ("if/then", {"type": "object", "properties": {"a": INTEGER, "b": INTEGER},
                 "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
     '{"a": 1, "b": 1}', '{"a": 1}'),
    ("dependentRequired", {"type": "object", "properties": {"a": INTEGER, "b": INTEGER},
                           "dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 1}', '{"a": 1}'),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}, '{"a": 1}',
     '{"b": 1}'),
    ("minProperties", {"type": "object", "minProperties": 2}, '{"a": 1, "b": 2}',
     '{"a": 1, "a": 2}'),
    ("maxProperties", {"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
    ("multipleOf (integer)", {"type": "integer", "multipleOf": 3}, "6", "4"),
    ("multipleOf (number)", {"type": "number", "multipleOf": 0.5}, "1.5", "0.7"),
    ("format (known)", {"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-30"'),
    ("format (unknown)", {"type": "string", "format": "colour"}, None, '"x"'),
    ("pattern, unanchored", {"type": "string", "pattern": "abc"}, '"xabcx"', '"ab"'),
    ("pattern, look-ahead", {"type": "string", "pattern": "^(?!a).*$"}, '"b"', '"a"'),
    ("pattern and maxLength", {"type": "string", "pattern": "^a*$", "maxLength": 2}, '"aa"',
     '"aaa"'),
    ("oneOf, overlapping", {"oneOf": [{"type": "integer"}, {"minimum": 5}]}, "1", "7"),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, "4", "7"),
    ("$ref with siblings", {"$defs": {"x": INTEGER}, "$ref": "#/$defs/x", "maximum": 5}, "4", "7"),
    ("unevaluatedProperties", {"type": "object", "allOf": [{"properties": {"a": INTEGER}}],
                               "unevaluatedProperties": False}, '{"a": 1}', '{"b": 1}'),
    ("minimum without type", {"minimum": 3}, "4", "1"),
    ("enum with type", {"type": "string", "enum": ["a", 1]}, '"a"', "1"),
    ("required, undeclared", {"type": "object", "required": ["z"]}, '{"z": 1}', "{}"),
    ("misspelt keyword", {"type": "string", "minLenght": 3}, None, '"a"'),
    ("const beyond 2^53", {"const": 2**63}, None, "9223372036854776000"),
    ("unfulfillable", _object(a={"$ref": "#"}), None, '{"a": '),
))  # fmt: skip


def _links(count: int, link: Any) -> str:
    links = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(count)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": links | {f"d{count}": {"type": "null"}}})


BURDENS: dict[str, tuple[str, str]] = {
    "const -(2^63-1)": ("json_schema", json.dumps({"const": 1 - 2**63})),
    "multipleOf 99999989": ("json_schema", '{"type": "integer", "multipleOf": 99999989}'),
    "20 patterns at once": ("json_schema", json.dumps({"allOf": [
        {"type": "string", "pattern": f".*a{i}.*"} for i in range(20)]})),
    "5,000 $refs in a chain": ("json_schema", _links(5000, lambda ref: {"$ref": ref})),
    "5,000 nested $refs": ("json_schema", _links(5000, lambda ref: {
        "type": "object", "properties": {"x": {"$ref": ref}}})),
    "2,000 properties": ("json_schema", json.dumps({"type": "object", "properties": {
        f"w{i * 7919 % 100003}q{i}": STRING for i in range(2000)}})),
    "200 e-mail addresses": ("json_schema", json.dumps(_object(**{
        f"e{i}": {"type": "string", "format": "email"} for i in range(200)}))),
    "enum of 10,000": ("json_schema", json.dumps({"enum": [
        f"w{i * 7919 % 100003}q{i}" for i in range(10000)]})),
    "a?a?a?… 5,000 times": ("regex", "a?" * 5000),
    "((b){10,300}){500}": ("regex", "((b){10,300}){500}"),
    "20,000 rules in a chain": ("grammar", "start: r0\n" + "".join(
        f"r{i}: r{i + 1}\n" for i in range(20000)) + 'r20000: "a"\n'),
    'start: /a*/ "a"': ("grammar", 'start: /a*/ "a"\n'),
}  # fmt: skip
"""Kind and text of grammars that some library was found to crash or hang on, or to be slow with."""
