"""How much of each answer the user has heard, and the text that goes with it.

Owned by the output side of the session machine. Every answer with audio is a :class:`Track`; tracks play one after the
other at the client. Without acknowledgements the position is estimated from the time that the audio was given out; each
acknowledgement corrects it.
"""

from __future__ import annotations

import collections

import msgspec

from duplex_core.ledger import PlaybackLedger, TextMark

REMEMBERED = 8
"""Answers that ran to their end and may still be acknowledged late."""


class Track(msgspec.Struct, kw_only=True):
    """One answer's audio. ``ends_at_ms`` is when its last sample so far will have been heard, on the machine's clock."""

    response_id: str
    item_id: str
    ledger: PlaybackLedger = PlaybackLedger()
    ends_at_ms: float = 0.0
    acknowledged: bool = False
    generated: bool = False

    def heard_ms(self, now_ms: float) -> float:
        """Milliseconds heard by ``now_ms``: what the client acknowledged, if it ever did, else what its clock must show."""
        if self.acknowledged:
            return self.ledger.played_ms
        return max(self.ledger.sent_ms - max(0.0, self.ends_at_ms - now_ms), 0.0)


class Playback:
    """The tracks that may still be heard, oldest first, and the ledgers of those that are over."""

    def __init__(self) -> None:
        """Begin with nothing sounding."""
        self._tracks: list[Track] = []
        self._over: collections.deque[Track] = collections.deque(maxlen=REMEMBERED)
        self._held = False

    def __bool__(self) -> bool:
        """Whether anything may still be sounding."""
        return bool(self._tracks)

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The tracks that may still be heard, oldest first."""
        return tuple(self._tracks)

    @property
    def ends_at_ms(self) -> float:
        """When the last of what was sent will have been heard."""
        ends_at_ms = 0.0
        for track in self._tracks:
            ends_at_ms = max(ends_at_ms, track.ends_at_ms)
        return ends_at_ms

    @property
    def due_ms(self) -> float | None:
        """When the next answer that is wholly made will have been heard to its end."""
        due_ms = None
        for track in self._tracks:
            if self._runs_out(track) and (due_ms is None or track.ends_at_ms < due_ms):
                due_ms = track.ends_at_ms
        return due_ms

    def over_by(self, now_ms: float) -> bool:
        """Whether, by the clock alone, all that was sent has been heard by ``now_ms``, and no more comes."""
        return all(track.generated and track.ends_at_ms <= now_ms for track in self._tracks)

    def hold(self) -> None:
        """The client was told to pause: what it acknowledges and has not heard yet does not run out meanwhile."""
        self._held = True

    def go_on(self, now_ms: float) -> None:
        """It goes on at ``now_ms``, from where its last acknowledgement was."""
        if not self._held:
            return
        self._held = False
        waiting = next((track for track in self._tracks if track.acknowledged and _left(track) > 0.0), None)
        if waiting is not None:
            self._shift(self._tracks.index(waiting), _left(waiting) + now_ms - waiting.ends_at_ms)

    def find(self, response_id: str | None, item_id: str | None) -> Track | None:
        """The track named, or the newest when nothing is named; ``None`` when it was superseded or never was."""
        for track in reversed([*self._over, *self._tracks]):
            if response_id in (None, track.response_id) and item_id in (None, track.item_id):
                return track
        return None

    def playing(self, item_id: str) -> bool:
        """Whether this item may still be sounding."""
        return any(track.item_id == item_id for track in self._tracks)

    def drop(self, item_id: str) -> None:
        """Acknowledgements of this item, which is over, change nothing any more."""
        kept = [track for track in self._over if track.item_id != item_id]
        self._over = collections.deque(kept, maxlen=REMEMBERED)

    def begin(self, track: Track) -> None:
        """A new answer starts to sound, after those before it."""
        self._tracks.append(track)

    def send(self, track: Track, ms: float, now_ms: float) -> None:
        """``ms`` of audio of ``track`` were made and given to the client at ``now_ms``."""
        track.ledger = track.ledger.give_out(ms)
        track.ends_at_ms = max(self.ends_at_ms, now_ms) + ms

    def acknowledge(self, track: Track, played_ms: float, now_ms: float) -> None:
        """The client has heard ``track`` up to ``played_ms``: all before it is over, and what comes after it shifts."""
        track.ledger = track.ledger.play(played_ms)
        track.acknowledged = True
        if track not in self._tracks:
            return
        at = self._tracks.index(track)
        if track.ledger.played_ms > 0.0:
            for earlier in self._tracks[:at]:
                earlier.ends_at_ms = min(earlier.ends_at_ms, now_ms)
        self._shift(at, now_ms + track.ledger.sent_ms - track.ledger.played_ms - track.ends_at_ms)

    def _runs_out(self, track: Track) -> bool:
        """Whether the clock ends this answer: it is wholly made, and its client has not paused in it."""
        return track.generated and not (self._held and track.acknowledged and _left(track) > 0.0)

    def _shift(self, first: int, by_ms: float) -> None:
        for track in self._tracks[first:]:
            track.ends_at_ms += by_ms

    def drained(self, now_ms: float) -> list[Track]:
        """Take out the finished tracks that have been heard to their end by ``now_ms``."""
        over = [track for track in self._tracks if self._runs_out(track) and track.ends_at_ms <= now_ms]
        self._tracks = [track for track in self._tracks if track not in over]
        self._over.extend(over)
        return over

    def forget(self, track: Track, now_ms: float) -> None:
        """``track`` will not be played any further; what comes after it begins sooner."""
        if track in self._tracks:
            at = self._tracks.index(track)
            begins_ms = max((earlier.ends_at_ms for earlier in self._tracks[:at]), default=now_ms)
            self._shift(at + 1, min(0.0, max(begins_ms, now_ms) - track.ends_at_ms))
            self._tracks.remove(track)
        elif track in self._over:
            self._over.remove(track)

    def clear(self) -> list[Track]:
        """Take out everything: an interruption. What was over before stays as it was heard."""
        over, self._tracks = self._tracks, []
        self._over.clear()
        return over


def _left(track: Track) -> float:
    """How much of what was sent has not been acknowledged, in ms."""
    return track.ledger.sent_ms - track.ledger.played_ms


class Speech(msgspec.Struct, kw_only=True):
    """How an answer's text lies in its sound, counted from the answer's beginning.

    ``marks`` are the model's own. ``anchors`` are what is known without them: after a piece that brought text and sound
    together, that text ends where that sound ends.
    """

    marks: list[TextMark] = []
    anchors: list[TextMark] = []
    audio_ms: float = 0.0
    complete: bool = False

    def chars(self, text: str, heard_ms: float) -> int:
        """How many characters of ``text`` had been spoken by ``heard_ms``.

        At the last of the model's marks that was reached, where there are any; else by proportion between the anchors,
        cut back to a whole word. While the answer is still being made, text beyond the last of them was not spoken yet.
        """
        if heard_ms <= 0.0 or not text:
            return 0
        if self.complete and heard_ms >= self.audio_ms:
            return len(text)
        if self.marks:
            return max((min(mark.chars, len(text)) for mark in self.marks if mark.ms <= heard_ms), default=0)
        return self._by_proportion(text, heard_ms)

    def _by_proportion(self, text: str, heard_ms: float) -> int:
        end = (TextMark(chars=len(text), ms=self.audio_ms),) if self.complete else ()
        below = TextMark(chars=0, ms=0.0)
        for above in (*self.anchors, *end):
            if above.ms > heard_ms:
                break
            below = above
        else:
            return min(below.chars, len(text))
        least = min(below.chars, len(text))
        share = (heard_ms - below.ms) / (above.ms - below.ms)
        chars = min(below.chars + int((above.chars - below.chars) * share), len(text))
        while least < chars < len(text) and not text[chars].isspace() and not text[chars - 1].isspace():
            chars -= 1
        return max(chars, least)

    def cut(self, limit_ms: float) -> None:
        """Forget what lies beyond ``limit_ms``: the text up to there is all that there is."""
        self.audio_ms = min(self.audio_ms, limit_ms)
        self.marks = [mark for mark in self.marks if mark.ms <= limit_ms]
        self.anchors = [mark for mark in self.anchors if mark.ms <= limit_ms]
        self.complete = True
