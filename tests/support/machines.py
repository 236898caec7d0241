"""A session machine on the bench: inputs go in by hand, everything that comes out is written down.

Used by the tests of `duplex_core.machine`. There is no model, no detector and no runner here: a test says what they would.
Never decides anything; audio is numbered samples, so that a test sees exactly which samples were cut.
"""

from __future__ import annotations

import array
import collections
import enum
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duplex_core import commands as c
from duplex_core import model as m
from duplex_core.audio import AudioEncoding, AudioFormat
from duplex_core.capabilities import Capabilities
from duplex_core.config import OverlapMode, OverlapSettings, SessionConfig, TurnDetection
from duplex_core.detection import SpeechFrame
from duplex_core.errors import ErrorCode
from duplex_core.events import ErrorEvent, Event
from duplex_core.fence import Fence
from duplex_core.items import InputText, Item, MessageItem, Role
from duplex_core.ledger import TextMark
from duplex_core.machine.io import (
    Detect,
    Effect,
    MachineInput,
    ResetDetector,
    SetTimer,
    SpeechFrames,
    Step,
    Tell,
    TimerFired,
)
from duplex_core.machine.session import SessionMachine
from duplex_core.machine.table import State

T = TypeVar("T")

RATE_HZ = 16000
"""The model's input rate: 16 samples a millisecond."""
OUT_HZ = 24000
"""The rate of the answers: 48 bytes a millisecond."""
FRAME_MS = 32.0
"""What the detector judges at once."""
PCM = AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=OUT_HZ)


def numbered(start_ms: float, end_ms: float) -> bytes:
    """The audio of [start_ms, end_ms) of a session: each sample is its own position, modulo 30000."""
    first, last = round(start_ms * RATE_HZ / 1000), round(end_ms * RATE_HZ / 1000)
    samples = array.array("h", (position % 30000 for position in range(first, last)))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()


def same_audio(given: bytes, start_ms: float, end_ms: float) -> bool:
    """Whether ``given`` is exactly that part of the session's audio. A comparison that fails must not print audio."""
    return given == numbered(start_ms, end_ms)


def said(text: str, *, item_id: str | None = None) -> MessageItem:
    """A written message of the user."""
    return MessageItem(id=item_id, role=Role.USER, content=(InputText(text=text),))


