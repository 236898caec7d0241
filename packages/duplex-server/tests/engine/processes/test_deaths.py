"""Worker processes that die, hang, or do not start, and the end of them all: who is told what, and that the others go on."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.stages import StageFailed, StageLost
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes.pool import Pool
from duplex_server.engine.stages.processes.runtime import start
from duplex_server.engine.stages.processes.settings import ProcessSettings
from tests.support.batched import spec
from tests.support.pools import DRIVER, QUICK, Held, News, alive, chat, request, running

HASTY = msgspec.structs.replace(QUICK, hang_s=2.0)
"""A process that does not answer for two seconds is taken for hanging."""
PATIENT = msgspec.structs.replace(QUICK, backoff_s=60)
"""What has died stays dead."""


async def where(pool: Pool, news: News, who: str) -> int:
    """The process on which a session sits."""
    pool.submit(request(who, f"{who}-where", "where"))
    return int((await news.text(f"{who}-where")).split()[0])


async def eventually(so: Callable[[], Any]) -> None:
    """Wait for what other processes do, of which nobody tells."""
    async with asyncio.timeout(30):
        while not so():  # noqa: ASYNC110 - there is no event in this process
            await asyncio.sleep(0.01)


async def recovered(news: News, replicas: int) -> None:
    """Wait until so many replicas are up after the last loss."""
    await news.until(
        lambda: [each for each in news.stats if each.replica is None][-1].gauges["replicas_up"] == replicas
    )


@pytest.mark.parametrize(
    "how", [*(signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP), "raise", "exit", "hang", "misanswer"]
)
async def test_only_who_sat_on_the_replica_loses_anything_and_each_is_told_once(
    how: signal.Signals | str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = HASTY if how in (signal.SIGSTOP, "hang") else QUICK
    async with running(spec(replicas=2, sessions=3), settings) as (pool, news):
        for who in "abcd":
            pool.place(who)
        pids = {who: await where(pool, news, who) for who in "abcd"}
        assert pids["a"] == pids["c"] != pids["b"] == pids["d"]
        pool.submit(request("a", "a-open", "words", times=1_000_000))
        pool.submit(request("b", "b-open", "words", times=1_000_000))
        await news.until(lambda: news.texts("a-open") and news.texts("b-open"))
        if isinstance(how, str):
            pool.submit(request("c", "deadly", how))
        else:
            os.kill(pids["a"], how)
        await news.until(lambda: len(news.lost) == 2)
        assert {each.session_id for each in news.lost} == {"a", "c"}
        assert all((each.error.code, each.error.retryable) == (ErrorCode.ENGINE_ERROR, True) for each in news.lost)
        assert pool.healthy(), "the other replica takes requests"
        said = len(news.texts("b-open"))
        await news.until(lambda: len(news.texts("b-open")) > said + 3)
        pool.submit(request("d", "d-count"))
        assert await news.text("d-count") == "1"
        after = news.all.index(news.lost[0])
        told = {getattr(each, "request_id", "") for each in news.all[after:]}
        assert told <= {"", "b-open", "d-count"}, "nothing more of those that were lost"
        for who in "ac":
            pool.release(who)
        await recovered(news, 2)
        pool.place("new")
        assert await where(pool, news, "new") not in pids.values()
        assert len(news.lost) == 2
    assert "The next one comes in 0.05 s" in caplog.text
    assert "has taken over" in caplog.text
    assert not alive(pids["a"])


async def test_what_a_dead_process_said_last_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running(spec(), PATIENT) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "r", "raise"))
        await news.until(lambda: news.lost)
        await eventually(lambda: "died" in caplog.text)
    assert re.search(
        r"stage work\.0: process \d+ died: ValueError: no such word \(it ended with status 1\)", caplog.text
    )
    assert "in _raise" in caplog.text, "with the traceback"


async def test_a_lost_session_that_still_submits_is_refused_and_one_that_is_released_is_forgotten() -> None:
    async with running(spec(replicas=1), PATIENT) as (pool, news):
        pool.place("a")
        os.kill(await where(pool, news, "a"), signal.SIGKILL)
        await news.until(lambda: news.lost)
        pool.submit(request("a", "late"))
        pool.abort("a")
        pool.submit(request("a", "later"))
        failed = await news.answer("later")
        assert isinstance(failed, StageFailed)
        assert (failed.fatal, failed.error.message) == (
            True,
            "the model's stage work has lost what it held for this request",
        )
        assert len(news.ends) == 2
        pool.release("a")


async def test_while_none_is_up_nobody_is_placed_and_health_says_so() -> None:
    async with running(spec(replicas=1), PATIENT) as (pool, news):
        pool.place("a")
        assert pool.healthy()
        os.kill(await where(pool, news, "a"), signal.SIGKILL)
        await news.until(lambda: news.lost)
        assert not pool.healthy()
        with pytest.raises(DuplexError) as refused:
            pool.place("b")
        assert (refused.value.info.code, refused.value.info.retryable) == (ErrorCode.ENGINE_ERROR, True)


async def test_a_chat_on_a_dead_replica_fails_and_those_in_line_are_served_by_the_next() -> None:
    async with running(spec(chats=1)) as (pool, news):
        pool.submit(chat("one", "asks", "where"))
        pid = int((await news.text("asks")).split()[0])
        pool.submit(chat("one", "runs", "words", times=1_000_000))
        pool.submit(chat("two", "waits"))
        await news.until(lambda: news.texts("runs"))
        os.kill(pid, signal.SIGKILL)
        failed = await news.answer("runs")
        assert isinstance(failed, StageFailed)
        assert (failed.fatal, failed.error.code) == (True, ErrorCode.ENGINE_ERROR)
        assert await news.text("waits") == "1"
        pool.submit(chat("one", "goes on"))
        refused = await news.answer("goes on")
        assert isinstance(refused, StageFailed), "its state is gone, so it cannot go on as if nothing had happened"
        assert not news.lost


async def test_a_replica_that_cannot_start_again_is_tried_again_later_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    async with running(spec(chats=1, crash_on_start=str(broken))) as (pool, news):
        pool.submit(chat("one", "asks", "where"))
        pid = int((await news.text("asks")).split()[0])
        pool.submit(chat("two", "waits"))
        broken.touch()
        os.kill(pid, signal.SIGKILL)
        failed = await news.answer("waits")
        assert isinstance(failed, StageFailed), "nobody waits for a replica that may never come"
        assert failed.fatal
        await eventually(lambda: caplog.text.count("could not be started again") >= 3)
        assert not pool.healthy()
        broken.unlink()
        await recovered(news, 1)
        pool.place("a")
        assert await where(pool, news, "a") != pid
    waits = [float(each) for each in re.findall(r"The next one comes in ([\d.]+) s", caplog.text)]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert set(waits[4:]) <= {0.4}
    assert "it ended with status 7; it printed last: no weights today" in caplog.text


async def test_a_process_that_takes_too_long_to_start_again_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    settings = msgspec.structs.replace(QUICK, start_s=4.0)
    async with running(spec(wait_for=str(weights)), settings) as (pool, news):
        pool.place("a")
        pid = await where(pool, news, "a")
        weights.unlink()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: "it did not become ready within 4 s" in caplog.text)
        weights.touch()
        await recovered(news, 1)


def test_the_wait_doubles_up_to_its_bound() -> None:
    waits = [ProcessSettings().backoff(deaths) for deaths in (1, 2, 3, 6, 7, 8, 5000)]
    assert waits == [0.5, 1, 2, 16, 30, 30, 30]


# -- starting and ending -----------------------------------------------------------------------------------------------


async def test_a_process_that_dies_while_it_starts_stops_the_start_with_its_last_words(tmp_path: Path) -> None:
    held = Held.now()
    (tmp_path / "broken").touch()
    with pytest.raises(StageLoadError, match=r"^it ended with status 7; it printed last: no weights today$"):
        await start(
            spec(replicas=2, crash_on_start=str(tmp_path / "broken")), lambda news: None, driver=DRIVER, settings=QUICK
        )
    assert not held.left()


async def test_a_process_that_does_not_get_ready_stops_the_start(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(QUICK, start_s=1.0)
    held = Held.now()
    with pytest.raises(StageLoadError, match=r"^it did not become ready within 1 s$"):
        await start(spec(wait_for=str(tmp_path / "never")), lambda news: None, driver=DRIVER, settings=settings)
    assert not held.left()


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    held = Held.now()
    starting = asyncio.create_task(
        start(spec(replicas=2, wait_for=str(tmp_path / "never")), lambda news: None, driver=DRIVER, settings=QUICK)
    )
    await eventually(lambda: Held.now().children != held.children)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not held.left()


@pytest.mark.parametrize("state", ["idle", "working", "stopped", "dead", "starting again"])
async def test_closing_leaves_nothing_whatever_the_processes_do(state: str, tmp_path: Path) -> None:
    held = Held.now()
    broken = tmp_path / "weights"
    broken.touch()
    settings = msgspec.structs.replace(PATIENT if state == "dead" else QUICK, stop_s=0.4)
    async with running(spec(replicas=2, wait_for=str(broken)), settings) as (pool, news):
        pool.place("a")
        pid = await where(pool, news, "a")
        if state == "working":
            pool.submit(request("a", "long", "words", times=1_000_000))
            await news.until(lambda: news.texts("long"))
        elif state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        elif state == "dead":
            os.kill(pid, signal.SIGKILL)
            await news.until(lambda: news.lost)
        elif state == "starting again":
            broken.unlink()
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: len(pool.pids) == 2 and pid not in pool.pids)
            broken.touch()
        pids = pool.pids
    told = len(news.all)
    assert not [each for each in (pid, *pids) if alive(each)]
    assert not held.left()
    assert len(news.all) == told
    pool.release("a")
    pool.abort("b")
    assert not pool.healthy()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(request("a", "late"))
    with pytest.raises(DuplexError):
        pool.place("c")


async def test_a_cancelled_close_kills_and_still_leaves_nothing() -> None:
    held = Held.now()
    news = News()
    pool = await start(spec(replicas=2), news, driver=DRIVER, settings=QUICK)
    for pid in pool.pids:
        os.kill(pid, signal.SIGSTOP)
    closing = asyncio.create_task(pool.aclose())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not held.left()


SERVER = """
import asyncio, sys
from tests.support.batched import spec
from tests.support.pools import running

