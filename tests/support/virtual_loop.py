"""The real asyncio event loop in virtual time: whenever everything waits, the clock jumps to the next timer.

Owns :class:`VirtualLoop` and :func:`in_virtual_time`. For tests in which minutes must pass and in which the order of things must
be the same in each run. What would run on a thread of the loop's runs within the call instead, so that no real time has a say;
real sockets work and take no virtual time. A test that waits for nothing at all fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STUCK_S = 10.0
"""How long, in real time, a loop without timers waits for something from outside."""


class Stuck(Exception):
    """Everything waits, and nothing will ever happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 1000 s and passes only while everything waits."""

    def __init__(self) -> None:
        """Make it with a selector that never waits for a timer."""
        self.virtual_s = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self.virtual_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Call ``func`` at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # noqa: BLE001 - as an executor does, it is the future's to raise
            future.set_exception(exc)
        return future


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self._loop.virtual_s += timeout
            return ready
        ready = super().select(STUCK_S)
        if not ready:
            raise Stuck("every task waits and there is no timer")
        return ready


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a coroutine function a plain test that runs it on a :class:`VirtualLoop`, and leaves no task behind."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(_alone(test(*args, **kwargs)))

    return run


async def _alone(test: Coroutine[Any, Any, None]) -> None:
    await test
    await settle()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left: {left}"


async def settle(steps: int = 50) -> None:
    """Let everything happen that can happen now."""
    for _ in range(steps):
        await asyncio.sleep(0)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