class Bench:
    """One machine, its outputs, its timers and its virtual time.

    Attributes:
        events: every event, in order.
        effects: every effect, in order.
        timers: what is armed: key to due time.
        now_ms: virtual time.
    """

    def __init__(
        self,
        *,
        vad: TurnDetection | None = None,
        capabilities: Mapping[str, Any] | None = None,
        check_options: Any = None,
        session_id: str = "sess_1",
        **config: Any,
    ) -> None:
        """Open a session; ``vad`` of ``None`` means that the client commits. Speech over an answer interrupts at once."""
        config.setdefault("output_format", PCM)
        config.setdefault("overlap", OverlapSettings(mode=OverlapMode.IMMEDIATE))
        self.machine = SessionMachine(
            session_id=session_id,
            config=SessionConfig(model="bench", turn_detection=vad, **config),
            capabilities=Capabilities(input_rate_hz=RATE_HZ, output_rate_hz=OUT_HZ, **(capabilities or {})),
            check_options=check_options,
        )
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.timers: dict[str, float] = {}
        self.now_ms = 0.0
        self.sent_ms = 0.0
        self.judged_ms = 0.0
        self.unjudged_from_ms = 0.0
        self.generation = 0
        self._take(self.machine.open(0.0))

    # -- in -----------------------------------------------------------------------------------------------------------

    def do(self, *inputs: MachineInput) -> Step:
        """Give inputs, one after the other, at this moment; what came of them all."""
        taken = [self._take(self.machine.handle(each, self.now_ms)) for each in inputs]
        return Step(
            events=tuple(event for step in taken for event in step.events),
            effects=tuple(effect for step in taken for effect in step.effects),
        )

    def refused(self, command: c.Command) -> ErrorEvent:
        """Give a command that must be refused, and must change nothing; the error."""
        before = snapshot(self.machine)
        step = self.do(command)
        errors = [event for event in step.events if isinstance(event, ErrorEvent)]
        assert len(errors) == 1, f"refused with {len(errors)} errors: {kinds(step.events)}"
        assert kinds(step.events) == ["ErrorEvent"], kinds(step.events)
        assert not step.effects, kinds(step.effects)
        assert snapshot(self.machine) == before, "the refused command left something behind"
        return errors[0]

    def refused_with(self, code: ErrorCode, command: c.Command, param: str | None = None) -> None:
        """Give a command that must be refused with ``code``, naming ``param`` and the command's own event id."""
        error = self.refused(msgspec.structs.replace(command, event_id="evt_mine")).error
        assert (error.code, error.param, error.event_id) == (code, param, "evt_mine"), error

    def wait(self, ms: float) -> None:
        """Let ``ms`` pass; timers that become due fire in order."""
        until = self.now_ms + ms
        while due := sorted((at, key) for key, at in self.timers.items() if at <= until):
            at, key = due[0]
            self.now_ms = max(self.now_ms, at)
            del self.timers[key]
            self.do(TimerFired(key=key))
        self.now_ms = until

    def append(self, ms: float) -> Step:
        """The next ``ms`` of the user's audio arrive."""
        pcm = numbered(self.sent_ms, self.sent_ms + ms)
        self.sent_ms += ms
        return self.do(c.InputAudioBufferAppend(audio=pcm))

    def judge(self, verdicts: str) -> Step:
        """The detector's verdicts on the next frames, as one batch: ``s`` is speech, anything else is not."""
        frames = []
        for verdict in verdicts:
            probability = 0.9 if verdict == "s" else 0.01
            frames.append(SpeechFrame(start_ms=self.judged_ms, duration_ms=FRAME_MS, probability=probability))
            self.judged_ms += FRAME_MS
        return self.do(SpeechFrames(frames=tuple(frames), generation=self.generation))

    def speech(self, verdicts: str) -> None:
        """Audio that arrives at its own pace and is judged at once: a frame of ``verdicts`` at a time."""
        for verdict in verdicts:
            self.wait(FRAME_MS)
            self.append(FRAME_MS)
            self.judge(verdict)

    def commit(self, **fields: Any) -> Step:
        """``input_audio_buffer.commit``."""
        return self.do(c.InputAudioBufferCommit(**fields))

    def ask(self, text: str = "Well?", **params: Any) -> str:
        """A written question and ``response.create``; the response's id."""
        self.do(c.ConversationItemCreate(item=said(text)))
        self.do(c.ResponseCreate(**params))
        response = self.machine._output.response
        assert response is not None
        return response.id

    def speak(self, text: str = "", ms: float = 0.0, marks: Sequence[tuple[int, float]] = (), **fields: Any) -> Step:
        """The model speaks: ``ms`` of sound, text, or both."""
        decision = m.Speak(
            fence=fields.pop("fence", self.machine.fence),
            text=text,
            pcm=bytes(round(ms * OUT_HZ / 1000) * 2),
            marks=tuple(TextMark(chars=chars, ms=at) for chars, at in marks),
        )
        return self.do(decision)

    def end(self, **fields: Any) -> Step:
        """The model ends its turn."""
        return self.do(m.EndTurn(fence=fields.pop("fence", self.machine.fence), **fields))

    # -- out ----------------------------------------------------------------------------------------------------------

    @property
    def fence(self) -> Fence:
        """The fence in force."""
        return self.machine.fence

    @property
    def history(self) -> tuple[Item, ...]:
        """The conversation as a model would be told it now."""
        return self.machine.history

    def is_in(self, *states: State) -> bool:
        """Whether the machine's lanes are in these states."""
        return set(states) <= set(self.machine.lanes.snapshot())

    def of(self, kind: type[T]) -> list[T]:
        """Events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    def told(self, kind: type[T]) -> list[T]:
        """What the model was told, of one type."""
        return told(self.effects, kind)

    def only(self, kind: type[T]) -> T:
        """The one event of this type."""
        found = self.of(kind)
        assert len(found) == 1, f"{len(found)} of {kind.__name__}"
        return found[0]

    def _take(self, step: Step) -> Step:
        self.events.extend(step.events)
        self.effects.extend(step.effects)
        for effect in step.effects:
            if isinstance(effect, SetTimer):
                if effect.at_ms is None:
                    self.timers.pop(effect.key, None)
                else:
                    self.timers[effect.key] = effect.at_ms
            elif isinstance(effect, ResetDetector):
                self.generation = effect.generation
                self.judged_ms = self.unjudged_from_ms = effect.start_ms
            elif isinstance(effect, Detect):
                self.unjudged_from_ms += len(effect.pcm) / 2 * 1000 / RATE_HZ
        return step


def told(effects: Iterable[Effect], kind: type[T]) -> list[T]:
    """What the model is told by these effects, of one type."""
    heard: list[Any] = [effect.event for effect in effects if isinstance(effect, Tell)]
    return [event for event in heard if isinstance(event, kind)]


def kinds(things: Iterable[object]) -> list[str]:
    """Type names, in order; a told input by its own name."""
    return [type(thing.event if isinstance(thing, Tell) else thing).__name__ for thing in things]


def snapshot(thing: object, seen: set[int] | None = None) -> object:
    """Everything that ``thing`` is made of, as plain values that can be compared. Audio becomes a short digest.

    What time it is belongs to nobody, so it is left out. What several parts share is taken once.
    """
    seen = set() if seen is None else seen
    if thing is None or isinstance(thing, str | int | float | enum.Enum):
        return thing
    if isinstance(thing, bytes | bytearray):
        return len(thing), hashlib.sha256(thing).hexdigest()[:16]
    if isinstance(thing, msgspec.Struct):
        return type(thing).__name__, [snapshot(getattr(thing, name), seen) for name in thing.__struct_fields__]
    if isinstance(thing, dict):
        return [(snapshot(key, seen), snapshot(value, seen)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | set | frozenset | collections.deque):
        return [snapshot(each, seen) for each in thing]
    if callable(thing):
        return "(callable)"
    if id(thing) in seen:
        return f"({type(thing).__name__})"
    seen.add(id(thing))
    return type(thing).__name__, [
        (name, snapshot(value, seen)) for name, value in sorted(vars(thing).items()) if name != "now_ms"
    ]
