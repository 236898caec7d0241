"""Traces of turns through OpenTelemetry, as an observer of sessions.

Owns the spans and what stands in them: times, counts, ids and outcomes, never what anybody said. One trace is one turn: from the
user's first sound, or from the answer's beginning where nobody spoke, to the answer's end. Made by the command line for
``--trace``; where the spans go is OpenTelemetry's own configuration (``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like). The
library is an extra and imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duplex_core.events import (
    CloseReason,
    Event,
    InputCleared,
    OutputAudioDelta,
    OverlapDecision,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.observers import ObservedSession, SessionObserver, SessionObserverSpec

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

INSTALL = "pip install 'duplex-server[tracing]'"


class TracingUnavailable(RuntimeError):
    """The library for traces is not installed; the message says how to."""


def start_tracing() -> SessionObserverSpec:
    """An observer that sends a trace of each turn to where OpenTelemetry's environment variables say.

    Raises:
        TracingUnavailable: the extra is not installed.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as exc:
        raise TracingUnavailable(f"traces need an extra that is not installed ({exc}): {INSTALL}") from exc

    def create() -> SessionObserver:
        provider = TracerProvider(resource=Resource.create({"service.name": "duplex-server"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        return TurnTraces(provider.get_tracer("duplex_server"))

    return SessionObserverSpec(id="tracing", summary="sends a trace of each turn through OpenTelemetry", create=create)


class _Turn:
    """The spans of one turn that are open."""

    def __init__(self, root: Span) -> None:
        self.root = root
        self.speech: Span | None = None
        self.response: Span | None = None
        self.audible = False


class TurnTraces:
    """Opens and ends the spans as the events of each session go by (:class:`duplex_core.observers.SessionObserver`)."""

    def __init__(self, tracer: Tracer) -> None:
        """Trace with ``tracer``."""
        self._tracer = tracer
        self._models: dict[str, str] = {}
        self._turns: dict[str, _Turn] = {}
        self._next: dict[str, _Turn] = {}

    def opened(self, session: ObservedSession) -> None:
        """A session was admitted."""
        self._models[session.session_id] = session.config.model

    def event(self, session_id: str, event: Event) -> None:
        """Move the session's spans on."""
        match event:
            case SpeechStarted():
                self._speech_started(session_id, event)
            case SpeechStopped():
                self._speech_ended(session_id)
            case InputCleared():
                self._speech_ended(session_id)
            case ResponseCreated():
                self._answer_begun(session_id, event)
            case OutputAudioDelta() if (turn := self._turns.get(session_id)) is not None and not turn.audible:
                turn.audible = True
                if turn.response is not None:
                    turn.response.add_event("first audio")
            case OverlapDecision() if (turn := self._turns.get(session_id)) is not None:
                turn.root.add_event("overlap", {"decision": event.decision.value})
            case ResponseDone():
                self._answer_ended(session_id, event)
            case _:
                pass

    def closed(self, session_id: str, reason: CloseReason) -> None:
        """The session has ended: so do its spans."""
        for turns in (self._turns, self._next):
            turn = turns.pop(session_id, None)
            if turn is not None:
                turn.root.set_attribute("duplex.closed", reason.value)
                self._end(turn)
        self._models.pop(session_id, None)

    def _begin(self, session_id: str) -> _Turn:
        attributes = {"duplex.session_id": session_id, "duplex.model": self._models.get(session_id, "")}
        return _Turn(self._tracer.start_span("duplex.turn", attributes=attributes))

    def _child(self, name: str, turn: _Turn) -> Span:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an extra

        return self._tracer.start_span(name, context=set_span_in_context(turn.root))

    def _speech_started(self, session_id: str, event: SpeechStarted) -> None:
        """The next turn begins, maybe while this one's answer is still being made."""
        turn = self._next.get(session_id)
        if turn is None:
            turn = self._next[session_id] = self._begin(session_id)
        if turn.speech is None:
            turn.speech = self._child("duplex.user_speech", turn)
            turn.speech.set_attribute("duplex.item_id", event.item_id)

    def _speech_ended(self, session_id: str) -> None:
        turn = self._next.get(session_id)
        if turn is not None and turn.speech is not None:
            turn.speech.end()
            turn.speech = None

    def _answer_begun(self, session_id: str, event: ResponseCreated) -> None:
        turn = self._next.pop(session_id, None) or self._begin(session_id)
        self._turns[session_id] = turn
        turn.response = self._child("duplex.response", turn)
        turn.response.set_attributes(
            {"duplex.response_id": event.response.id, "duplex.epoch": event.epoch, "duplex.turn_id": event.turn_id}
        )

    def _answer_ended(self, session_id: str, event: ResponseDone) -> None:
        turn = self._turns.pop(session_id, None)
        if turn is None or turn.response is None:
            return
        turn.response.set_attribute("duplex.status", event.response.status.value)
        if event.response.status is ResponseStatus.FAILED:
            self._mark_failed(turn.response, event)
        metrics = event.metrics
        if metrics is not None:
            figures = {
                "duplex.first_output_ms": metrics.first_output_ms,
                "duplex.first_audio_ms": metrics.first_audio_ms,
                "duplex.total_ms": metrics.total_ms,
                "duplex.output_tokens": metrics.output_tokens,
                "duplex.ms_per_output_token": metrics.ms_per_output_token,
            }
            turn.response.set_attributes({name: value for name, value in figures.items() if value is not None})
        self._end(turn)

    @staticmethod
    def _mark_failed(span: Span, event: ResponseDone) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - an extra

        details = event.response.status_details
        code = details.error.code if details is not None and details.error is not None else "failed"
        span.set_status(Status(StatusCode.ERROR, code))

    @staticmethod
    def _end(turn: _Turn) -> None:
        for span in (turn.speech, turn.response, turn.root):
            if span is not None:
                span.end()
