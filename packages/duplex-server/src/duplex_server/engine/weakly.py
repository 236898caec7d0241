"""Callbacks that do not keep whom they call alive.

Owns how the parts of a session call their session: each is held by it, so a callback that held it in turn would tie all of them
into a cycle, and the memory of an ended session would wait for a collection of the garbage collector, which runs seldom in a
server (:func:`duplex_server.process.settle_memory`). Used by the session runner. Must never hold an object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import TypeVarTuple, cast

Ts = TypeVarTuple("Ts")


def weakly(method: Callable[[*Ts], None]) -> Callable[[*Ts], None]:
    """A callback that calls the bound ``method`` as long as its object is there, and nothing after that."""
    bound = cast("MethodType", method)
    function, found = bound.__func__, weakref.ref(bound.__self__)

    def call(*args: *Ts) -> None:
        held = found()
        if held is not None:
            function(held, *args)

    return call