async def main():
    async with running(spec(replicas=2)) as (pool, news):
        print(*pool.pids, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_workers_do_not_outlive_a_server_that_is_killed() -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=subprocess.PIPE, cwd=Path(__file__).parents[5]
    )
    assert server.stdout is not None
    pids = [int(each) for each in (await server.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    server.kill()
    await server.wait()
    await eventually(lambda: not any(map(alive, pids)))


async def test_a_dead_replicas_gauges_are_zero() -> None:
    async with running(spec(), PATIENT) as (pool, news):
        pool.place("a")
        pid = await where(pool, news, "a")
        own = "slots_taken"
        await news.until(lambda: any(each.gauges.get(own) for each in news.stats if each.replica == 0))
        os.kill(pid, signal.SIGKILL)
        await news.until(lambda: news.lost)
        assert [each for each in news.stats if each.replica == 0][-1].gauges[own] == 0
        assert [each for each in news.stats if each.replica is None][-1].gauges["sessions"] == 0


async def test_news_of_a_loss_are_no_replies() -> None:
    async with running(spec(), PATIENT) as (pool, news):
        pool.place("a")
        os.kill(await where(pool, news, "a"), signal.SIGKILL)
        await news.until(lambda: news.lost)
        told: Any = news.lost[0]
        assert isinstance(told, StageLost)
        assert (told.stage, told.session_id) == ("work", "a")
        assert told.error.message == "the model's stage work failed; the server's log says why"
