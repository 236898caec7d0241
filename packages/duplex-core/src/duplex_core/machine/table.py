"""Every state of a session and every legal move, in one table.

A session runs in four lanes at once: its life, the user's input, the model's response and the sound at the client. Each
lane has states and triggers; :data:`TRANSITIONS` is the whole truth about them. An unlisted move raises
:class:`IllegalMove` and changes nothing. The diagram in the documentation is drawn from this table.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Identified(enum.Enum):
    """Members are looked up several times an event: by identity, which costs a fifth of a hash of their names."""

    __hash__ = object.__hash__


class Life(_Identified):
    """The session itself."""

    OPEN = "open"
    CLOSING = "closing"
    """What it held is being freed; nothing new is taken."""
    CLOSED = "closed"


class Hearing(_Identified):
    """The user's input, as the detector (or nobody, without one) hears it."""

    QUIET = "quiet"
    SPEAKING = "speaking"
    PAUSED = "paused"
    """Silent, but the turn is not over yet: the hangover."""


class Answer(_Identified):
    """The response that is being made."""

    NONE = "none"
    PENDING = "pending"
    """Opened; the model has given nothing yet."""
    STREAMING = "streaming"


class Sound(_Identified):
    """The assistant's audio at the client, also after generation has ended."""

    SILENT = "silent"
    SOUNDING = "sounding"


State = Life | Hearing | Answer | Sound


class Trigger(_Identified):
    """What moves a lane."""

    CLOSE = "close"
    RELEASED = "released"
    SPEECH = "speech"
    SILENCE = "silence"
    TURN_OVER = "turn over"
    DROP = "drop"
    OPEN = "open"
    OUTPUT = "output"
    END = "end"
    AUDIO = "audio"
    DRAINED = "drained"
    CLEARED = "cleared"


TRANSITIONS: Mapping[State, Mapping[Trigger, State]] = MappingProxyType(
    {
        Life.OPEN: {Trigger.CLOSE: Life.CLOSING},
        Life.CLOSING: {Trigger.RELEASED: Life.CLOSED},
        Life.CLOSED: {},
        Hearing.QUIET: {Trigger.SPEECH: Hearing.SPEAKING, Trigger.DROP: Hearing.QUIET},
        Hearing.SPEAKING: {
            Trigger.SILENCE: Hearing.PAUSED,
            Trigger.TURN_OVER: Hearing.QUIET,
            Trigger.DROP: Hearing.QUIET,
        },
        Hearing.PAUSED: {
            Trigger.SPEECH: Hearing.SPEAKING,
            Trigger.TURN_OVER: Hearing.QUIET,
            Trigger.DROP: Hearing.QUIET,
        },
        Answer.NONE: {Trigger.OPEN: Answer.PENDING},
        Answer.PENDING: {Trigger.OUTPUT: Answer.STREAMING, Trigger.END: Answer.NONE},
        Answer.STREAMING: {Trigger.OUTPUT: Answer.STREAMING, Trigger.END: Answer.NONE},
        Sound.SILENT: {Trigger.AUDIO: Sound.SOUNDING, Trigger.CLEARED: Sound.SILENT},
        Sound.SOUNDING: {
            Trigger.AUDIO: Sound.SOUNDING,
            Trigger.DRAINED: Sound.SILENT,
            Trigger.CLEARED: Sound.SILENT,
        },
    }
)
"""State to trigger to next state, for every lane."""


class IllegalMove(RuntimeError):
    """A move that the table does not have: a fault in the machine, never a client's mistake."""


def following(state: State, trigger: Trigger) -> State:
    """The state after ``trigger``.

    Raises:
        IllegalMove: the table has no such move.
    """
    try:
        return TRANSITIONS[state][trigger]
    except KeyError:
        lane = type(state).__name__.lower()
        raise IllegalMove(f"{lane}: there is no move {trigger.value!r} out of {state.value!r}") from None


class Lanes:
    """The states that a session is in now. The only place that holds them: read by all, moved by :meth:`move` alone."""

    def __init__(self) -> None:
        """Begin open, quiet, silent and without a response."""
        self.life = Life.OPEN
        self.hearing = Hearing.QUIET
        self.answer = Answer.NONE
        self.sound = Sound.SILENT

    def move(self, lane: type[State], trigger: Trigger) -> None:
        """Move one lane.

        Raises:
            IllegalMove: the table has no such move; nothing changed.
        """
        name = _LANES[lane]
        setattr(self, name, following(getattr(self, name), trigger))

    def snapshot(self) -> tuple[State, ...]:
        """The four states, for tests and logs."""
        return (self.life, self.hearing, self.answer, self.sound)


_LANES: Mapping[type[State], str] = {Life: "life", Hearing: "hearing", Answer: "answer", Sound: "sound"}
