"""Callbacks that do not keep whom they call alive.

Owns how the parts of a session call their session: each is held by it, so a callback that held it in turn would tie all of them
into a cycle, and the memory of an ended session would wait for a collection of the garbage collector, which runs seldom in a
server (:func:`duplex_server.process.settle_memory`). Used by the session runner. Must never hold an object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar, cast

Told = TypeVar("Told")


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A callback that calls the bound ``method`` as long as its object is there, and nothing after that."""
    function, found = _parts(method)

    def call() -> None:
        held = found()
        if held is not None:
            function(held)

    return call


def weakly_told(method: Callable[[Told], None]) -> Callable[[Told], None]:
    """As :func:`weakly`, for a method that is told one thing. Called several times for each piece of sound."""
    function, found = _parts(method)

    def call(told: Told) -> None:
        held = found()
        if held is not None:
            function(held, told)

    return call


def _parts(method: Callable[..., None]) -> tuple[Callable[..., None], weakref.ref[Any]]:
    bound = cast("MethodType", method)
    return bound.__func__, weakref.ref(bound.__self__)
