"""One answer of the cascade on its way from the language model through the voice to the engine.

Owned by :class:`~model_cascade.session.CascadeSession`. An answer may be begun before the user's turn is known to be over;
until it is released, what it would say is held back here. It builds stage requests and decisions, and performs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from duplex_core.audio import pcm16_ms
from duplex_core.config import Modality, SessionConfig
from duplex_core.fence import Fence
from duplex_core.model import (
    Decision,
    EndTurn,
    Lane,
    ModelOutput,
    Speak,
    StageOutput,
    StageRequest,
    StopReason,
    Submit,
    TokenUsage,
    ToolCall,
)
from model_cascade.marks import clause_marks
from model_cascade.parts.clauses import ClauseSplitter
from model_cascade.parts.language_model import ChatRequest, Finished, FinishReason, TextDelta, ToolCallDelta, Usage
from model_cascade.payloads import Utter, Uttered

LANGUAGE = "language"
VOICE = "voice"
CHUNK_MS = 240.0
"""Audio is handed on in pieces of this length, so that an interruption need not wait for a clause to cross the socket."""
TRAILING_PAUSE_MS = 150.0
"""About what a voice puts behind a clause; the words end before it."""


class OpenCall(msgspec.Struct, kw_only=True):
    """A tool call that is being written."""

    call_id: str
    name: str


class Answer:
    """The pipeline of one answer.

    Args:
        ask: what the language model is asked.
        config: the configuration that the answer is made for.
        fence: under which the stages work.
        rate_hz: the cascade's output rate.
        new_id: gives request ids that are unique in the session.
    """

    def __init__(
        self, ask: ChatRequest, config: SessionConfig, fence: Fence, *, rate_hz: int, new_id: Callable[[str], str]
    ) -> None:
        self.ask = ask
        self.config = config
        self._fence = fence
        self._rate_hz = rate_hz
        self._new_id = new_id
        self._language_id = new_id("ask")
        self._open: dict[tuple[str, str], None] = {}
        self._clauses: dict[str, str] = {}
        self._splitter = ClauseSplitter()
        self._calls: dict[int, OpenCall] = {}
        self._end: Finished | None = None
        self._held: deque[Decision] | None = deque()
        self._said = ""
        self._chars = 0
        self._ms = 0.0

    @property
    def said(self) -> str:
        """All the text that the answer has so far."""
        return self._said

    @property
    def released(self) -> bool:
        """Whether its turn is open, so that it speaks."""
        return self._held is None

    @property
    def requests(self) -> tuple[tuple[str, str], ...]:
        """(stage, request id) of the work that is not finished."""
        return tuple(self._open)

    def begin(self) -> ModelOutput:
        """The first request."""
        return self._submit(LANGUAGE, self._language_id, self.ask)

    def _submit(self, stage: str, request_id: str, payload: object) -> Submit:
        self._open[stage, request_id] = None
        request = StageRequest(stage=stage, request_id=request_id, fence=self._fence, lane=Lane.OUTPUT, payload=payload)
        return Submit(request=request)

    def release(self, fence: Fence) -> Sequence[ModelOutput]:
        """The turn is open under ``fence``: say what was held back, and the rest as it comes."""
        held, self._held = self._held or deque(), None
        self._fence = fence
        return [msgspec.structs.replace(decision, fence=fence) for decision in held]

    def take(self, output: StageOutput) -> Sequence[ModelOutput]:
        """A stage's output that belongs to this answer, which ends when every stage has ended its work on it."""
        outputs = [*self._piece(output)]
        if output.final:
            outputs += self._finished(output)
        return outputs

    def _piece(self, output: StageOutput) -> Sequence[ModelOutput]:
        match output.payload:
            case TextDelta(text=text):
                return self._text(text)
            case ToolCallDelta() as piece:
                return self._say(self._call(piece))
            case Finished() as end:
                return self._language_done(end)
            case Uttered(pcm=pcm):
                return self._uttered(output.request_id, pcm)
            case _:
                return ()

    def _finished(self, output: StageOutput) -> Sequence[ModelOutput]:
        """A request is over; one that brought nothing must not leave the answer waiting for ever."""
        self._open.pop((output.stage, output.request_id), None)
        outputs: Sequence[ModelOutput] = ()
        if output.stage == VOICE:
            outputs = self._uttered(output.request_id, b"")
        elif self._end is None:
            outputs = self._language_done(Finished(reason=FinishReason.STOP, usage=Usage()))
        return [*outputs, *self._end_if_done()]

    @property
    def _spoken(self) -> bool:
        return self.config.modality is Modality.AUDIO

    def _text(self, text: str) -> Sequence[ModelOutput]:
        self._said += text
        if not self._spoken:
            return self._say([Speak(fence=self._fence, text=text)])
        return self._utter(self._splitter.feed(text))

    def _utter(self, clauses: list[str]) -> list[ModelOutput]:
        outputs: list[ModelOutput] = []
        for clause in clauses:
            request_id = self._new_id("clause")
            self._clauses[request_id] = clause
            outputs.append(self._submit(VOICE, request_id, Utter(text=clause, voice=self.config.voice or "")))
        return outputs

    def _call(self, piece: ToolCallDelta) -> list[Decision]:
        decisions: list[Decision] = []
        known = self._calls.get(piece.index)
        if known is None:
            decisions += self._end_calls()
            known = self._calls[piece.index] = OpenCall(call_id=piece.call_id, name=piece.name)
        decisions.append(ToolCall(fence=self._fence, call_id=known.call_id, name=known.name, arguments=piece.arguments))
        return decisions

    def _end_calls(self) -> list[Decision]:
        """Calls of one answer come one after the other: the next, or the end, completes the one before."""
        ended: list[Decision] = [
            ToolCall(fence=self._fence, call_id=call.call_id, name=call.name, arguments="", final=True)
            for call in self._calls.values()
        ]
        self._calls.clear()
        return ended

    def _language_done(self, end: Finished) -> Sequence[ModelOutput]:
        self._end = end
        outputs = [*self._say(self._end_calls())]
        if self._spoken:
            outputs += self._utter([clause for clause in self._splitter.finish() if clause.strip()])
        return outputs

    def _uttered(self, request_id: str, pcm: bytes) -> Sequence[ModelOutput]:
        text = self._clauses.pop(request_id, None)
        if text is None:
            return ()
        return self._say(self._speech(text, pcm))

    def _speech(self, text: str, pcm: bytes) -> list[Decision]:
        """A clause as decisions: its text and marks with its first piece of sound."""
        length_ms = pcm16_ms(len(pcm), self._rate_hz)
        voiced_ms = max(length_ms - TRAILING_PAUSE_MS, 0.5 * length_ms)
        marks = clause_marks(text, voiced_ms, chars_before=self._chars, ms_before=self._ms)
        self._chars += len(text)
        self._ms += length_ms
        size = round(self._rate_hz * CHUNK_MS / 1000.0) * 2
        pieces = [pcm[at : at + size] for at in range(0, len(pcm), size)] or [b""]
        first = Speak(fence=self._fence, pcm=pieces[0], text=text, marks=marks)
        return [first, *(Speak(fence=self._fence, pcm=piece) for piece in pieces[1:])]

    def _end_if_done(self) -> Sequence[ModelOutput]:
        if self._end is None or self._open:
            return ()
        spent = self._end.usage
        usage = TokenUsage(input_tokens=spent.prompt_tokens, output_tokens=spent.completion_tokens)
        reason = StopReason.MAX_TOKENS if self._end.reason is FinishReason.LENGTH else StopReason.DONE
        return self._say([EndTurn(fence=self._fence, reason=reason, usage=usage)])

    def _say(self, decisions: list[Decision]) -> Sequence[ModelOutput]:
        """Hand decisions on, or keep them until the answer is released."""
        if self._held is None:
            return decisions
        self._held.extend(decisions)
        return ()
