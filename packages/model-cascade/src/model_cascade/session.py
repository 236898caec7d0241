"""The cascade's side of one conversation: recognition, then a language model, then a voice.

A :class:`~duplex_core.model.ModelSession`, driven by the engine. When the user pauses, the words so far are recognised and
an answer to them is begun at once and held back; when the turn is over and the words are still those, it is released, so
that the silence which ends a turn is not lost time. If the user goes on instead, it is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duplex_core import model as m
from duplex_core.config import Modality, SessionConfig
from duplex_core.fence import Fence
from duplex_core.items import InputAudio, Item, ItemStatus, MessageItem, OutputAudio, OutputText, Role
from duplex_core.spec import SessionContext
from duplex_core.transcribing import Listening
from model_cascade.answer import LANGUAGE, Answer
from model_cascade.payloads import INPUT_RATE_HZ, RECOGNIZER, Prepare
from model_cascade.prompt import build, missing_transcripts
from model_cascade.settings import CascadeSettings
from model_cascade.silence import says_nothing


class CascadeSession:
    """One conversation, or one chat request.

    Args:
        context: who it is for.
        rate_hz: the rate of the voices.
        settings: the deploy settings.
    """

    def __init__(self, context: SessionContext, *, rate_hz: int, settings: CascadeSettings) -> None:
        self._config: SessionConfig = context.config
        self._fence = Fence(session_id=context.session_id)
        self._rate_hz = rate_hz
        self._language = settings.language_model
        self._speculate = settings.speculate and not context.chat
        self._serial = 0
        self._listening = Listening(stage=RECOGNIZER, rate_hz=INPUT_RATE_HZ, new_id=self._new_id)
        self._answer: Answer | None = None
        self._open: m.Respond | None = None
        self._history: tuple[Item, ...] = ()
        self._prepared = False

    def _new_id(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}-{self._serial}"

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case m.AudioArrived():
                return self._listening.heard(event.pcm, self._fence)
            case m.StageOutput():
                return self._stage_output(event)
            case m.StageFailed():
                return self._stage_failed(event)
            case m.SpeechBegan() | m.SpeechPaused() | m.SpeechResumed() | m.SpeechDropped():
                return self._speech(event)
            case m.InputCommitted():
                return self._committed(event)
            case m.Respond():
                return self._respond(event)
            case m.Interrupted():
                return self._interrupted(event)
            case m.Configured():
                return self._configured(event)
            case m.HistoryChanged():
                self._history = event.history
                return self._drop_speculation()
            case m.ToolResult():
                self._history = (*self._history, event.item)
                return ()
            case _:
                return ()

    def _configured(self, event: m.Configured) -> Sequence[m.ModelOutput]:
        """A new system prompt is read ahead, while nobody waits for an answer to it."""
        changed = not self._prepared or event.config.instructions != self._config.instructions
        self._config = event.config
        self._fence = event.fence
        outputs = self._drop_speculation()
        if not (changed and self._speculate):
            return outputs
        self._prepared = True
        request = m.StageRequest(
            stage=LANGUAGE,
            request_id=self._new_id("prepare"),
            fence=self._fence,
            lane=m.Lane.INPUT,
            payload=Prepare(messages=build(self._config, self._history, self._language).messages),
        )
        return [*outputs, m.Submit(request=request)]

    # -- the user -----------------------------------------------------------------------------------------------------

    def _speech(
        self, event: m.SpeechBegan | m.SpeechPaused | m.SpeechResumed | m.SpeechDropped
    ) -> Sequence[m.ModelOutput]:
        match event:
            case m.SpeechBegan():
                self._listening.began(event.item_id, event.start_ms, event.pcm)
                return ()
            case m.SpeechPaused():
                return self._listening.paused(event.at_ms, self._fence)
            case m.SpeechResumed():
                return [*self._listening.resumed(), *self._drop_speculation()]
            case m.SpeechDropped():
                return [*self._listening.dropped(event.item_id), *self._drop_speculation()]

    def _committed(self, event: m.InputCommitted) -> Sequence[m.ModelOutput]:
        outputs = self._listening.committed(event.item_id, event.pcm, self._fence)
        known = self._listening.transcripts.get(event.item_id)
        item = MessageItem(id=event.item_id, role=Role.USER, content=(InputAudio(audio=event.pcm, transcript=known),))
        self._history = (*self._history, item)
        if known is None:
            return outputs
        return [*outputs, m.UserTranscript(item_id=event.item_id, text=known, final=True)]

    def _recognized(self, output: m.StageOutput) -> Sequence[m.ModelOutput]:
        found = self._listening.take(output)
        if found is None:
            return ()
        item_id, text, final = found
        told = m.UserTranscript(item_id=item_id, text=text, final=final)
        if final:
            return [told, *self._answer_if_ready()]
        spoken = self._listening.current
        if spoken is not None and spoken.candidate is not None:
            return [told, *self._begin_speculation(item_id, text)]
        return [told]

    # -- answering ----------------------------------------------------------------------------------------------------

    def _begin_speculation(self, item_id: str, text: str) -> Sequence[m.ModelOutput]:
        """Begin the answer that will be wanted if the user has finished."""
        outputs = self._drop_speculation()
        if not self._speculate or says_nothing(text) or self._open is not None:
            return outputs
        said = MessageItem(id=item_id, role=Role.USER, content=(InputAudio(transcript=text),))
        known = self._listening.transcripts
        ask = build(
            self._config, tuple(with_transcript(item, known) for item in (*self._history, said)), self._language
        )
        self._answer = Answer(ask, self._config, self._fence, rate_hz=self._rate_hz, new_id=self._new_id)
        return [*outputs, self._answer.begin()]

    def _drop_speculation(self) -> list[m.ModelOutput]:
        """Throw away an answer that nobody has asked for yet."""
        if self._open is not None or self._answer is None:
            return []
        answer, self._answer = self._answer, None
        return [m.Abort(stage=stage, request_id=request_id) for stage, request_id in answer.requests]

    def _respond(self, event: m.Respond) -> Sequence[m.ModelOutput]:
        self._fence = event.fence
        self._open = event
        outputs: list[m.ModelOutput] = []
        for item_id, pcm in missing_transcripts(event.history):
            outputs += self._listening.recognize_item(item_id, pcm, self._fence)
        return [*outputs, *self._answer_if_ready()]

    def _answer_if_ready(self) -> Sequence[m.ModelOutput]:
        """Answer the open turn as soon as all the user's words are known; words that say nothing get no answer."""
        turn = self._open
        if turn is None or (self._answer is not None and self._answer.released):
            return ()
        known = self._listening.transcripts
        missing = [item_id for item_id, _ in missing_transcripts(turn.history)]
        if any(self._listening.waits_for(item_id) for item_id in missing):
            return ()
        history = tuple(with_transcript(item, known) for item in turn.history)
        if turn.cause is m.ResponseCause.COMMIT and _silent(history):
            self._open = None
            return [*self._abandon(), m.Listen(fence=turn.fence)]
        ask = build(turn.config, history, self._language)
        self._history = history
        if self._answer is not None and self._answer.ask == ask and self._answer.config == turn.config:
            return self._release(self._answer, turn.fence)
        outputs = self._abandon()
        self._answer = Answer(ask, turn.config, turn.fence, rate_hz=self._rate_hz, new_id=self._new_id)
        begun = self._answer.begin()
        self._answer.release(turn.fence)
        return [*outputs, begun]

    def _release(self, answer: Answer, fence: Fence) -> Sequence[m.ModelOutput]:
        """The answer that was begun at the pause is the one that is wanted."""
        outputs = answer.release(fence)
        if any(isinstance(each, m.EndTurn) for each in outputs):
            self._end(answer)
        return outputs

    def _abandon(self) -> list[m.ModelOutput]:
        answer, self._answer = self._answer, None
        if answer is None:
            return []
        return [m.Abort(stage=stage, request_id=request_id) for stage, request_id in answer.requests]

    def _interrupted(self, event: m.Interrupted) -> Sequence[m.ModelOutput]:
        """The engine has aborted the answer's work; what the user is saying goes on being recognised."""
        self._fence = event.fence
        self._open = None
        self._answer = None
        return ()

    # -- stages -------------------------------------------------------------------------------------------------------

    def _stage_output(self, output: m.StageOutput) -> Sequence[m.ModelOutput]:
        if output.stage == RECOGNIZER:
            return self._recognized(output)
        answer = self._answer
        if answer is None or (output.stage, output.request_id) not in answer.requests:
            return ()
        outputs = answer.take(output)
        if any(isinstance(each, m.EndTurn) for each in outputs):
            self._end(answer)
        return outputs

    def _end(self, answer: Answer) -> None:
        """Remember the answer for the next speculation; the engine's history is what counts."""
        self._open = None
        self._answer = None
        if answer.said.strip():
            part = (
                OutputAudio(transcript=answer.said)
                if answer.config.modality is Modality.AUDIO
                else OutputText(text=answer.said)
            )
            item = MessageItem(role=Role.ASSISTANT, content=(part,), status=ItemStatus.COMPLETED)
            self._history = (*self._history, item)

    def _stage_failed(self, failure: m.StageFailed) -> Sequence[m.ModelOutput]:
        if failure.stage == RECOGNIZER:
            item_id = self._listening.failed(failure.request_id)
            if item_id is None:
                return ()
            told = m.TranscriptFailed(item_id=item_id, error=failure.error)
            return [told, *self._fail(failure)] if self._open is not None else [told]
        if self._answer is None or (failure.stage, failure.request_id) not in self._answer.requests:
            return ()
        if self._open is None:
            return self._drop_speculation()
        return self._fail(failure)

    def _fail(self, failure: m.StageFailed) -> list[m.ModelOutput]:
        turn, self._open = self._open, None
        outputs = self._abandon()
        return outputs if turn is None else [*outputs, m.Failed(fence=turn.fence, error=failure.error)]


def with_transcript(item: Item, known: dict[str, str]) -> Item:
    """The item with the words that were recognised since the history was made."""
    if not isinstance(item, MessageItem) or item.id not in known:
        return item
    text = known[item.id]
    parts = tuple(
        msgspec.structs.replace(part, transcript=text)
        if isinstance(part, InputAudio) and part.transcript is None
        else part
        for part in item.content
    )
    return msgspec.structs.replace(item, content=parts)


def _silent(history: tuple[Item, ...]) -> bool:
    """Whether the last thing in the history is speech of the user without a word in it."""
    last = history[-1] if history else None
    if not isinstance(last, MessageItem) or last.role is not Role.USER:
        return False
    return all(isinstance(part, InputAudio) and says_nothing(part.transcript or "") for part in last.content)
