"""Two things at once: each pair of what can happen to a session, started at every distance from each other.

On the real event loop in virtual time, so that each order of steps is tried once and the same way in each run. Whatever the
order: one terminal event, no slot that stays taken, nobody left who has a session that nobody reads, and who was told that they
have the session can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duplex_core.commands import ResponseCancel, SessionClose, SessionHeartbeat
from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.events import (
    CloseReason,
    ResponseCreated,
    ResponseDone,
    SessionClosed,
    SessionCreated,
    SessionHeartbeatAck,
    SessionReplaced,
    SessionResumed,
)
from duplex_server.engine.omni import DuplexOmni
from duplex_server.engine.reaper import LeaseOver
from tests.support.talking import Listener, opened, talking
from tests.support.virtual_loop import cancelled, in_virtual_time, settle

GRACE_S = 30.0
STEPS = range(-8, 9)
"""By how many steps of the event loop the second of two things comes later than the first, or earlier."""


async def later(steps: int, act: Callable[[], Awaitable[Any] | None]) -> Any:
    for _ in range(steps):
        await asyncio.sleep(0)
    outcome = act()
    return await outcome if outcome is not None else None


async def both(distance: int, one: Callable[[], Any], other: Callable[[], Any]) -> tuple[Any, Any]:
    """Do both, ``other`` so many steps later than ``one``; what came of each, errors that a client may be told included."""
    outcomes = await asyncio.gather(
        later(max(0, -distance), one), later(max(0, distance), other), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, DuplexError):
            raise outcome
    return outcomes


async def is_usable(listener: Listener) -> bool:
    """Whether who was given a session gets told so, and then is answered or told of the session's end."""
    assert isinstance(await listener.next(), SessionResumed)
    with contextlib.suppress(DuplexError):  # a command after the end is refused
        await listener.handle.submit(SessionHeartbeat())
    while (event := await listener.next()) is not None:
        if isinstance(event, SessionHeartbeatAck):
            return True
    return False


async def assert_free(engine: DuplexOmni) -> None:
    """That every slot comes back by itself."""
    await asyncio.sleep(GRACE_S + 1)
    assert engine.sessions.taken == 0
    assert engine.sessions.detached == 0


def endings(*listeners: Listener) -> int:
    return sum(isinstance(event, SessionClosed) for each in listeners for event in each.seen)


ENDS: dict[str, Callable[[DuplexOmni, Listener], Any]] = {
    "the engine closes it": lambda engine, first: engine.close_session(first.handle.session_id),
    "the client hangs up": lambda engine, first: first.handle.close(CloseReason.DISCONNECTED),
    "the client says close": lambda engine, first: first.handle.submit(SessionClose()),
    "the server stops": lambda engine, first: engine.shutdown(0.0),
    "the task is cancelled": lambda engine, first: cancel_task(first),
}


def cancel_task(listener: Listener) -> None:
    """Cancel the session's task, if it runs still."""
    for task in asyncio.all_tasks():
        if task.get_name() == listener.handle.session_id:
            task.cancel()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answering", [False, True])
