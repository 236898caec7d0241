"""How long an answer took stands in its ``response.done``: from its opening, finalised once, whatever its end."""

from __future__ import annotations

import pytest

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.config import Modality
from duplex_core.errors import ErrorCode, error
from duplex_core.events import CloseReason, ResponseDone, ResponseMetrics, ResponseStatus
from duplex_core.machine.io import CloseRequested
from duplex_core.model import TokenUsage
from tests.support.machines import Bench


def metrics(bench: Bench) -> ResponseMetrics:
    found = bench.of(ResponseDone)[-1].metrics
    assert found is not None
    return found


def test_an_answer_is_timed_from_its_opening() -> None:
    bench = Bench()
    bench.wait(10_000.0)
    bench.ask()
    bench.wait(180.5)
    bench.speak("One ")
    bench.wait(120.0)
    bench.speak("two.", 100.0)
    bench.wait(300.0)
    bench.end(usage=TokenUsage(input_tokens=9, output_tokens=8))
    assert metrics(bench) == ResponseMetrics(
        first_output_ms=180.5, first_audio_ms=300.5, total_ms=600.5, output_tokens=8, ms_per_output_token=60.0
    )


def test_the_next_answer_has_times_of_its_own() -> None:
    bench = Bench(modality=Modality.TEXT)
    for wait_ms in (100.0, 40.0):
        bench.ask()
        bench.wait(wait_ms)
        bench.speak("Yes.")
        bench.end(usage=TokenUsage(output_tokens=1))
        bench.wait(5000.0)
        assert metrics(bench) == ResponseMetrics(
            first_output_ms=wait_ms, first_audio_ms=None, total_ms=wait_ms, output_tokens=1, ms_per_output_token=None
        )


def test_a_tool_call_is_output_too() -> None:
    bench = Bench(capabilities={"tools": True})
    bench.ask()
    bench.wait(50.0)
    bench.do(m.ToolCall(fence=bench.fence, call_id="c1", name="clock", arguments="{}", final=True))
    bench.wait(50.0)
    bench.end(usage=TokenUsage(output_tokens=3))
    assert metrics(bench) == ResponseMetrics(
        first_output_ms=50.0, first_audio_ms=None, total_ms=100.0, output_tokens=3, ms_per_output_token=25.0
    )


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (c.ResponseCancel(), ResponseStatus.CANCELLED),
        (CloseRequested(reason=CloseReason.SHUTDOWN), ResponseStatus.CANCELLED),
        (
            CloseRequested(reason=CloseReason.ERROR, error=error(ErrorCode.ENGINE_ERROR, "gone")),
            ResponseStatus.FAILED,
        ),
    ],
)
def test_an_answer_that_was_stopped_has_its_times_and_no_tokens(
    ending: c.Command | CloseRequested, status: ResponseStatus
) -> None:
    bench = Bench()
    bench.ask()
    bench.wait(70.0)
    bench.speak("One ", 100.0)
    bench.wait(30.0)
    bench.do(ending)
    assert bench.only(ResponseDone).response.status is status
    assert metrics(bench) == ResponseMetrics(
        first_output_ms=70.0, first_audio_ms=70.0, total_ms=100.0, output_tokens=None, ms_per_output_token=None
    )


def test_an_answer_without_any_output_has_its_end_alone() -> None:
    bench = Bench()
    bench.ask()
    bench.wait(25.0)
    bench.do(m.Listen(fence=bench.fence))
    assert metrics(bench) == ResponseMetrics(
        first_output_ms=None, first_audio_ms=None, total_ms=25.0, output_tokens=None, ms_per_output_token=None
    )
