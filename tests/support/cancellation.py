"""Cancels a coroutine at each place where it can be suspended, one after the other, and looks for what that left behind.

Owns :class:`Cut`, which runs one coroutine to one of its suspensions, :func:`everywhere`, which tries them all, and
:class:`Belongings`, what a loop and a process hold beside the test. Called by the tests of `tests/cancellation`. Never: knows
what it runs, or counts steps of the loop; a suspension is the coroutine's own, however often the loop turned meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 500
"""No public coroutine is suspended so often; one that is does not end."""
PATIENCE_S = 20.0
"""How long what was begun may take to end after a cancellation. Nothing waits for this time."""


class Moment(enum.Enum):
    """When a coroutine that is suspended gets to hear of its cancellation."""

    WAITING = "while it waits"
    WOKEN = "when what it waited for has come, and it does not know yet"


class Cut(Generic[T]):
    """Runs one coroutine and cancels it at its suspension number ``at``, counted from 0.

    Attributes:
        reached: whether there was such a suspension; else the coroutine ran to its end and ``result`` is what it gave.
    """

    def __init__(self, at: int, moment: Moment) -> None:
        self._at = at
        self._moment = moment
        self._suspended = 0
        self._task: asyncio.Task[Any] | None = None
        self._meanwhile: Callable[[], object] | None = None
        self.reached = False
        self.result: Any = None

    def __repr__(self) -> str:
        return f"suspension {self._at}, {self._moment.value}"

    async def __call__(
        self, coroutine: Coroutine[Any, Any, Any], *, meanwhile: Callable[[], object] | None = None
    ) -> None:
        """Run ``coroutine``; ``meanwhile`` is called once, when it is first suspended.

        Raises:
            AssertionError: it swallowed its cancellation.
        """
        self._meanwhile = meanwhile
        self._task = asyncio.create_task(self._drive(coroutine), name=f"cut at {self}")
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self._task])
        if self.reached:
            assert self._task.cancelled(), f"{self}: the cancellation did not come out, but {self._task!r}"
        else:
            self.result = self._task.result()

    async def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await _Driven(coroutine, self._before_suspension)

    def _before_suspension(self, waits_for: asyncio.Future[Any] | None) -> None:
        """The coroutine is about to be suspended, until ``waits_for`` is done or for one turn of the loop."""
        assert self._task is not None
        if self._meanwhile is not None:
            asyncio.get_running_loop().call_soon(self._meanwhile)
            self._meanwhile = None
        if self._suspended == self._at:
            self.reached = True
            if waits_for is None or self._moment is Moment.WAITING:
                asyncio.get_running_loop().call_soon(self._task.cancel)
            else:
                # Called before the task's own callback, which is added when this returns.
                task = self._task
                waits_for.add_done_callback(lambda _: task.cancel())
        self._suspended += 1


class _Driven(Awaitable[Any]):
    """Awaits a coroutine and is asked before each of its suspensions."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], before: Callable[[asyncio.Future[Any] | None], None]
    ) -> None:
        self._coroutine = coroutine
        self._before = before

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731 - replaced below
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self._before(waits_for)
            try:
                sent = yield waits_for
            except BaseException as exc:  # noqa: BLE001 - thrown on into the coroutine
                thrown = exc
                step = lambda: self._coroutine.throw(thrown)  # noqa: B023, E731
            else:
                step = lambda: self._coroutine.send(sent)  # noqa: B023, E731


async def everywhere(
    scene: Callable[[Cut[Any]], Awaitable[None]], *, moments: tuple[Moment, ...] = tuple(Moment)
) -> int:
    """Play ``scene``, which runs one coroutine through the cut that it is given, once for each suspension and moment.

    Returns:
        How many suspensions there were.
    """
    most = 0
    for moment in moments:
        for at in range(MOST):
            cut: Cut[Any] = Cut(at, moment)
            await scene(cut)
            if not cut.reached:
                break
        else:
            raise AssertionError(f"the coroutine was suspended {MOST} times and did not end")
        most = max(most, at)
    return most


class Belongings:
    """The tasks, timers and threads that there are; :meth:`gone` waits until no others are left."""

    def __init__(self) -> None:
        self._tasks = asyncio.all_tasks()
        self._timers = set(_timers())
        self._threads = set(threading.enumerate())

    async def gone(self) -> None:
        """Wait until all that has been begun since has ended.

        Raises:
            AssertionError: something stays; it is named.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while left := self._left():
            assert loop.time() < until, f"left behind: {left}"
            await asyncio.sleep(0)

    def _left(self) -> list[object]:
        return [
            *(task for task in asyncio.all_tasks() - self._tasks - {asyncio.current_task()} if not task.done()),
            *(timer for timer in _timers() if timer not in self._timers),
            *(
                thread
                for thread in set(threading.enumerate()) - self._threads
                if not thread.name.startswith("asyncio_")  # the loop's own pool keeps its threads
            ),
        ]


def _timers() -> list[asyncio.TimerHandle]:
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if not timer.cancelled()]
