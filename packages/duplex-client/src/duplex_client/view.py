"""Shows a conversation while it is held: who speaks, partial transcripts, latencies.

On a terminal the last line is alive; elsewhere every change is a line of its own. Fed with events by the command line and
the demo. It only prints.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, assert_never

from rich.console import Console
from rich.live import Live
from rich.text import Text

from duplex_client.changes import ConnectionChange, Reconnecting, Resumed, ResyncRequired
from duplex_client.latency import StopLatency, TurnLatency
from duplex_client.player import HeardAnswer
from duplex_core.events import (
    ErrorEvent,
    Event,
    OutputAudioDelta,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDelta,
    OutputTranscriptDone,
    ResponseDone,
    ResponseStatus,
    SessionClosed,
    SpeechStarted,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
)

_STYLES = {
    "you": "cyan",
    "heard": "cyan",
    "assistant": "green",
    "latency": "magenta",
    "line": "yellow",
    "error": "bold red",
}
_WIDTH = max(map(len, _STYLES))


class Stopwatch(Protocol):
    """Computes the latencies to show; :class:`~duplex_client.latency.Latencies` does."""

    def follow(self, event: Event, at_ms: float) -> TurnLatency | None:
        """Take in an event that arrived at ``at_ms``; the latency that it completes, if it does."""
        ...

    def silenced(self, answer: HeardAnswer) -> StopLatency | None:
        """Take in an answer as it was heard; how long it took to fall silent, if it was interrupted."""
        ...


class ConversationView:
    """Prints one conversation; use it as a context manager, as an observer of the client and as a sink of the player.

    Args:
        console: Where to; its being a terminal decides between a live line and plain lines.
        stopwatch: Who computes the latencies shown.
        zero_ms: The moment from which the shown times count, on the client's clock.
    """

    def __init__(self, console: Console, stopwatch: Stopwatch, zero_ms: float) -> None:
        self._console = console
        self._stopwatch = stopwatch
        self._zero_ms = zero_ms
        self._partial: dict[str, str] = {}
        self._speaking: set[str] = set()
        self._live: Live | None = None
        self._open = False

    def __enter__(self) -> Self:
        self._open = True
        if self._console.is_terminal:
            self._live = Live(Text(), console=self._console, transient=True, refresh_per_second=12)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if self._live is not None:
            self._live.stop()

    def say(self, who: str, what: str, at_ms: float) -> None:
        """Print a line that stays."""
        self._console.print(self._line(who, what, at_ms), soft_wrap=True)

    def show(self, event: Event, at_ms: float) -> None:
        """Show what an event tells; for a client's ``observe``."""
        if (turn := self._stopwatch.follow(event, at_ms)) is not None:
            self.say("latency", f"first audio {turn.ms / 1000:.2f} s after the end of your speech", at_ms)
        self._show_user(event, at_ms)
        self._show_assistant(event, at_ms)
        if (trouble := _trouble(event)) is not None:
            self.say("error", trouble, at_ms)

    def show_change(self, change: ConnectionChange) -> None:
        """Show what became of the connection; for a client's ``on_connection``."""
        self.say("line", _told(change), change.at_ms)

    def heard(self, answer: HeardAnswer) -> None:
        """Show that an answer was interrupted, and how much of it sounded; for a player's sinks.

        The player knows it to the sample; what ``output_audio_buffer.cleared`` says is the last that the server had been told.
        """
        stop = self._stopwatch.silenced(answer)
        if answer.cut_at_ms is None or not self._open:
            return
        heard_s = answer.played_ms / 1000
        self.say("assistant", f"interrupted, {heard_s:.2f} s of it were heard", answer.cut_at_ms)
        if stop is not None:
            self.say("latency", f"silent {stop.ms / 1000:.2f} s after you began to interrupt", answer.cut_at_ms)

    def _show_user(self, event: Event, at_ms: float) -> None:
        match event:
            case SpeechStarted():
                self.say("you", "speaking", at_ms)
            case TranscriptionDelta():
                self._grow("heard", event.item_id, event.delta, at_ms)
            case TranscriptionCompleted():
                self._settle("heard", event.item_id, event.transcript or "(nothing)", at_ms)
            case TranscriptionFailed():
                self._settle("heard", event.item_id, f"(not understood: {event.error.message})", at_ms)
            case _:
                pass

    def _show_assistant(self, event: Event, at_ms: float) -> None:
        match event:
            case OutputAudioDelta() if event.response_id not in self._speaking:
                self._speaking.add(event.response_id)
                self.say("assistant", "speaking", at_ms)
            case OutputTranscriptDelta() | OutputTextDelta():
                self._grow("assistant", event.response_id, event.delta, at_ms)
            case OutputTranscriptDone():
                self._settle("assistant", event.response_id, event.transcript, at_ms)
            case OutputTextDone():
                self._settle("assistant", event.response_id, event.text, at_ms)
            case _:
                pass

    def _grow(self, who: str, key: str, delta: str, at_ms: float) -> None:
        self._partial[key] = self._partial.get(key, "") + delta
        if self._live is not None:
            self._live.update(self._line(who, f"{self._partial[key]} …", at_ms))
        else:
            self.say(who, f"… {delta.strip()} …", at_ms)

    def _settle(self, who: str, key: str, whole: str, at_ms: float) -> None:
        pieces = self._partial.pop(key, None)
        if self._live is not None:
            self._live.update(Text())
        elif who == "assistant" and pieces is not None and pieces.split() == whole.split():
            return  # line by line it stands there already
        self.say(who, whole, at_ms)

    def _line(self, who: str, what: str, at_ms: float) -> Text:
        seconds = (at_ms - self._zero_ms) / 1000.0
        return Text.assemble((f"{seconds:7.2f} s  ", "dim"), (f"{who:<{_WIDTH}}  ", _STYLES[who]), what)


def _told(change: ConnectionChange) -> str:
    match change:
        case Reconnecting():
            return f"lost, connecting again ({change.cause})"
        case Resumed(dropped_audio_ms=0.0):
            return f"back after {change.outage_ms / 1000:.2f} s"
        case Resumed():
            lost_s = change.dropped_audio_ms / 1000
            return f"back after {change.outage_ms / 1000:.2f} s; {lost_s:.2f} s of your sound were not sent"
        case ResyncRequired():
            count = change.last_lost_seq - change.first_lost_seq + 1
            return f"{count} events of the conversation are lost; it may have holes here"
        case _:
            assert_never(change)


def _trouble(event: Event) -> str | None:
    """What went wrong, if ``event`` tells that something did."""
    match event:
        case ResponseDone(response=view) if view.status is ResponseStatus.FAILED:
            cause = view.status_details.error if view.status_details else None
            return f"the answer failed: {cause.message if cause else 'no reason given'}"
        case ErrorEvent():
            return event.error.message
        case SessionClosed() if event.error is not None:
            return f"the session ended: {event.error.message}"
        case _:
            return None
