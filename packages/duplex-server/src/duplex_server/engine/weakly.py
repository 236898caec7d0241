"""Callbacks that do not keep whom they call alive.

Owns how the parts of a session call their session: each is held by it, so a callback that held it in turn would tie all of them
into a cycle, and the memory of an ended session would wait for a collection of the garbage collector, which runs seldom in a
server (:func:`duplex_server.process.settle_memory`). Used by the session runner. Must never hold an object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """A callback that calls the bound ``method`` as long as its object is there, and nothing after that."""
    found = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        bound = found()
        if bound is not None:
            bound(*args, **kwargs)

    return call
