"""A grammar inside which a model can only write arguments that its function takes.

Owns: the way from a JSON schema to a grammar for llama.cpp's guidance engine. Called by:
:mod:`model_cascade.parts.local_language_model` for a call that must be made. Never: generates anything.

The engine (llguidance) knows nearly all of JSON schema and writes inside it, bounds and patterns included. What it does
not know it does not refuse but ignores together with the whole grammar, so the caller must read what was written.
A schema that bounds nothing lets a small model go on for ever: :func:`bounded` adds bounds where there are none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST_STRING = 120
_MOST_ITEMS = 8
_MOST_ENTRIES = 8
_FARTHEST = 1_000_000_000
_PLAIN_STRING = {"type": "string", "maxLength": _LONGEST_STRING}
_SHORT_FORMATS = frozenset({"date", "time", "date-time", "uuid", "ipv4"})
_PATTERNS = {
    "email": r"^[a-z0-9]{1,16}(\.[a-z0-9]{1,16})?@[a-z0-9]{1,24}\.(com|org|net|edu)$",
    "uri": r"^https://[a-z0-9]{1,24}\.(com|org|net|edu)(/[a-z0-9_-]{1,24}){0,3}$",
}
_PATTERNS["url"] = _PATTERNS["uri"]
_SUBSCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_NAMED_SUBSCHEMAS = frozenset({"properties", "$defs", "definitions", "patternProperties"})
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"})


def grammar_for_names(names: Sequence[str]) -> str:
    """Give a grammar of which the only sentences are these names, each as a JSON string."""
    return _grammar({"enum": list(names)})


def grammar_for_arguments(parameters: Mapping[str, Any]) -> str:
    """Give a grammar of compact JSON objects that the schema ``parameters`` takes."""
    return _grammar(bounded({**parameters, "type": "object"}))


def bounded(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Narrow a schema so that what it takes is short; whatever the result takes, the schema takes too."""
    found = {} if isinstance(schema, bool) else _without_notes(schema)
    if not found:
        return dict(_PLAIN_STRING)
    _bound_subschemas(found)
    kinds = found.get("type", _kind(found))
    if isinstance(kinds, list):
        rest = {key: value for key, value in found.items() if key != "type"}
        return {"anyOf": [bounded({**rest, "type": kind}) for kind in kinds]}
    if isinstance(kinds, str) and not found.keys() & {"enum", "const"}:
        found["type"] = kinds
        _BOUNDS.get(kinds, _as_it_is)(found)
    return found


def _without_notes(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _NOTES}


def _bound_subschemas(schema: dict[str, Any]) -> None:
    """Bound what stands inside; a part of ``allOf`` is one of several conditions and must not be bounded by itself."""
    for key in _SUBSCHEMAS & schema.keys():
        schema[key] = [bounded(one) for one in schema[key]]
    for key in _NAMED_SUBSCHEMAS & schema.keys():
        schema[key] = {name: bounded(one) for name, one in schema[key].items()}
    if "allOf" in schema:
        schema["allOf"] = [_without_notes(one) for one in schema["allOf"]]


def _kind(schema: Mapping[str, Any]) -> str | None:
    """Tell what a schema without ``type`` is about, where its keywords show it."""
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    return "string" if "pattern" in schema or "maxLength" in schema else None


def _bound_string(schema: dict[str, Any]) -> None:
    form = schema.pop("format", None)
    if form in _SHORT_FORMATS:
        schema["format"] = form
        return
    if form in _PATTERNS and "pattern" not in schema and "maxLength" not in schema:
        schema["pattern"] = _PATTERNS[form]
        return
    schema.setdefault("maxLength", schema.get("minLength", 0) + _LONGEST_STRING)


def _bound_number(schema: dict[str, Any]) -> None:
    if not schema.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
        schema["multipleOf"] = 0.01
    _bound_integer(schema)


def _bound_integer(schema: dict[str, Any]) -> None:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        schema["minimum"] = min(high or 0, 0) - _FARTHEST
    if high is None:
        schema["maximum"] = max(low or 0, 0) + _FARTHEST


def _bound_array(schema: dict[str, Any]) -> None:
    if "items" in schema and not isinstance(schema["items"], list):
        schema["items"] = bounded(schema["items"])
    elif "prefixItems" not in schema:
        schema["items"] = dict(_PLAIN_STRING)
    least = schema.get("minItems", 0)
    schema["maxItems"] = min(schema.get("maxItems", _MOST_ITEMS), max(least, _MOST_ITEMS))
    if schema.get("uniqueItems") and least <= 1:
        del schema["uniqueItems"]
        schema["maxItems"] = min(schema["maxItems"], 1)


def _bound_object(schema: dict[str, Any]) -> None:
    properties = schema.setdefault("properties", {})
    extra = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in properties:
            properties[name] = bounded(extra) if isinstance(extra, Mapping) else dict(_PLAIN_STRING)
    if isinstance(extra, Mapping):
        schema["additionalProperties"] = bounded(extra)
        schema.setdefault("maxProperties", len(properties) + max(_MOST_ENTRIES, schema.get("minProperties", 0)))
    elif schema.get("minProperties", 0) <= len(schema.get("required", ())):
        schema["additionalProperties"] = False


def _as_it_is(schema: dict[str, Any]) -> None:
    """Booleans and null have no bounds to want."""


_BOUNDS = {
    "string": _bound_string,
    "number": _bound_number,
    "integer": _bound_integer,
    "array": _bound_array,
    "object": _bound_object,
}


def _grammar(schema: Mapping[str, Any]) -> str:
    compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
    return f"%llguidance {{}}\nstart: %json {json.dumps(compact)}"
