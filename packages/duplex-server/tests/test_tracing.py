"""Traces of turns, of real conversations in process, read back from OpenTelemetry's own exporter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from duplex_core.commands import ConversationItemCreate, ResponseCreate, SessionClose
from duplex_core.config import SessionConfig
from duplex_core.events import (
    CloseReason,
    Event,
    ResponseDone,
    ResponseError,
    ResponseStatus,
    SessionClosed,
    SpeechStarted,
    SpeechStopped,
    StatusDetails,
)
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.observers import ObservedSession, SessionObserverSpec
from duplex_core.testing.examples import EVENT_EXAMPLES as EVENTS
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.engine.served import prepare
from duplex_server.tracing import TurnTraces
from tests.support.serving import PARROT, plugins_with

Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture
def traced() -> Iterator[tuple[TurnTraces, Spans]]:
    """An observer that traces, and the spans that have ended so far."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield TurnTraces(provider.get_tracer("test")), lambda: list(kept.get_finished_spans())
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_each_turn_of_a_conversation_is_a_trace_with_its_answer(traced: tuple[TurnTraces, Spans]) -> None:
    observer, spans = traced
    plugins = plugins_with(PARROT)
    served = prepare(plugins, PARROT.id, lambda spec: spec.deploy_model())
    watching = SessionObserverSpec(id="tracing", summary="", create=lambda: observer)
    secret = "what nobody else should read"
    settings = EngineSettings(detector="energy")
    async with DuplexOmni.start(served, plugins=plugins, settings=settings, observers=[watching]) as engine:
        session = await engine.open_session()
        events = session.events()
        for _ in range(2):
            await session.submit(
                ConversationItemCreate(item=MessageItem(role=Role.USER, content=(InputText(text=secret),)))
            )
            await session.submit(ResponseCreate())
            async for event in events:
                if isinstance(event, ResponseDone):
                    break
        await session.submit(SessionClose())
        async for event in events:
            if isinstance(event, SessionClosed):
                break
    ended = spans()
    assert sorted(span.name for span in ended) == ["duplex.response", "duplex.response", "duplex.turn", "duplex.turn"]
    answers = [span for span in ended if span.name == "duplex.response"]
    turns = {span.context.span_id: span for span in ended if span.name == "duplex.turn"}
    for answer in answers:
        assert answer.parent is not None
        turn = turns.pop(answer.parent.span_id)
        assert attributes(turn)["duplex.session_id"] == session.session_id
        told = attributes(answer)
        assert told["duplex.status"] == "completed"
        assert told["duplex.total_ms"] >= told["duplex.first_output_ms"] >= 0
        assert [event.name for event in answer.events] == ["first audio"]
    assert secret not in json.dumps([span.to_json() for span in ended])


def test_the_users_speech_belongs_to_the_turn_that_answers_it(traced: tuple[TurnTraces, Spans]) -> None:
    observer, spans = traced
    tell(observer, SpeechStarted(audio_start_ms=0, item_id="item_01"), SpeechStopped(audio_end_ms=9, item_id="item_01"))
    tell(observer, EVENTS["response.created"], EVENTS["response.done"])
    speech, answer, turn = spans()
    assert [span.name for span in (speech, answer, turn)] == ["duplex.user_speech", "duplex.response", "duplex.turn"]
    assert speech.context.trace_id == answer.context.trace_id == turn.context.trace_id


def test_speech_over_an_answer_begins_the_next_turn(traced: tuple[TurnTraces, Spans]) -> None:
    observer, spans = traced
    tell(observer, EVENTS["response.created"], SpeechStarted(audio_start_ms=0, item_id="item_09"))
    tell(observer, EVENTS["response.done"])
    assert [span.name for span in spans()] == ["duplex.response", "duplex.turn"]
    observer.closed("sess_1", CloseReason.DISCONNECTED)
    *_, speech, turn = spans()
    assert (speech.name, turn.name) == ("duplex.user_speech", "duplex.turn")
    assert attributes(turn)["duplex.closed"] == "disconnected"


def test_a_failed_answer_is_an_error_with_its_code(traced: tuple[TurnTraces, Spans]) -> None:
    observer, spans = traced
    done = EVENTS["response.done"]
    assert isinstance(done, ResponseDone)
    tell(observer, EVENTS["response.created"], failed(done))
    answer, _ = spans()
    assert answer.status.status_code is StatusCode.ERROR
    assert answer.status.description == "engine_error"


def tell(observer: TurnTraces, *events: Event) -> None:
    observer.opened(ObservedSession(session_id="sess_1", config=SessionConfig(model="echo")))
    for event in events:
        observer.event("sess_1", event)


def failed(done: ResponseDone) -> ResponseDone:
    fault = ResponseError(type="server_error", code="engine_error", message="")
    details = StatusDetails(type=ResponseStatus.FAILED, error=fault)
    view = msgspec.structs.replace(done.response, status=ResponseStatus.FAILED, status_details=details)
    return msgspec.structs.replace(done, response=view)
