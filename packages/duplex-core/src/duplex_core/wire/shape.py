"""Looks up, in the typed vocabulary itself, what a field could have been: its neighbours' names, its allowed values.

Called by :mod:`duplex_core.wire.faults` when it words an error, so that messages can never name choices that the types
do not have.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")


def fields_at(union: Any, kind: Any, path: str) -> tuple[str, ...]:
    """Names of the fields that an object at ``path`` of an event of the type ``kind`` may have."""
    names = [
        field.encode_name
        for node in _nodes_at(union, kind, path)
        if isinstance(node, inspect.StructType)
        for field in node.fields
    ]
    return tuple(dict.fromkeys(names))


def choices_at(union: Any, kind: Any, path: str) -> tuple[str, ...]:
    """What a field at ``path`` may be, where that is a closed set of values (or one of them or an integer)."""
    parent, _, last = path.rpartition(".")
    tags = [
        str(node.tag)
        for node in _nodes_at(union, kind, parent)
        if isinstance(node, inspect.StructType) and node.tag_field == last
    ]
    values: list[Any] = []
    for node in _nodes_at(union, kind, path):
        if isinstance(node, inspect.EnumType):
            values += [member.value for member in node.cls]
        elif isinstance(node, inspect.LiteralType):
            values += node.values
        elif isinstance(node, inspect.IntType):
            values.append("an integer")
    return tuple(dict.fromkeys([*tags, *map(str, values)]))


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    return next(iter(difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.75)), None)


def _nodes_at(union: Any, kind: Any, path: str) -> list[inspect.Type]:
    found: list[inspect.Type] = [
        node for node in _members(_info(union)) if isinstance(node, inspect.StructType) and node.tag == kind
    ]
    for name in _STEP.findall(path):
        found = [below for node in found for below in _below(node, name)]
    return found


@functools.cache
def _info(union: Any) -> inspect.Type:
    return inspect.type_info(union)


def _members(node: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(node, inspect.UnionType):
        for each in node.types:
            yield from _members(each)
    elif isinstance(node, inspect.Metadata):
        yield from _members(node.type)
    else:
        yield node


def _below(node: inspect.Type, name: str) -> Iterator[inspect.Type]:
    """What stands under ``name`` of an object, or under any index (an empty ``name``) of an array."""
    if isinstance(node, inspect.StructType):
        for field in node.fields:
            if field.encode_name == name:
                yield from _members(field.type)
    elif not name and isinstance(node, inspect.ListType | inspect.VarTupleType):
        yield from _members(node.item_type)
    elif not name and isinstance(node, inspect.DictType):
        yield from _members(node.value_type)
