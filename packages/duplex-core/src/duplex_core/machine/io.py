"""What goes into the session machine and what comes out of it.

Both are closed unions of frozen values. The runner translates sockets, stages, detectors and timers into inputs, and
performs effects in the order given; events go to the client in the order given.
"""

from __future__ import annotations

import msgspec

from duplex_core.commands import Command
from duplex_core.detection import SpeechFrame
from duplex_core.errors import ErrorInfo
from duplex_core.events import CloseReason, Event
from duplex_core.fence import Fence
from duplex_core.model import Decision, ModelInput

# -- in ----------------------------------------------------------------------------------------------------------------


class SpeechFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of the speech detector, oldest first, in the order of the audio.

    ``generation`` is that of the :class:`Detect` effects they answer; older generations are ignored.
    """

    frames: tuple[SpeechFrame, ...]
    generation: int


class EndOfTurnVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the end-of-turn detector said to :class:`JudgeEndOfTurn`: the probability that the speaker has finished."""

    item_id: str
    serial: int
    probability: float


class TimerFired(msgspec.Struct, frozen=True, kw_only=True):
    """A timer set by :class:`SetTimer` is due."""

    key: str


class CloseRequested(msgspec.Struct, frozen=True, kw_only=True):
    """The session must end, and not because the client asked: shutdown, expiry, a dead stage, an internal error.

    ``detail`` says more of an expiry: which lease ran out.
    """

    reason: CloseReason
    error: ErrorInfo | None = None
    detail: str | None = None


class SlotReleased(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the session held is free; answers :class:`ReleaseSlot`."""


MachineInput = Command | Decision | SpeechFrames | EndOfTurnVerdict | TimerFired | CloseRequested | SlotReleased

# -- out ---------------------------------------------------------------------------------------------------------------


class Tell(msgspec.Struct, frozen=True, kw_only=True):
    """Hand ``event`` to the model session; what it returns comes back before the next input is taken."""

    event: ModelInput


class SetTimer(msgspec.Struct, frozen=True, kw_only=True):
    """Send :class:`TimerFired` at ``at_ms``, replacing the key's earlier timer; ``None`` cancels it."""

    key: str
    at_ms: float | None


class Detect(msgspec.Struct, frozen=True, kw_only=True):
    """Run the speech detector over more of the user's audio (16-bit mono PCM at the model's input rate)."""

    pcm: bytes
    generation: int


class ResetDetector(msgspec.Struct, frozen=True, kw_only=True):
    """Forget the detector's state; audio that follows starts at ``start_ms`` of the session's time line."""

    generation: int
    start_ms: float


class JudgeEndOfTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the end-of-turn detector, if there is one, about the utterance that fell silent; takes the place of an earlier one.

    ``pcm`` is the end of the utterance and the silence so far (16-bit mono PCM at the model's input rate). Under
    ``semantic_vad`` only. Without a detector, or when it fails, no answer comes, and the turn ends by other rules.
    """

    item_id: str
    serial: int
    pcm: bytes


class AbortOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch advanced to ``fence``: abort all output-lane stage work, drop its late results, drop unsent deltas.

    Always comes before the events that tell the client.
    """

    fence: Fence


class ReleaseSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Abort everything, close the model session, give the slot back; then send :class:`SlotReleased`."""


Effect = Tell | SetTimer | Detect | ResetDetector | JudgeEndOfTurn | AbortOutput | ReleaseSlot


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from one input: effects to perform and events to send, each in order. Effects are performed first."""

    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()


NOTHING = Step()
"""The step of an input from which nothing follows."""
