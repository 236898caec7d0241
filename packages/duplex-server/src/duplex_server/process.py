"""How a process of the server runs: its event loop, and what its garbage collector leaves alone.

Owns both choices. Called by the command line, by the worker processes of stages, and by the benchmarks, so that what they measure
runs as the server does. Must never be called twice in one process.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run the process's coroutine to its end, on uvloop where there is one; what it returned."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


def settle_memory() -> None:
    """Keep the garbage collector off what was loaded, which stays, and from running for every few hundred events.

    Measured with 20 sessions that speak and are spoken to: without this a third of the server's time goes into collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
