"""Starting several things at once: those that share an accelerator one after the other, the others side by side.

Owns the order. Called by the host for the stages of a model, and by a stage's pool for its replicas. Loading takes the most
memory, and engines measure what is free on their device while they load: two that load there at once see each other. Must never
start what waits for one that failed, or return while anything still starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

Failure = TypeVar("Failure", bound=Exception)
Starting = tuple[frozenset[str], Callable[[], Awaitable[None]]]
"""The accelerators that something takes, and what starts it."""

_ANY = ""
"""Stands for an accelerator that nobody has named."""


def accelerators(devices: Iterable[str]) -> frozenset[str]:
    """The accelerators among devices as :class:`duplex_core.stages.Resources` names them, one or several in each name.

    Where none is named at all it may be any.
    """
    return frozenset(name for several in devices or (_ANY,) for name in several.split(",")) - {"cpu"}


def _shared(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one & other) or bool(one and other and _ANY in one | other)


async def start_together(several: Sequence[Starting], failure: type[Failure]) -> None:
    """Start all, each as soon as those before it that share an accelerator with it are up.

    Args:
        several: what to start; it raises ``failure`` when it cannot.
        failure: the one exception that is expected.

    Raises:
        Failure: the first that was raised; what was still starting is cancelled by then.
    """
    first: Failure | None = None
    try:
        async with asyncio.TaskGroup() as group:
            begun: list[tuple[frozenset[str], asyncio.Task[None]]] = []
            for devices, start in several:
                before = [task for others, task in begun if _shared(others, devices)]
                begun.append((devices, group.create_task(_after(before, start))))
    except* failure as failed:
        first = _first(failed)
    if first is not None:  # not raised above: the first releases of Python 3.11 would wrap it in a group again
        raise first


async def _after(before: Sequence[asyncio.Task[None]], start: Callable[[], Awaitable[None]]) -> None:
    if before:
        await asyncio.wait(before)  # when one of them fails, the group cancels this
    await start()


def _first(failed: BaseExceptionGroup[Failure]) -> Failure:
    found = failed.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
