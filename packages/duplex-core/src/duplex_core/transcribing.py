"""The words of the user's speech: recognised while it is spoken and when it ends, by a stage, beside whatever answers.

Owns when speech is recognised (:func:`partial_due`, :class:`Listening`), what a recognition stage is asked and answers
(:class:`Recognize`, :class:`Recognized`), how a package offers one (:class:`TranscriberSpec`), and the wrapper that gives words
to a model which hears none (:class:`TranscribedSession`). Called by the server, which wraps the sessions of such a model when a
transcriber was chosen, and by model packages whose sessions recognise for themselves. Pure: it performs nothing and reads no
clock. All its work is in the input lane, so an interrupted answer does not touch it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec

from duplex_core import model as m
from duplex_core.audio import pcm16_bytes, pcm16_ms
from duplex_core.config import SessionConfig, Transcription
from duplex_core.fence import Fence
from duplex_core.stages import StageSpec

FIRST_PARTIAL_MS = 640.0
"""Speech that must be there before the first partial transcript."""
EARLY_MS = 1500.0
"""As long as an utterance is shorter, partial transcripts come often: they are cheap, and speech over an answer is judged by
them."""
EARLY_EVERY_MS = 240.0
"""New speech between two partial transcripts at the beginning of an utterance."""
PARTIAL_EVERY_MS = 560.0
"""New speech between two partial transcripts later on; more for a long utterance, whose recognition takes longer."""
SHARE = 0.15
"""A partial transcript waits for at least this share of the utterance to be new, so that re-decoding stays linear."""
PAUSE_TAIL_MS = 64.0
"""Audio after the last speech frame that a recognition at a pause still gets."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberSpec:
    """A recogniser that a package offers to models which do not transcribe.

    Attributes:
        id: what ``--transcriber`` says.
        summary: one line for people, with the languages that it knows.
        stage: the stage that is added to the served model's plan. Its requests carry :class:`Recognize`; it answers each with
            one :class:`Recognized`, or with none when there are no words.
    """

    id: str
    summary: str
    stage: StageSpec


class Recognize(msgspec.Struct, frozen=True, kw_only=True):
    """For a recogniser: one utterance, or its beginning, as 16-bit mono PCM at ``rate_hz``.

    ``hints`` is what the session's configuration says about its speech: the language, and a prompt with words to expect.
    """

    pcm: bytes
    rate_hz: int
    hints: Transcription = Transcription()


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """From a recogniser: the words, with case and punctuation if it knows them; empty when there were none."""

    text: str


def partial_due(spoken_ms: float, recognized_ms: float, *, busy: bool) -> bool:
    """Whether to recognise the utterance so far. Recognition re-decodes all of it, so it is done more seldom as it grows.

    Args:
        spoken_ms: how much has been heard of it.
        recognized_ms: how much of it the last recognition had.
        busy: whether a recognition of this session is still running.
    """
    if busy or spoken_ms < FIRST_PARTIAL_MS:
        return False
    least_ms = EARLY_EVERY_MS if spoken_ms < EARLY_MS else max(PARTIAL_EVERY_MS, SHARE * spoken_ms)
    return spoken_ms - recognized_ms >= least_ms


class Utterance(msgspec.Struct, kw_only=True):
    """What is being said. ``candidate`` is its recognition as it stood at the last pause, if that is still all of it."""

    item_id: str
    start_ms: float
    pcm: bytearray
    recognized_ms: float = 0.0
    running: str | None = None
    at_pause: bool = False
    candidate: str | None = None