def test_resume_against_close(end: str, answering: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        usable = []
        for distance in STEPS:
            async with talking() as engine:
                first = await opened(engine)
                if answering:
                    await first.ask()
                    await first.until(ResponseCreated)
                resumed, _ = await both(distance, lambda: first.resume(engine), lambda: ENDS[end](engine, first))  # noqa: B023
                if isinstance(resumed, DuplexError):
                    assert resumed.info.code is ErrorCode.SESSION_CLOSED
                    await first.rest()
                    assert endings(first) == 1
                else:
                    usable.append(await is_usable(resumed))
                    await resumed.handle.aclose()
                    await resumed.rest()
                    await first.rest()
                    assert endings(first, resumed) == 1
                assert engine.sessions.taken == 0
        assert usable, "at some distance the resume comes first"
        if end in {"the client hangs up", "the client says close"}:
            assert all(usable), "who has let go cannot end what another has"

    run()


@in_virtual_time
async def test_two_resumes_with_one_token_leave_one_in_charge() -> None:
    """The token opens the session until somebody who came with it has spoken, so the later one takes over from the earlier."""
    for distance in STEPS:
        async with talking() as engine:
            first = await opened(engine)
            heirs = await both(distance, lambda: first.resume(engine), lambda: first.resume(engine))  # noqa: B023
            (owner,) = [each for each in heirs if each.handle.attached]
            (other,) = [each for each in heirs if not each.handle.attached]
            assert [type(event) for event in await other.rest()] == [SessionReplaced]
            assert isinstance((await first.rest())[-1], SessionReplaced)
            assert await is_usable(owner)
            with pytest.raises(DuplexError) as caught:
                await first.resume(engine)
            assert caught.value.info.code is ErrorCode.SESSION_NOT_FOUND
            assert owner.handle.attached


@in_virtual_time
async def test_a_chain_of_takeovers_leaves_the_last_one_in_charge() -> None:
    async with talking() as engine:
        chain = [await opened(engine)]
        await chain[0].ask()
        for _ in range(20):
            heir = await chain[-1].resume(engine)
            await heir.until(SessionResumed)
            chain.append(heir)
        for earlier in chain[:-1]:
            await earlier.rest()
            assert isinstance(earlier.seen[-1], SessionReplaced)
        await chain[-1].until(ResponseDone)
        assert chain[-1].handle.attached


@pytest.mark.parametrize("end", ENDS)
def test_close_against_reaper(end: str) -> None:
    """Just before a lease ends, at the very moment at which the reaper looks, and some steps after it."""

    @in_virtual_time
    async def run() -> None:
        reasons = set()
        for early_s, steps in [(0.001, 0), *((0.0, steps) for steps in range(10))]:
            async with talking(idle_ttl_s=5.0) as engine:
                first = await opened(engine)
                reader = asyncio.create_task(first.rest())
                await asyncio.sleep(5.0 - early_s)
                with contextlib.suppress(DuplexError):  # a command after the end is refused
                    await later(steps, lambda: ENDS[end](engine, first))  # noqa: B023
                await reader
                assert endings(first) == 1
                last = first.seen[-1]
                assert isinstance(last, SessionClosed)
                reasons.add(last.reason)
                assert engine.sessions.taken == 0
        assert CloseReason.EXPIRED in reasons
        assert len(reasons) == 2, reasons

    run()


@in_virtual_time
async def test_resume_against_reaper() -> None:
    """Resumed is usable: a session that is taken up in the moment of its end is not ended after all."""
    came = []
    for early_s, steps in [(0.01, 0), *((0.0, steps) for steps in range(12))]:
        async with talking() as engine:
            first = await opened(engine)
            first.handle.detach()
            await asyncio.sleep(GRACE_S - early_s)  # the reaper's alarm rings at this very moment
            second, _ = await both(-steps, lambda: first.resume(engine), lambda: None)  # noqa: B023
            came.append(isinstance(second, Listener))
            if came[-1]:
                assert await is_usable(second)
            else:
                assert second.info.code is ErrorCode.SESSION_CLOSED
                await first.handle.wait_ended()
    assert came[0]
    assert not came[-1]
    assert came == sorted(came, reverse=True)


@in_virtual_time
async def test_a_session_that_is_taken_up_after_the_reaper_looked_and_before_it_is_told_lives_on() -> None:
    async with talking() as engine:
        first = await opened(engine)
        first.handle.detach()
        runner = engine.sessions.get(first.handle.session_id)
        assert runner is not None
        runner.tenure.lapsing = True
        runner.post(LeaseOver())  # as the reaper does
        second = await first.resume(engine)
        await settle()
        assert await is_usable(second)
        second.handle.detach()
        await second.handle.wait_ended()


async def take_over(engine: DuplexOmni, first: Listener) -> None:
    heir = await first.resume(engine)
    await heir.next()
    await heir.handle.aclose()


DISTURBED: dict[str, Callable[[DuplexOmni, Listener], Any]] = {
    **ENDS,
    "another client takes it over": take_over,
    "the answer is cancelled": lambda engine, first: first.handle.submit(ResponseCancel()),
    "the answer ends": lambda engine, first: asyncio.sleep(0.2),
    "time passes": lambda engine, first: asyncio.sleep(GRACE_S),
    "nothing more": lambda engine, first: None,
}


@pytest.mark.parametrize("what", DISTURBED)
def test_disconnect_against_everything(what: str) -> None:
    @in_virtual_time
    async def run() -> None:
        for distance in STEPS:
            async with talking() as engine:
                first = await opened(engine)
                await first.ask()
                await first.until(ResponseCreated)
                await both(distance, first.handle.detach, lambda: DISTURBED[what](engine, first))  # noqa: B023
                with contextlib.suppress(DuplexError):
                    again = await first.resume(engine)
                    if await is_usable(again):
                        again.handle.detach()
                await assert_free(engine)
                if engine.ready:
                    await (await opened(engine)).handle.aclose()

    run()


@in_virtual_time
async def test_field_case_03_a_resume_that_is_cancelled_leaves_no_orphan() -> None:
    """Cancelled after every number of steps: the earlier owner has the session still, or it ends with the grace."""
    kept = []
    for steps in range(6):
        async with talking() as engine:
            first = await opened(engine)
            task = asyncio.create_task(first.resume(engine))
            await settle(steps)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            kept.append(first.handle.attached)
            if first.handle.attached:
                await first.handle.submit(SessionHeartbeat())
                await first.until(SessionHeartbeatAck)
                first.handle.detach()
            await assert_free(engine)
    assert kept[0]
    assert not kept[-1]


@in_virtual_time
async def test_field_case_06_a_runtime_close_and_a_client_close_make_one_terminal_event() -> None:
    for distance in STEPS:
        async with talking() as engine:
            first = await opened(engine)
            await first.ask()
            await both(
                distance,
                lambda: first.handle.submit(SessionClose()),  # noqa: B023
                lambda: engine.close_session(first.handle.session_id),  # noqa: B023
            )
            await first.rest()
            assert endings(first) == 1
            assert isinstance(first.seen[-1], SessionClosed)


# -- everything at random ----------------------------------------------------------------------------------------------


class Crowd:
    """Clients that do whatever they may, in an order that a seed decides."""

    def __init__(self, engine: DuplexOmni, seed: int) -> None:
        self.engine = engine
        self.rng = random.Random(seed)
        self.owners: list[Listener] = []
        self.lost: list[Listener] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.done: set[str] = set()

    async def step(self) -> None:
        act = self.rng.choice(
            [self.open, self.take_over, self.guess, self.hang_up, self.cancel_something]
            + [self.ask, self.lose, self.come_back, self.read, self.wait] * 2
        )
        with contextlib.suppress(DuplexError):
            await act()

    async def open(self) -> None:
        listener = Listener(await self.engine.open_session())
        await listener.until(SessionCreated)
        self.owners.append(listener)

    def some(self) -> Listener | None:
        return self.rng.choice(self.owners) if self.owners else None

    async def ask(self) -> None:
        if (listener := self.some()) is not None:
            await listener.ask()

    async def read(self) -> None:
        if (listener := self.some()) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.random()):
                    await listener.next()

    async def lose(self) -> None:
        if (listener := self.some()) is not None:
            listener.handle.detach()
            self.owners.remove(listener)
            self.lost.append(listener)

    async def come_back(self) -> None:
        if self.lost:
            listener = self.rng.choice(self.lost)
            self.lost.remove(listener)
            await self.heir_of(listener)

    async def take_over(self) -> None:
        if (listener := self.some()) is not None:
            await self.heir_of(listener)
            self.owners.remove(listener)

    async def heir_of(self, listener: Listener) -> None:
        heir = await listener.resume(self.engine)
        begun = await heir.next()
        assert isinstance(begun, SessionResumed)
        assert begun.server_event_seq == listener.last_seq
        self.owners.append(heir)
        self.done.add("resumed")

    async def guess(self) -> None:
        if (listener := self.some()) is not None:
            await self.engine.resume_session(listener.handle.session_id, "guessed", 0)
            raise AssertionError("a guess got in")

    async def hang_up(self) -> None:
        if (listener := self.some()) is not None:
            listener.handle.close(CloseReason.DISCONNECTED)

    async def cancel_something(self) -> None:
        calls: list[Callable[[], Any]] = [self.engine.open_session, self.come_back, self.take_over]
        call = self.rng.choice(calls)
        task = asyncio.create_task(call())
        await settle(self.rng.randrange(4))
        await cancelled(task) if not task.done() else None
        with contextlib.suppress(DuplexError, asyncio.CancelledError):
            await task

    async def wait(self) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.01, 0.1, 1.0, 10.0, 31.0]))


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_every_slot_comes_back_and_no_event_is_lost_or_told_twice(seed: int) -> None:
    @in_virtual_time
    async def run() -> None:
        async with talking(journal_events=10_000, journal_bytes=1 << 30) as engine:
            crowd = Crowd(engine, seed)
            for _ in range(300):
                await crowd.step()
                assert 0 <= engine.sessions.detached <= engine.sessions.taken <= engine.sessions.max_sessions
            for listener in crowd.owners:
                listener.handle.detach()
                numbers = [event.server_event_seq for event in listener.numbered]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
                assert endings(listener) <= 1
            assert "resumed" in crowd.done
            await assert_free(engine)

    run()
