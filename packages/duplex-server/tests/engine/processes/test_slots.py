"""The books of the slots: what is due when, what takes part, which deadlines were missed. All in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duplex_core.errors import ErrorCode, ErrorInfo, error
from duplex_core.fence import Fence
from duplex_core.stages import Lane, StageRequest
from duplex_core.workers import SlotResult, SlotWork
from duplex_server.engine.stages.batched.slots import Answer, Slots, WrongAnswers

GATHER_S = 0.002
OTHERS_FAULT = error(ErrorCode.INVALID_VALUE, "that is no word", param="session.options.word")


def request(who: str, request_id: str = "r", payload: Any = "frame") -> StageRequest:
    return StageRequest(
        stage="work", request_id=request_id, fence=Fence(session_id=who), lane=Lane.OUTPUT, payload=payload
    )


def slots(*who: str, count: int = 4, frame_ms: float | None = None) -> Slots:
    made = Slots("work", count, frame_ms=frame_ms, gather_s=GATHER_S)
    for each in who:
        made.place(each)
    return made


def submit(made: Slots, who: str, request_id: str = "r", *, at: float, came: float | None = None) -> None:
    made.submit(request(who, request_id, f"{who}:{request_id}"), submitted=at, now=at if came is None else came)


def step(made: Slots, begin: float, end: float, result: Callable[[SlotWork], SlotResult] | None = None) -> list[Answer]:
    answer = result or (lambda work: SlotResult(slot=work.slot, outputs=(work.payload,)))
    return made.finish([answer(work) for work in made.begin(begin)], end)


def test_a_step_is_due_when_everyone_has_work_or_the_oldest_has_waited() -> None:
    made = slots("a", "b")
    assert made.due(1.0) is None
    submit(made, "a", at=0.9, came=1.0)
    assert made.due(1.0005) == pytest.approx(1.002), "work waits a little for the others', from when it came here"
    submit(made, "b", at=1.001)
    assert made.due(1.001) == 1.001
    assert {work.payload for work in made.begin(1.001)} == {"a:r", "b:r"}


def test_a_request_in_the_middle_of_its_steps_does_not_wait_for_others() -> None:
    made = slots("a", "b")
    submit(made, "a", at=1.0)
    step(made, 1.0, 1.01, lambda work: SlotResult(slot=work.slot, done=False))
    assert made.due(1.01) == 1.01
    submit(made, "b", at=1.01)
    first, second = sorted(made.begin(1.01), key=lambda work: work.payload is not None)
    assert (first.payload, second.payload) == (None, "b:r")


def test_requests_of_one_session_take_part_one_after_the_other() -> None:
    made = slots("a")
    for name in ("one", "two"):
        submit(made, "a", name, at=1.0)
    assert [each.request.request_id for each in step(made, 1.0, 1.01)] == ["one"]
    assert made.due(1.01) == 1.01
    assert [each.request.request_id for each in step(made, 1.01, 1.02)] == ["two"]
    assert (made.due(1.02), made.queued) == (None, 0)


def test_slots_are_given_once_and_come_back() -> None:
    made = slots(count=2)
    first, second = made.place("a"), made.place("b")
    assert {first, second} == {0, 1}
    assert made.release("a") == first
    assert (made.place("c"), made.taken) == (first, 2)


def test_an_aborted_request_takes_no_further_part_and_only_a_begun_one_was_interrupted() -> None:
    made = slots("a", "b")
    slot = made.begin(1.0)
    assert slot == []
    submit(made, "a", "one", at=1.0)
    submit(made, "a", "two", at=1.0)
    assert made.abort("a", "two") is None
    step(made, 1.0, 1.01, lambda work: SlotResult(slot=work.slot, done=False))
    submit(made, "a", "three", at=1.01)
    interrupted = made.abort("a", "one")
    assert interrupted is not None
    assert [(work.slot, work.payload) for work in made.begin(1.02)] == [(interrupted, "a:three")]
    made.finish([SlotResult(slot=interrupted)], 1.03)
    assert made.abort("a") is None
    assert made.abort("b") is None


@pytest.mark.parametrize("answered", [[], [0, 0], [0, 1], [1]])
def test_a_worker_that_answers_other_slots_is_at_fault(answered: list[int]) -> None:
    made = slots("a", count=1)
    submit(made, "a", at=1.0)
    made.begin(1.0)
    with pytest.raises(WrongAnswers, match=r"asked for a step of the slots \[0\] and answered"):
        made.finish([SlotResult(slot=slot) for slot in answered], 1.1)


@pytest.mark.parametrize(
    ("answered", "match"),
    [
        (None, "returned a NoneType, not a list"),
        (["no"], "returned 'no', not a SlotResult"),
        ([SlotResult(slot=0, outputs=7)], r"outputs=7.* not a SlotResult with a tuple of outputs"),  # type: ignore[arg-type]
        ([SlotResult(slot=0, failed=OSError("gone"))], r"refused a request with OSError\('gone'\), not a sentence"),  # type: ignore[arg-type]
    ],
)
def test_what_a_step_returned_instead_of_results_is_named(answered: Any, match: str) -> None:
    made = slots("a", count=1)
    submit(made, "a", at=1.0)
    made.begin(1.0)
    with pytest.raises(WrongAnswers, match=match):
        made.finish(answered, 1.1)


def test_deadline_misses_are_counted_for_exactly_what_ended_late() -> None:
    """Four sessions with frames of 80 ms, phases apart; one step of the fifty takes 130 ms instead of 20."""
    made = slots("a", "b", "c", "d", frame_ms=80)
    phase = {"a": 0.000, "b": 0.005, "c": 0.040, "d": 0.079}
    frames = sorted((at + 0.080 * turn, who, turn) for who, at in phase.items() for turn in range(50))
    now, misses, late, steps = 0.0, 0, set(), 0
    due: dict[tuple[str, str], float] = {}
    while frames or made.queued:
        while frames and frames[0][0] <= now:
            at, who, turn = frames.pop(0)
            submit(made, who, str(turn), at=at, came=at)
            due[who, str(turn)] = at + 0.080
        begin = made.due(now)
        if begin is None or begin > now:
            now = min([each for each in (begin, frames[0][0] if frames else None) if each is not None])
            continue
        steps += 1
        end = now + (0.130 if steps == 25 else 0.020)
        for answer in step(made, now, end):
            key = (answer.request.fence.session_id, answer.request.request_id)
            if end > due[key]:
                late.add(key)
            assert answer.metrics is not None
            misses += answer.metrics.deadline_misses
            assert answer.metrics.deadline_misses == int(key in late)
            assert answer.metrics.total_ms == pytest.approx((end - due[key] + 0.080) * 1000)
        now = end
    counts, samples = made.measured()
    assert len(due) == 200
    assert 0 < misses < 10
    assert (counts["deadline_misses"], misses) == (len(late), len(late))
    assert counts["slot_steps"] == len(samples["queue"]) == len(samples["compute"]) == 200
    assert counts["steps"] == steps == len(samples["step"])
    assert made.measured() == ({}, {})


def test_without_a_slow_step_nothing_is_missed_and_a_frame_late_by_a_hair_is() -> None:
    for end, missed in ((1.080, 0), (1.0801, 1)):
        made = slots("a", frame_ms=80)
        submit(made, "a", at=1.0, came=1.03)  # the way here is part of the frame's time
        (answer,) = step(made, 1.03, end)
        assert answer.metrics is not None
        assert answer.metrics.deadline_misses == missed


def test_each_further_step_of_a_request_is_due_a_frame_later() -> None:
    made = slots("a", count=1, frame_ms=80)
    submit(made, "a", at=1.0)
    ends = (1.07, 1.17, 1.23, 1.33)  # due at 1.08, 1.16, 1.24, 1.32
    answers = []
    for end in ends:
        made.begin(end - 0.01)
        answers += made.finish([SlotResult(slot=0, done=end == ends[-1])], end)
    metrics = answers[-1].metrics
    assert metrics is not None
    assert (metrics.steps, metrics.deadline_misses) == (4, 2)
    assert [each.metrics for each in answers[:-1]] == [None] * 3


def test_queue_compute_transfer_gap_and_jitter_are_what_passed() -> None:
    made = slots("a", frame_ms=80)
    for turn, (at, came, begin, end) in enumerate([(1.0, 1.001, 1.003, 1.013), (1.08, 1.0805, 1.09, 1.103)]):
        submit(made, "a", str(turn), at=at, came=came)
        step(made, begin, end)
    _, samples = made.measured()
    assert samples["transfer_in"] == pytest.approx([0.001, 0.0005])
    assert samples["queue"] == pytest.approx([0.002, 0.0095])
    assert samples["compute"] == pytest.approx([0.010, 0.013])
    assert samples["gap"] == pytest.approx([0.090])
    assert samples["jitter"] == pytest.approx([0.010])


def test_first_output_and_total_count_from_submission() -> None:
    made = slots("a")
    submit(made, "a", at=1.0, came=1.01)
    step(made, 1.02, 1.03, lambda work: SlotResult(slot=work.slot, done=False))
    step(made, 1.03, 1.05, lambda work: SlotResult(slot=work.slot, outputs=("x",), done=False))
    (answer,) = step(made, 1.05, 1.06, lambda work: SlotResult(slot=work.slot))
    metrics = answer.metrics
    assert metrics is not None
    assert (metrics.queue_ms, metrics.first_ms, metrics.total_ms) == pytest.approx((20, 50, 60))
    assert (metrics.steps, metrics.deadline_misses) == (3, 0)


def test_the_pause_between_two_requests_is_no_gap_where_there_are_no_frames() -> None:
    made = slots("a")
    for turn in range(2):
        submit(made, "a", str(turn), at=1.0 + turn)
        step(made, 1.0 + turn, 1.01 + turn, lambda work: SlotResult(slot=work.slot, done=False))
        step(made, 1.01 + turn, 1.03 + turn)
    _, samples = made.measured()
    assert samples["gap"] == pytest.approx([0.02, 0.02])
    assert "jitter" not in samples


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        ("too long", error(ErrorCode.ENGINE_ERROR, "too long")),
        (OTHERS_FAULT, OTHERS_FAULT),
    ],
    ids=["a-sentence", "a-code"],
)
def test_a_refused_request_ends_and_leaves_the_others(failed: str | ErrorInfo, told: ErrorInfo) -> None:
    made = slots("a", "b")
    submit(made, "a", at=1.0)
    submit(made, "b", at=1.0)
    work = made.begin(1.0)
    refused = SlotResult(slot=work[0].slot, failed=failed, done=False)
    answers = made.finish([refused, SlotResult(slot=work[1].slot, done=False)], 1.1)
    assert [(each.failed, each.metrics is not None) for each in answers] == [(told, True), (None, False)]
    assert made.queued == 1