class Listening:
    """Recognition of one session: one utterance at a time, and the items whose words are still sought.

    Args:
        stage: the recogniser's stage.
        rate_hz: the rate of the audio that will come.
        new_id: makes request ids that are unique in the session.
    """

    def __init__(self, *, stage: str, rate_hz: int, new_id: Callable[[str], str]) -> None:
        """Begin with nothing heard."""
        self._stage = stage
        self._rate_hz = rate_hz
        self._new_id = new_id
        self._current: Utterance | None = None
        self._finals: dict[str, str] = {}
        self.transcripts: dict[str, str] = {}
        self.hints = Transcription()

    @property
    def current(self) -> Utterance | None:
        """The utterance that is being spoken."""
        return self._current

    def began(self, item_id: str, start_ms: float, pcm: bytes) -> None:
        """The user begins."""
        self._current = Utterance(item_id=item_id, start_ms=start_ms, pcm=bytearray(pcm))

    def heard(self, pcm: bytes, fence: Fence) -> list[m.ModelOutput]:
        """More audio; from time to time a recognition for a partial transcript."""
        spoken = self._current
        if spoken is None:
            return []
        spoken.pcm += pcm
        spoken_ms = pcm16_ms(len(spoken.pcm), self._rate_hz)
        busy = spoken.running is not None or spoken.at_pause
        if not partial_due(spoken_ms, spoken.recognized_ms, busy=busy):
            return []
        return self._recognize_current(spoken, len(spoken.pcm), fence)

    def paused(self, at_ms: float, fence: Fence) -> list[m.ModelOutput]:
        """The user fell silent: recognise all of it now, instead of any partial recognition that is still running."""
        spoken = self._current
        if spoken is None:
            return []
        outputs = self._withdraw(spoken)
        spoken.at_pause = True
        size = min(len(spoken.pcm), max(0, pcm16_bytes(at_ms + PAUSE_TAIL_MS - spoken.start_ms, self._rate_hz)))
        return outputs + self._recognize_current(spoken, size, fence)

    def resumed(self) -> list[m.ModelOutput]:
        """The user goes on: what was recognised at the pause is not all of it."""
        spoken = self._current
        if spoken is None:
            return []
        outputs = self._withdraw(spoken) if spoken.at_pause else []
        spoken.at_pause = False
        spoken.candidate = None
        return outputs

    def dropped(self, item_id: str) -> list[m.ModelOutput]:
        """The utterance will not become an item."""
        spoken = self._current
        if spoken is None or spoken.item_id != item_id:
            return []
        self._current = None
        return self._withdraw(spoken)

    def committed(self, item_id: str, pcm: bytes, fence: Fence) -> list[m.ModelOutput]:
        """The utterance became an item: its words are those of the last pause, known or on their way, or are sought now."""
        spoken, self._current = self._current, None
        outputs: list[m.ModelOutput] = []
        if spoken is not None and spoken.item_id == item_id:
            if spoken.at_pause and spoken.candidate is not None:
                self.transcripts[item_id] = spoken.candidate
                return []
            if spoken.at_pause and spoken.running is not None:
                self._finals[spoken.running] = item_id
                return []
            outputs = self._withdraw(spoken)
        return outputs + self.recognize_item(item_id, pcm, fence)

    def recognize_item(self, item_id: str, pcm: bytes, fence: Fence) -> list[m.ModelOutput]:
        """Seek the words of an item, unless they are known or being sought."""
        if item_id in self.transcripts or item_id in self._finals.values():
            return []
        request_id = self._new_id("hear")
        self._finals[request_id] = item_id
        return [self._submit(request_id, pcm, fence)]

    def result(self, request_id: str, text: str) -> tuple[str, bool] | None:
        """A recognition is done: the item that it is about and whether it is final; ``None`` when nobody waits for it."""
        item_id = self._finals.pop(request_id, None)
        if item_id is not None:
            self.transcripts[item_id] = text
            return item_id, True
        spoken = self._current
        if spoken is None or spoken.running != request_id:
            return None
        spoken.running = None
        if spoken.at_pause:
            spoken.candidate = text
        return spoken.item_id, False

    def take(self, output: m.StageOutput) -> tuple[str, str, bool] | None:
        """The stage answered: item, words, and whether they are final. One that ends without words has found none."""
        if isinstance(output.payload, Recognized):
            text = output.payload.text
        elif output.final:
            text = ""
        else:
            return None
        found = self.result(output.request_id, text)
        return None if found is None else (found[0], text, found[1])

    def failed(self, request_id: str) -> str | None:
        """A recognition failed: the item that now stays without words, if its final words were sought."""
        spoken = self._current
        if spoken is not None and spoken.running == request_id:
            spoken.running = None
            spoken.at_pause = False
        return self._finals.pop(request_id, None)

    def waits_for(self, item_id: str) -> bool:
        """Whether the words of this item are being sought."""
        return item_id in self._finals.values()

    def _recognize_current(self, spoken: Utterance, size: int, fence: Fence) -> list[m.ModelOutput]:
        spoken.running = self._new_id("hear")
        spoken.recognized_ms = pcm16_ms(size, self._rate_hz)
        spoken.candidate = None
        return [self._submit(spoken.running, bytes(spoken.pcm[:size]), fence)]

    def _submit(self, request_id: str, pcm: bytes, fence: Fence) -> m.Submit:
        work = Recognize(pcm=pcm, rate_hz=self._rate_hz, hints=self.hints)
        request = m.StageRequest(stage=self._stage, request_id=request_id, fence=fence, lane=m.Lane.INPUT, payload=work)
        return m.Submit(request=request)

    def _withdraw(self, spoken: Utterance) -> list[m.ModelOutput]:
        running, spoken.running = spoken.running, None
        return [] if running is None else [m.Abort(stage=self._stage, request_id=running)]


