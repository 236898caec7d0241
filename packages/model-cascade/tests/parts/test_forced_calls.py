"""Schemas are narrowed, never widened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_cascade.parts.forced_calls import bounded, grammar_for_arguments, grammar_for_names


def schema_of(grammar: str) -> dict[str, Any]:
    head, _, schema = grammar.partition("start: %json ")
    assert head == "%llguidance {}\n"
    loaded: dict[str, Any] = json.loads(schema)
    assert loaded.pop("x-guidance") == {"whitespace_flexible": False}
    return loaded


@pytest.mark.parametrize(
    ("schema", "narrowed"),
    [
        ({"type": "string"}, {"type": "string", "maxLength": 120}),
        ({"type": "string", "minLength": 300}, {"type": "string", "minLength": 300, "maxLength": 420}),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 5}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "colour"}, {"type": "string", "maxLength": 120}),
        ({"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 3, "maximum": 1_000_000_003}),
        (
            {"type": "integer", "exclusiveMaximum": -5},
            {"type": "integer", "minimum": -1_000_000_005, "exclusiveMaximum": -5},
        ),
        (
            {"type": "number"},
            {"type": "number", "minimum": -1_000_000_000, "maximum": 1_000_000_000, "multipleOf": 0.01},
        ),
        ({"type": "number", "minimum": 0.5, "maximum": 0.6}, {"type": "number", "minimum": 0.5, "maximum": 0.6}),
        ({"type": "boolean", "description": "d"}, {"type": "boolean"}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({}, {"type": "string", "maxLength": 120}),
        (True, {"type": "string", "maxLength": 120}),
        ({"type": ["null", "boolean"]}, {"anyOf": [{"type": "null"}, {"type": "boolean"}]}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string", "maxLength": 120}, "maxItems": 8}),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 9, "maxItems": 50},
            {"type": "array", "items": {"type": "boolean"}, "minItems": 9, "maxItems": 9},
        ),
        (
            {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
        ),
        (
            {"properties": {"a": {"type": "boolean"}}, "required": ["a", "b"]},
            {
                "type": "object",
                "properties": {"a": {"type": "boolean"}, "b": {"type": "string", "maxLength": 120}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_bounds_are_added_where_there_are_none(schema: dict[str, Any] | bool, narrowed: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert bounded(schema) == narrowed
    assert json.dumps(schema) == before


def test_arguments_are_always_an_object() -> None:
    for parameters in ({}, {"type": "string"}, {"type": ["object", "null"]}):
        schema = schema_of(grammar_for_arguments(parameters))
        assert schema["type"] == "object"


def test_names_are_an_enumeration() -> None:
    assert schema_of(grammar_for_names(["a", "b"])) == {"enum": ["a", "b"]}
