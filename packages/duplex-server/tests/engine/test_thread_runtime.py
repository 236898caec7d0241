"""The ``thread`` runtime: order, fairness, aborting, failing, dying, closing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from duplex_core.errors import ErrorCode
from duplex_core.fence import Fence
from duplex_core.stages import StageFailed, StageNews, StageOutput, StageReply, StageSpec
from duplex_server.engine.stages import thread


class Replies:
    """What a stage has answered, and a way to wait for more of it."""

    def __init__(self) -> None:
        self.all: list[StageReply] = []
        self._came = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reply: StageNews) -> None:
        assert isinstance(reply, StageReply), "a thread has no replica to lose, and measures nothing"
        self.all.append(reply)
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self._came:
            await self._came.wait_for(enough)

    async def ended(self, count: int) -> None:
        await self.until(lambda: len(self.ends) >= count)

    @property
    def ends(self) -> list[StageReply]:
        return [each for each in self.all if isinstance(each, StageFailed) or each.final]

    def texts(self, request_id: str) -> str:
        said = [e for e in self.all if e.request_id == request_id and isinstance(e, StageOutput) and not e.final]
        return "".join(each.payload for each in said)


@contextlib.asynccontextmanager
async def running(spec: StageSpec) -> AsyncIterator[tuple[thread.ThreadStage, Replies]]:
    replies = Replies()
    stage = await thread.start(spec, replies)
    try:
        yield stage, replies
    finally:
        await stage.aclose()


def fence(session: str) -> Fence:
    return Fence(session_id=session)


async def test_a_request_is_answered_piece_by_piece_and_ends_once(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("one two", "r1", fence("a")))
        await replies.ended(1)
        assert replies.texts("r1") == "one two "
        assert [getattr(each, "final", None) for each in replies.all] == [False, False, True]
        assert replies.all[0].fence == fence("a")
    assert gate.closed == 1


async def test_workers_are_made_run_and_closed_on_their_own_threads(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate, concurrency=3)) as (stage, replies):
        for index in range(9):
            stage.submit(stages.request("x", f"r{index}", fence(f"s{index}")))
        await replies.ended(9)
    assert len(gate.threads) == 3
    assert "MainThread" not in gate.threads
    assert gate.closed == 3


async def test_sessions_take_turns_and_a_sessions_requests_keep_their_order(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("hold", "first", fence("a")))
        for index in range(3):
            stage.submit(stages.request("x", f"a{index}", fence("a")))
        for index in range(3):
            stage.submit(stages.request("x", f"b{index}", fence("b")))
        gate.let_go.set()
        await replies.ended(7)
        assert [each.request_id for each in replies.ends] == ["first", "a0", "b0", "a1", "b1", "a2", "b2"]


async def test_two_sessions_run_at_once_and_one_session_never_does(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate, concurrency=4)) as (stage, replies):
        for index in range(3):
            stage.submit(stages.request("hold", f"a{index}", fence("a")))
        stage.submit(stages.request("hold", "b", fence("b")))
        for _ in range(2):
            await asyncio.to_thread(gate.begun.acquire)
        gate.let_go.set()
        await replies.ended(4)
        assert gate.most == 2


async def test_an_abort_stops_a_running_request_and_nothing_of_it_comes_after(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("hold", "r1", fence("a")))
        await asyncio.to_thread(gate.begun.acquire)
        stage.abort("a", "r1")
        await asyncio.to_thread(gate.stopped.acquire)
        stage.submit(stages.request("next", "r1", fence("a")))  # the id again: another request
        await replies.ended(1)
        assert replies.texts("r1") == "next "


async def test_an_abort_takes_queued_requests_out_before_they_start(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("hold", "r1", fence("a")))
        await asyncio.to_thread(gate.begun.acquire)
        for index in range(5):
            stage.submit(stages.request("never", f"q{index}", fence("a")))
        stage.submit(stages.request("other", "o", fence("b")))
        stage.abort("a")
        await replies.ended(1)
        assert [each.request_id for each in replies.ends] == ["o"]
        assert {each.request_id for each in replies.all} == {"o"}


async def test_output_on_its_way_to_the_loop_is_dropped_by_an_abort(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("one two", "r1", fence("a")))
        gate.stopped.acquire()  # blocks the loop on purpose: the pieces wait to be delivered
        stage.abort("a")
        stage.submit(stages.request("end", "r2", fence("a")))
        await replies.ended(1)
        assert {each.request_id for each in replies.all} == {"r2"}


async def test_an_exception_fails_its_request_and_no_other(stages: Any, caplog: pytest.LogCaptureFixture) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("fail after a word", "bad", fence("a")))
        stage.submit(stages.request("fine", "good", fence("b")))
        await replies.ended(2)
        bad, good = replies.ends
        assert isinstance(bad, StageFailed)
        assert (bad.error.code, bad.fatal) == (ErrorCode.ENGINE_ERROR, False)
        assert bad.error.message == "the model's stage work failed; the server's log says why", "no internals"
        assert replies.texts("bad") == "fail "
        assert isinstance(good, StageOutput)
        assert stage.healthy()
    assert "no such word" in caplog.text


async def test_what_a_worker_foresaw_is_told_as_it_says_and_is_one_line_in_the_log(
    stages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(stages.spec_of(stages.Gate())) as (stage, replies):
        stage.submit(stages.request("refuse", "r1", fence("a")))
        await replies.ended(1)
        (failed,) = replies.ends
        assert isinstance(failed, StageFailed)
        assert (failed.error.message, failed.fatal) == ("no words today", False)
        assert stage.healthy()
    (record,) = caplog.records
    assert record.getMessage() == "stage work: request r1 of a failed: http://words cannot be reached"
    assert (record.levelname, record.exc_info) == ("WARNING", None)


async def test_a_worker_that_ends_its_thread_is_the_stages_death(stages: Any, caplog: pytest.LogCaptureFixture) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate, concurrency=2)) as (stage, replies):
        stage.submit(stages.request("hold", "running", fence("a")))
        stage.submit(stages.request("queued", "queued", fence("a")))
        await asyncio.to_thread(gate.begun.acquire)
        stage.submit(stages.request("die", "deadly", fence("b")))
        await replies.ended(3)
        assert not stage.healthy()
        assert {(each.request_id, each.fatal) for each in replies.ends if isinstance(each, StageFailed)} == {
            ("running", True),
            ("queued", True),
            ("deadly", True),
        }
        stage.submit(stages.request("late", "late", fence("c")))
        await replies.ended(4)
        assert replies.ends[-1].request_id == "late"
        assert isinstance(replies.ends[-1], StageFailed)
    assert "died" in caplog.text


async def test_closing_stops_what_runs_and_answers_nothing_more(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, replies):
        stage.submit(stages.request("hold", "r1", fence("a")))
        stage.submit(stages.request("x", "r2", fence("b")))
        await asyncio.to_thread(gate.begun.acquire)
    assert replies.all == []
    assert gate.closed == 1
    assert not [each.name for each in threading.enumerate() if each.name.startswith("stage-")]
    with pytest.raises(RuntimeError, match="closed"):
        stage.submit(stages.request("x", "r3", fence("b")))


async def test_an_id_that_is_open_is_refused(stages: Any) -> None:
    gate = stages.Gate()
    async with running(stages.spec_of(gate)) as (stage, _):
        stage.submit(stages.request("hold", "r1", fence("a")))
        with pytest.raises(ValueError, match="open already"):
            stage.submit(stages.request("hold", "r1", fence("a")))


@pytest.mark.parametrize(
    ("factory", "match"),
    [
        ("nonsense", "must look like"),
        ("no_such_package:Worker", "cannot be imported"),
        ("tests.support.stages:Missing", "cannot be imported"),
    ],
)
async def test_a_factory_that_is_not_there_is_named(factory: str, match: str) -> None:
    with pytest.raises(thread.StageLoadError, match=match):
        await thread.start(StageSpec(name="work", factory=factory), lambda reply: None)


async def test_broken_weights_stop_the_start_with_their_cause(stages: Any) -> None:
    with pytest.raises(thread.StageLoadError, match=r"^OSError: weights\.bin: checksum differs$"):
        await thread.start(stages.spec_of(stages.Gate(), broken=True), lambda reply: None)