class TranscribedSession:
    """A model session that hears no words, and a recogniser beside it that does.

    The model's session gets everything it would get alone, and says everything but transcripts: a model whose capabilities
    declare none has no say in them. Speech is recognised while a detector listens or the client wants transcripts; otherwise
    nothing is asked of the stage.

    Args:
        model: the session of the model.
        stage: name of the recogniser's stage in the plan; no stage of the model's own.
        rate_hz: the model's input rate.
    """

    def __init__(self, model: m.ModelSession, *, stage: str, rate_hz: int) -> None:
        """Begin with nothing heard."""
        self._model = model
        self._stage = stage
        self._serial = 0
        self._wanted = False
        self._listening = Listening(stage=stage, rate_hz=rate_hz, new_id=self._new_id)

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        if isinstance(event, m.StageOutput) and event.stage == self._stage:
            return self._recognized(event)
        if isinstance(event, m.StageFailed) and event.stage == self._stage:
            item_id = self._listening.failed(event.request_id)
            return () if item_id is None else (m.TranscriptFailed(item_id=item_id, error=event.error),)
        answered = self._model.handle(event, now_ms)
        outputs = [each for each in answered if not isinstance(each, m.UserTranscript | m.TranscriptFailed)]
        return [*outputs, *self._hear(event)]

    def _new_id(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}-{self._serial}"

    def _hear(self, event: m.ModelInput) -> Sequence[m.ModelOutput]:
        listening = self._listening
        match event:
            case m.Configured():
                self._configured(event.config)
            case m.AudioArrived():
                return listening.heard(event.pcm, event.fence)
            case m.SpeechBegan() if self._wanted:
                listening.began(event.item_id, event.start_ms, event.pcm)
            case m.SpeechPaused():
                return listening.paused(event.at_ms, event.fence)
            case m.SpeechResumed():
                return listening.resumed()
            case m.SpeechDropped():
                return listening.dropped(event.item_id)
            case m.InputCommitted():
                return self._committed(event)
            case _:
                pass  # about answers, or pictures and text, in which there is nothing to hear
        return ()

    def _configured(self, config: SessionConfig) -> None:
        self._wanted = config.transcription is not None or config.turn_detection is not None
        self._listening.hints = config.transcription or Transcription()

    def _committed(self, event: m.InputCommitted) -> Sequence[m.ModelOutput]:
        listening = self._listening
        if not (self._wanted and event.pcm):
            return listening.dropped(event.item_id)
        outputs = listening.committed(event.item_id, event.pcm, event.fence)
        known = listening.transcripts.pop(event.item_id, None)
        return outputs if known is None else [m.UserTranscript(item_id=event.item_id, text=known, final=True)]

    def _recognized(self, output: m.StageOutput) -> Sequence[m.ModelOutput]:
        found = self._listening.take(output)
        if found is None:
            return ()
        item_id, text, final = found
        self._listening.transcripts.pop(item_id, None)
        return (m.UserTranscript(item_id=item_id, text=text, final=final),)
