"""What of the answers has been heard by when: a loudspeaker as a pure function of time.

:class:`PlaybackClock` takes audio as it arrives and says what sounds at any moment. Every method takes the time; nothing
here waits or reads a clock. :class:`~duplex_client.player.Player` drives it in real time, and a sound card's callback may
do so by its own time. Audio is 16-bit mono PCM; instants and lengths are in milliseconds.
"""

from __future__ import annotations

import msgspec

from duplex_core.audio import pcm16_bytes, pcm16_ms


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one answer that sounds without a break, from ``starts_at_ms`` on the clock.

    ``offset_ms`` is where in the answer's audio it begins.
    """

    response_id: str
    starts_at_ms: float
    offset_ms: float
    pcm: bytes
    rate_hz: int

    @property
    def duration_ms(self) -> float:
        """How long it sounds."""
        return pcm16_ms(len(self.pcm), self.rate_hz)

    @property
    def ends_at_ms(self) -> float:
        """When its last sample has sounded."""
        return self.starts_at_ms + self.duration_ms

    def until(self, at_ms: float) -> Span | None:
        """What of it sounds before ``at_ms``, in whole samples; ``None`` when nothing does."""
        if at_ms >= self.ends_at_ms:
            return self
        pcm = self.pcm[: pcm16_bytes(max(0.0, at_ms - self.starts_at_ms), self.rate_hz)]
        return msgspec.structs.replace(self, pcm=pcm) if pcm else None


class PlaybackClock:
    """Plays what it is given one after the other, at once when it is idle, and forgets what is dropped.

    A dropped answer stays dropped: more of it is refused, since a network may still deliver some.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._generated: dict[str, float] = {}
        self._dropped: set[str] = set()
        self._held: list[Span] | None = None

    def add(self, response_id: str, pcm: bytes, rate_hz: int, now_ms: float) -> bool:
        """Queue more of an answer; ``False`` when it was dropped before."""
        if response_id in self._dropped:
            return False
        offset_ms = self._generated.get(response_id, 0.0)
        starts_at_ms = max(now_ms, self.idle_at_ms)
        span = Span(response_id=response_id, starts_at_ms=starts_at_ms, offset_ms=offset_ms, pcm=pcm, rate_hz=rate_hz)
        (self._spans if self._held is None else self._held).append(span)
        self._generated[response_id] = offset_ms + span.duration_ms
        return True

    @property
    def idle_at_ms(self) -> float:
        """When all that is queued has sounded; in the past when it has."""
        return self._spans[-1].ends_at_ms if self._spans else float("-inf")

    @property
    def holding(self) -> bool:
        """Whether it is silent between :meth:`hold` and :meth:`resume`."""
        return self._held is not None

    def hold(self, now_ms: float) -> None:
        """Fall silent at ``now_ms`` and keep what has not sounded, and what is added, for :meth:`resume`."""
        if self._held is not None:
            return
        played: list[Span] = []
        self._held = []
        for span in self._spans:
            heard = span.until(now_ms) if span.starts_at_ms < now_ms else None
            if heard is not None:
                played.append(heard)
            rest = span.pcm[len(heard.pcm) if heard is not None else 0 :]
            if rest:
                offset_ms = span.offset_ms + (heard.duration_ms if heard is not None else 0.0)
                self._held.append(msgspec.structs.replace(span, pcm=rest, offset_ms=offset_ms))
        self._spans = played

    def resume(self, now_ms: float) -> None:
        """Go on at ``now_ms`` with what was kept."""
        held, self._held = self._held or [], None
        cursor_ms = max(now_ms, self.idle_at_ms)
        for span in held:
            moved = msgspec.structs.replace(span, starts_at_ms=cursor_ms)
            self._spans.append(moved)
            cursor_ms = moved.ends_at_ms

    def drop(self, now_ms: float, response_id: str | None = None) -> tuple[str, ...]:
        """Fall silent at ``now_ms``: for one answer (what is queued behind it moves up), or for all.

        Returns:
            The answers that lost audio by it.
        """
        kept: list[Span] = []
        cut: dict[str, None] = {}
        cursor_ms = now_ms
        for span in self._spans:
            concerned = response_id is None or span.response_id == response_id
            if span.ends_at_ms <= now_ms:
                kept.append(span)
            elif concerned:
                cut[span.response_id] = None
                if (heard := span.until(now_ms)) is not None:
                    kept.append(heard)
            elif span.starts_at_ms <= now_ms:
                kept.append(span)
                cursor_ms = span.ends_at_ms
            else:
                moved = msgspec.structs.replace(span, starts_at_ms=cursor_ms)
                kept.append(moved)
                cursor_ms = moved.ends_at_ms
        self._spans = kept
        if self._held is not None:
            lost = [span for span in self._held if response_id in (None, span.response_id)]
            cut.update(dict.fromkeys(span.response_id for span in lost))
            self._held = [span for span in self._held if span not in lost]
        self._dropped.update(cut)
        if response_id is not None:
            self._dropped.add(response_id)
        return tuple(cut)

    def playing(self, now_ms: float) -> str | None:
        """The answer that sounds at ``now_ms``."""
        sounding = (span.response_id for span in self._spans if span.starts_at_ms <= now_ms < span.ends_at_ms)
        return next(sounding, None)

    def played_ms(self, response_id: str, now_ms: float) -> float:
        """How much of an answer has sounded by ``now_ms``."""
        heard = (min(now_ms, span.ends_at_ms) - span.starts_at_ms for span in self._of(response_id))
        return sum(ms for ms in heard if ms > 0.0)

    def generated_ms(self, response_id: str) -> float:
        """How much of an answer was queued, dropped audio included."""
        return self._generated.get(response_id, 0.0)

    def ends_at_ms(self, response_id: str) -> float | None:
        """When the last of an answer that is queued will have sounded; ``None`` when nothing of it ever will.

        Infinity while some of it is held.
        """
        if any(span.response_id == response_id for span in self._held or ()):
            return float("inf")
        return max((span.ends_at_ms for span in self._of(response_id)), default=None)

    def sounds_at_ms(self, response_id: str, played_ms: float) -> float | None:
        """When ``played_ms`` of an answer will have sounded, by what is queued now; ``None`` when that is not enough."""
        missing_ms = played_ms
        for span in self._of(response_id):
            if missing_ms <= span.duration_ms:
                return span.starts_at_ms + missing_ms
            missing_ms -= span.duration_ms
        return None

    def spans(self, response_id: str, now_ms: float) -> tuple[Span, ...]:
        """What of an answer has sounded by ``now_ms``, in order."""
        parts = (span.until(now_ms) for span in self._of(response_id) if span.starts_at_ms < now_ms)
        return tuple(part for part in parts if part is not None)

    def forget(self, response_id: str) -> None:
        """Give an answer's memory back; more of it is refused from now on."""
        self._spans = [span for span in self._spans if span.response_id != response_id]
        if self._held is not None:
            self._held = [span for span in self._held if span.response_id != response_id]
        self._generated.pop(response_id, None)
        self._dropped.add(response_id)

    def render(self, from_ms: float, duration_ms: float, rate_hz: int) -> bytes:
        """What sounds from ``from_ms`` on, gaps as silence: what a sound card at ``rate_hz`` asks for.

        Spans at another rate are left out; the player never queues such.
        """
        out = bytearray(pcm16_bytes(duration_ms, rate_hz))
        for span in self._spans:
            if span.rate_hz != rate_hz:
                continue
            at = pcm16_bytes(span.starts_at_ms - from_ms, rate_hz)
            source, target = max(0, -at), max(0, at)
            size = min(len(span.pcm) - source, len(out) - target)
            if size > 0:
                out[target : target + size] = span.pcm[source : source + size]
        return bytes(out)

    def _of(self, response_id: str) -> tuple[Span, ...]:
        return tuple(span for span in self._spans if span.response_id == response_id)
