"""A stage on real worker processes: what sessions and chat requests get, one by one and together."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.stages import LinkKind, Resources, StageFailed, StageOutput, StageSpec
from duplex_core.tensors import Tensor
from duplex_server.engine.metrics import EngineMetrics
from duplex_server.engine.stages.loading import StageLoadError
from duplex_server.engine.stages.processes.runtime import start
from tests.support.batched import DECLINED, TOO_LARGE, Ask, Said, spec
from tests.support.pools import DRIVER, QUICK, chat, request, running


async def test_a_sessions_requests_share_its_slot_and_run_in_order() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        for index in range(4):
            pool.submit(request("a", f"r{index}", "words" if index == 1 else "count", times=3))
        await news.ended(4)
        assert [each.request_id for each in news.ends] == ["r0", "r1", "r2", "r3"]
        assert [news.texts(f"r{index}") for index in range(4)] == [["1"], ["0", "1", "2"], ["2"], ["3"]]
        assert [each.final for each in news.replies if each.request_id == "r1"] == [False, False, True]  # type: ignore[union-attr]


async def test_the_final_output_has_what_the_stage_did() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "r", "words", times=3))
        reply = await news.answer("r")
        assert isinstance(reply, StageOutput)
        (metrics,) = reply.metrics
        assert (metrics.stage, metrics.steps, metrics.deadline_misses) == ("work", 3, 0)
        assert metrics.first_ms is not None
        assert 0 < metrics.queue_ms <= metrics.first_ms <= metrics.total_ms
        assert [each.metrics for each in news.replies[:-1]] == [(), ()]


async def test_a_late_frame_is_told_with_its_answer() -> None:
    async with running(spec(frame_ms=50)) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "late", "slow", times=80))
        reply = await news.answer("late")
        assert isinstance(reply, StageOutput)
        assert reply.metrics[0].deadline_misses == 1


async def test_an_answer_without_contents_ends_its_request() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "r", "nothing"))
        reply = await news.answer("r")
        assert isinstance(reply, StageOutput)
        assert (reply.payload, reply.final, len(reply.metrics)) == (None, True, 1)


async def test_what_is_for_the_links_comes_as_a_forward_with_its_tensors() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        tensor = Tensor(dtype="int16", shape=(2,), data=b"abcd")
        pool.submit(request("a", "r", "forward", tensor=tensor))
        await news.answer("r")
        first, passed = news.replies
        assert isinstance(first, StageOutput)
        assert isinstance(passed, StageOutput)
        assert (first.payload, first.forward, first.final) == (Said(text="first"), None, False)
        assert passed.forward is not None
        assert (passed.payload, passed.final) == (None, True)
        assert (passed.forward.kind, passed.forward.payload) == (LinkKind.TOKENS, Said(text="on", tensor=tensor))


async def test_tensors_larger_than_the_sockets_buffers_go_both_ways_at_once() -> None:
    async with running(spec(sessions=3)) as (pool, news):
        sent: dict[str, np.ndarray[Any, Any]] = {}
        for who in "abc":
            pool.place(who)
            sent[who] = np.random.default_rng(ord(who)).integers(0, 256, 5_000_000, dtype=np.uint8)
            pool.submit(request(who, who, "reverse", tensor=Tensor(dtype="uint8", shape=(5_000_000,), data=sent[who])))
            pool.submit(request(who, f"{who}-next"))
        for who in "abc":
            reply = await news.answer(who)
            assert isinstance(reply, StageOutput)
            assert reply.payload.text == "bytearray", "the worker got memory that it may write to"
            assert np.array_equal(np.asarray(reply.payload.tensor), sent[who][::-1])
            assert await news.text(f"{who}-next") == "1"


async def test_the_senders_memory_is_free_when_submit_returns() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        samples = np.full(3_000_000, 7, np.uint8)
        pool.submit(request("a", "r", "reverse", tensor=Tensor(dtype="uint8", shape=(3_000_000,), data=samples)))
        samples[:] = 0
        reply = await news.answer("r")
        assert isinstance(reply, StageOutput)
        assert np.all(np.asarray(reply.payload.tensor) == 7)


async def test_sessions_are_spread_over_the_replicas_and_stay_where_they_are() -> None:
    async with running(spec(replicas=2)) as (pool, news):
        for turn in range(2):
            for who in "abcd":
                pool.place(who)
                pool.submit(request(who, f"{who}{turn}", "where"))
        where = {f"{who}{turn}": (await news.text(f"{who}{turn}")).split() for who in "abcd" for turn in range(2)}
        for who in "abcd":
            assert where[f"{who}0"] == where[f"{who}1"]
        assert len({(pid, slot) for pid, slot, _ in where.values()}) == 4
        assert {int(pid) for pid, _, _ in where.values()} == set(pool.pids)


async def test_a_full_stage_refuses_and_changes_nothing() -> None:
    async with running(spec(sessions=1, replicas=2)) as (pool, news):
        pool.place("a")
        pool.place("b")
        pool.place("a")
        with pytest.raises(DuplexError) as refused:
            pool.place("c")
        assert refused.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
        pool.release("a")
        pool.release("a")
        pool.place("c")
        pool.submit(request("c", "r", "where"))
        pool.submit(request("b", "r", "where"))
        await news.ended(2)


async def test_who_gets_a_slot_begins_anew() -> None:
    async with running(spec(sessions=1, chats=0)) as (pool, news):
        for who in "abc":
            pool.place(who)
            for index in range(2):
                pool.submit(request(who, f"{who}{index}"))
            assert [await news.text(f"{who}{index}") for index in range(2)] == ["1", "2"]
            pool.release(who)


async def test_a_step_is_of_all_that_have_work() -> None:
    async with running(spec(sessions=4, gather_ms=60_000.0)) as (pool, news):
        for who in "abcd":
            pool.place(who)
        for turn in range(2):
            for who in "abcd":
                pool.submit(request(who, f"{who}{turn}", "together"))
        assert [await news.text(f"{who}{turn}") for who in "abcd" for turn in range(2)] == ["4"] * 8


# -- aborting ----------------------------------------------------------------------------------------------------------


async def test_nothing_comes_after_an_abort_and_the_worker_is_told() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.place("b")
        pool.submit(request("a", "long", "words", times=1_000_000))
        await news.until(lambda: len(news.texts("long")) > 3)
        pool.abort("a", "long")
        told = len(news.replies)
        pool.submit(request("a", "asked", "interruptions"))
        pool.submit(request("b", "other", "interruptions"))
        assert (await news.text("asked"), await news.text("other")) == ("1", "0")
        assert [each.request_id for each in news.replies[told:]] in (["asked", "other"], ["other", "asked"])


async def test_what_is_on_its_way_when_it_is_aborted_is_dropped_also_when_the_id_is_used_again() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        for _ in range(30):
            pool.submit(request("a", "same", "words", times=1_000_000))
            await asyncio.sleep(0)
            pool.abort("a", "same")
        told = len(news.replies)
        pool.submit(request("a", "same", "count"))
        await news.ended(1)
        assert [each.payload.text for each in news.replies[told:]] == ["1"]  # type: ignore[union-attr]


async def test_an_abort_of_a_session_stops_all_of_its_requests_and_no_others() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.place("b")
        for who in "ab":
            for index in range(3):
                pool.submit(request(who, f"{who}{index}"))
        pool.abort("a")
        assert await news.text("b2") == "3"
        pool.submit(request("a", "later"))
        await news.answer("later")
        assert {each.request_id for each in news.ends} == {"b0", "b1", "b2", "later"}


async def test_a_release_ends_what_is_open() -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.place("b")
        pool.submit(request("a", "long", "words", times=1_000_000))
        await news.until(lambda: news.texts("long"))
        pool.release("a")
        told = len(news.replies)
        pool.place("c")
        pool.submit(request("c", "new", "interruptions"))
        assert await news.text("new") == "0"
        assert [each.request_id for each in news.replies[told:]] == ["new"]


# -- chat requests -----------------------------------------------------------------------------------------------------


async def test_chats_wait_for_a_seat_in_order_and_take_none_of_a_sessions() -> None:
    async with running(spec(sessions=1, chats=1)) as (pool, news):
        for name in ("one", "two", "three"):
            pool.submit(chat(name, f"{name}-first", "words", times=2))
            pool.submit(chat(name, f"{name}-second"))
        pool.place("a")
        pool.submit(request("a", "talks"))
        assert await news.text("talks") == "1"
        assert await news.text("one-second") == "1"
        assert {each.request_id for each in news.ends} == {"one-first", "one-second", "talks"}
        pool.release("two")
        pool.release("one")
        await news.answer("three-second")
        assert news.texts("three-first") == ["0", "1"]
        assert not news.texts("two-first")


async def test_a_full_line_refuses_the_next_chat() -> None:
    async with running(spec(chats=1), QUICK) as (pool, news):
        for index in range(1 + QUICK.line):
            pool.submit(chat(f"c{index}", "r"))
        pool.submit(chat("late", "late"))
        refused = await news.answer("late")
        assert isinstance(refused, StageFailed)
        assert (refused.error.code, refused.fatal) == (ErrorCode.RESOURCE_EXHAUSTED, True)
        assert "64 chat requests wait" in refused.error.message


async def test_an_aborted_chat_still_waits_and_a_released_one_does_not() -> None:
    async with running(spec(chats=1)) as (pool, news):
        for name in ("one", "two", "three"):
            pool.submit(chat(name, name))
        pool.abort("two", "two")
        pool.release("one")
        pool.submit(chat("two", "again"))
        assert await news.text("again") == "1"
        pool.release("two")
        assert await news.text("three") == "1"


# -- faults of one request ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("refuse", "no words today"),
        ("misfit", "the model's stage work failed; the server's log says why"),
        ("unsendable", "the model's stage work failed; the server's log says why"),
        ("stuck", "the model's stage work failed; the server's log says why"),
        ("large", "the model's stage work failed; the server's log says why"),
    ],
)
async def test_a_fault_of_one_request_is_that_requests_alone(
    do: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "good"))
        pool.submit(request("a", "bad", do))
        pool.submit(request("a", "next"))
        failed = await news.answer("bad")
        assert isinstance(failed, StageFailed)
        assert (failed.error.code, failed.error.message, failed.fatal) == (ErrorCode.ENGINE_ERROR, message, False)
        assert await news.text("next") == "2"
        assert pool.healthy()
    assert caplog.records


async def test_a_refusal_keeps_the_code_that_the_worker_gave_it(caplog: pytest.LogCaptureFixture) -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        pool.submit(request("a", "bad", "decline"))
        pool.submit(request("a", "next"))
        failed = await news.answer("bad")
        assert isinstance(failed, StageFailed)
        assert (failed.error, failed.fatal) == (DECLINED, False)
        assert not failed.error.retryable
        assert await news.text("next") == "1"
    assert "request bad was refused: that is no word of ours" in caplog.text


@pytest.mark.parametrize("payload", [object(), {"type": "ask", "do": 7}, Ask(do="x" * TOO_LARGE)])
async def test_a_payload_that_is_none_of_the_stages_fails_its_request(
    payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(spec()) as (pool, news):
        pool.place("a")
        good = request("a", "bad")
        pool.submit(type(good)(**{name: getattr(good, name) for name in good.__struct_fields__} | {"payload": payload}))
        pool.submit(request("a", "next"))
        failed = await news.answer("bad")
        assert isinstance(failed, StageFailed)
        assert not failed.fatal
        assert await news.text("next") == "1"
    assert "payload" in caplog.text or "cannot be sent" in caplog.text


async def test_who_has_no_seat_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with running(spec()) as (pool, news):
        pool.submit(request("stranger", "r"))
        failed = await news.answer("r")
        assert isinstance(failed, StageFailed)
        assert failed.error.message == "the model's stage work has no seat for this session"
    assert "has no seat and submits" in caplog.text


async def test_an_id_that_is_open_is_refused() -> None:
    async with running(spec()) as (pool, _):
        pool.place("a")
        pool.submit(request("a", "r", "words", times=1_000_000))
        with pytest.raises(ValueError, match="open already"):
            pool.submit(request("a", "r"))


# -- what it says of itself --------------------------------------------------------------------------------------------


async def test_measurements_reach_the_engines_metrics() -> None:
    metrics = EngineMetrics()
    async with running(spec(frame_ms=40)) as (pool, news):
        pool.place("a")
        for index in range(5):
            pool.submit(request("a", f"r{index}", "slow", times=60 if index == 4 else 1))
        await news.ended(5)
        await news.until(lambda: any(each.counts.get("steps") for each in news.stats))
        for each in news.stats:
            metrics.measured(each)
    value = metrics.registry.get_sample_value
    assert value("duplex_stage_events_total", {"stage": "work", "what": "steps"}) == 5
    assert (value("duplex_stage_events_total", {"stage": "work", "what": "deadline_misses"}) or 0) >= 1
    assert value("duplex_stage_load", {"stage": "work", "replica": "0", "what": "slots_taken"}) == 1
    assert value("duplex_stage_load", {"stage": "work", "replica": "", "what": "replicas_up"}) == 1
    for part, count in {
        "queue": 5,
        "compute": 5,
        "transfer_in": 5,
        "transfer_out": 5,
        "gap": 4,
        "jitter": 4,
        "step": 5,
    }.items():
        assert value("duplex_stage_unit_seconds_count", {"stage": "work", "part": part}) == count, part
    assert (value("duplex_stage_unit_seconds_sum", {"stage": "work", "part": "compute"}) or 0) >= 0.064


async def test_what_a_worker_logs_and_prints_is_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with running(spec()) as (pool, news):
            pool.place("a")
            pool.submit(request("a", "bad", "refuse"))
            await news.answer("bad")
    (told,) = [each for each in caplog.records if each.name == "duplex_server.stage.work.0"]
    assert told.levelno == logging.WARNING
    assert told.getMessage().endswith("request bad was refused: no words today")


# -- starting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"factory": "nonsense"}, r"^its factory 'nonsense' must look like"),
        ({"factory": "no_such_package:Worker"}, r"^its factory no_such_package:Worker cannot be imported"),
        (
            {"factory": "builtins:dict"},
            r"^its factory builtins:dict made a dict, which is no BatchedWorker: it has no frame_ms",
        ),
        ({"options": {"broken": "weights.bin: checksum differs"}}, r"^OSError: weights\.bin: checksum differs$"),
        ({"options": {"no_such": 1}}, r"^TypeError: .*unexpected keyword argument 'no_such'"),
        ({"payloads": ""}, "set payloads to the import path"),
        ({"resources": Resources()}, r"set resources\.sessions"),
        ({"resources": Resources(sessions=0, chats=0)}, "cannot hold 0 sessions and 0 chat requests"),
    ],
)
async def test_a_stage_that_cannot_start_says_why(changes: dict[str, Any], match: str) -> None:
    good = spec()
    wrong = StageSpec(**{name: getattr(good, name) for name in good.__struct_fields__} | changes)
    with pytest.raises(StageLoadError, match=match):
        await start(wrong, lambda news: None, driver=DRIVER, settings=QUICK)


async def test_a_worker_runs_on_the_device_of_its_replica() -> None:
    good = spec(replicas=2, sessions=1)
    resources = Resources(sessions=1, devices=("cpu:0", "cpu:1"))
    placed = StageSpec(**{name: getattr(good, name) for name in good.__struct_fields__} | {"resources": resources})
    async with running(placed) as (pool, news):
        for who in "ab":
            pool.place(who)
            pool.submit(request(who, who, "where"))
        assert [(await news.text(who)).split()[2] for who in "ab"] == ["cpu:0", "cpu:1"]


async def test_options_that_cannot_be_sent_are_named() -> None:
    with pytest.raises(StageLoadError, match="options"):
        await start(spec(broken=object()), lambda news: None, driver=DRIVER, settings=QUICK)


def test_the_payload_types_are_what_the_tests_take_them_for() -> None:
    assert Ask().do == "count"
