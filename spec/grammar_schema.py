"""What the grammar library must not be asked of a JSON schema: checked before it sees one.

Used by `grammar_text`. The library refuses what it knows and cannot enforce, but it overlooks
keywords it has never heard of (a misspelt `minimun`), rounds large integers, and takes schemas that
no finite value fulfils. A schema that passes here and there is enforced to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

# fmt: off
ENFORCED = frozenset((
    "$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type",
    "properties", "patternProperties", "additionalProperties", "required",
    "minProperties", "maxProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
))
REMARKS = frozenset((
    "$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions",
    "title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly",
    "contentMediaType", "contentEncoding", "contentSchema", "discriminator", "externalDocs", "xml",
))
# fmt: on
"""Keywords that say nothing about what is valid."""

LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", "$defs", "definitions")
ONES = ("items", "additionalProperties", "additionalItems")

EXACT = 2**53
"""Integers beyond are not the same number to every reader of JSON, nor to the library."""

ROUNDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    path: str
    schema: Schema


def read_schema(text: str) -> Schema:
    """The schema in `text`. ValueError, in a sentence, for what is no schema or not enforceable."""
    root = _parse(text)
    if root is True:
        return {}
    if root is False:
        raise ValueError("the JSON schema `false` admits nothing")
    if not isinstance(root, dict):
        raise ValueError("a JSON schema is an object")
    nodes = list(_walk(root))
    for node in nodes:
        _check(node)
    if endless := _first_endless(root, nodes):
        raise ValueError(f"the JSON schema admits nothing at {endless}: it needs itself, endlessly")
    return root


def _parse(text: str) -> Any:
    def integer(digits: str) -> int:
        if abs(number := float(digits)) > EXACT:
            raise ValueError(f"the JSON schema has an integer beyond 2^53: {number:.17g}")
        return int(digits)

    def real(digits: str) -> float:
        if abs(number := float(digits)) > EXACT:
            raise ValueError(f"the JSON schema has a number beyond 2^53: {number:g}")
        return number

    def constant(word: str) -> None:
        raise ValueError(f"the JSON schema holds {word}, which is not JSON")

    try:
        return json.loads(text, parse_int=integer, parse_float=real, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"the JSON schema is not JSON: {error}") from error
    except RecursionError:
        raise ValueError("the JSON schema is nested too deeply") from None


def _walk(root: Schema) -> Iterator[_Node]:
    """Every subschema that is an object, parents first, by where keywords put schemas; what a
    `$ref` points at elsewhere in the document too."""
    stack = [_Node("#", root)]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node.schema) in seen:
            continue
        seen.add(id(node.schema))
        yield node
        for path, child in _children(node):
            if isinstance(child, dict):
                stack.append(_Node(path, child))
        target = _target(root, node.schema)
        if isinstance(target, dict):
            stack.append(_Node(node.schema["$ref"], target))


def _children(node: _Node) -> Iterator[tuple[str, Any]]:
    for key, value in node.schema.items():
        if key in LISTS and isinstance(value, list):
            yield from ((f"{node.path}/{key}/{i}", child) for i, child in enumerate(value))
        elif key in MAPS and isinstance(value, dict):
            yield from ((f"{node.path}/{key}/{name}", child) for name, child in value.items())
        elif key in ONES:
            yield f"{node.path}/{key}", value


def _target(root: Schema, schema: Schema) -> Any:
    """What a reference into this document points at; None when there is none to be found."""
    ref = schema.get("$ref")
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    found: Any = root
    for step in ref.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _check(node: _Node) -> None:
    for key in node.schema:
        remark = key in REMARKS or (key.startswith("x-") and key != "x-guidance")
        if key not in ENFORCED and not remark:
            raise ValueError(f"the JSON schema keyword {key!r} at {node.path} is not supported")
    least, required = node.schema.get("minProperties"), node.schema.get("required")
    named = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > named + 1:
        # Keys that the schema does not name may be written twice, and count once.
        raise ValueError(
            f"minProperties {least} at {node.path} is not supported with {named} required keys"
        )


def _first_endless(root: Schema, nodes: list[_Node]) -> str | None:
    """Where a subschema has no finite value, if anywhere: what is left over when those with one
    have been found, from the ones that need no other upwards."""
    finite: set[int] = set()
    left = nodes
    for _ in range(ROUNDS):
        rest = [node for node in reversed(left) if not _joins(root, node.schema, finite)][::-1]
        if not rest or len(rest) == len(left):
            return rest[0].path if rest else None
        left = rest
    return None


def _joins(root: Schema, schema: Schema, finite: set[int]) -> bool:
    """Whether the schema has a finite value by what is known; if so, it joins `finite`."""

    def known(child: Any) -> bool:
        return not isinstance(child, dict) or id(child) in finite

    def some(key: str) -> bool:
        options = _list(schema.get(key))
        return not options or any(map(known, options))

    if "const" not in schema and "enum" not in schema:
        types = schema.get("type", "any")
        kinds = _list(types) or [types]
        every = [_target(root, schema), *_list(schema.get("allOf"))]
        if not (all(map(known, every)) and some("anyOf") and some("oneOf")):
            return False
        if not any(all(map(known, _needed(schema, kind))) for kind in kinds):
            return False
    finite.add(id(schema))
    return True


def _needed(schema: Schema, kind: object) -> list[Any]:
    """The schemas that every value of a type needs a value of."""
    if kind == "object":
        properties, rest = schema.get("properties"), schema.get("additionalProperties")
        named = properties if isinstance(properties, dict) else {}
        return [named.get(name, rest) for name in map(str, _list(schema.get("required")))]
    if kind == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
        first = _list(schema.get("prefixItems")) or _list(schema.get("items"))
        return first[:least] if least <= len(first) else [*first, schema.get("items")]
    return []


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
