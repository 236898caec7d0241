"""One conversation in virtual time: machine, model session and stage workers, with no socket, task, thread or clock.

Used by the conformance kit, by the core's tests and by those of model packages. This half is the client and the clock: time
stands still until :meth:`ConversationDriver.advance` and its like move it, and work takes exactly as long as the driver was
told that it takes. The server's half is :class:`~duplex_core.testing.runner.VirtualRunner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from duplex_core.audio import pcm16_bytes
from duplex_core.commands import InputAudioBufferAppend
from duplex_core.events import OutputAudioDelta
from duplex_core.testing.runner import VirtualRunner

E = TypeVar("E")

CHUNK_MS = 100.0
"""How much audio a client sends at once."""


class ConversationDriver(VirtualRunner):
    """A session of ``spec`` and its client.

    Attributes:
        events: every event that the client got, in order.
        told: every input of the model session with its answers, in order.
        now_ms: virtual time; 0 is when the session opened.
        released: whether the session has given its slot back.
        watch: called after each event, with the event; may send commands. For tests that act in the midst of things.
        heed: called just before the session takes verdicts of the detector or a stage's reply, with them: what follows follows
            from that.
        end_of_turn: an end-of-turn detector: gets the end of an utterance, says the probability that it is all; none at first.
    """

    def advance(self, ms: float) -> None:
        """Let ``ms`` pass."""
        self.advance_to(self.now_ms + ms)

    def advance_to(self, at_ms: float) -> None:
        """Let time pass until ``at_ms``, doing what is due on the way, in order."""
        while self._agenda and self._agenda[0][0] <= at_ms:
            self.step()
        self.now_ms = max(self.now_ms, at_ms)

    def stream(self, pcm: bytes, *, chunk_ms: float = CHUNK_MS) -> None:
        """Send audio at the pace at which it sounds."""
        size = pcm16_bytes(chunk_ms, self.capabilities.input_rate_hz)
        for start in range(0, len(pcm), size):
            piece = pcm[start : start + size]
            self.advance(chunk_ms * len(piece) / size)
            self.send(InputAudioBufferAppend(audio=piece))

    def run_until(self, done: Callable[[], bool], *, limit_ms: float = 60_000.0) -> None:
        """Let time pass until ``done`` holds.

        Raises:
            AssertionError: it does not within ``limit_ms``, or nothing is left that could happen.
        """
        until = self.now_ms + limit_ms
        while not done():
            happened = [type(event).__name__ for event in self.events[-8:]]
            assert self._agenda, f"nothing more will happen; the last events were {happened}"
            assert self._agenda[0][0] <= until, f"not within {limit_ms:.0f} ms; the last events were {happened}"
            self.step()

    def wait_for(self, kind: type[E], *, count: int = 1, limit_ms: float = 60_000.0) -> E:
        """Let time pass until there are ``count`` events of a type, counted from the session's beginning."""
        self.run_until(lambda: len(self.all_of(kind)) >= count, limit_ms=limit_ms)
        return self.all_of(kind)[count - 1]

    def settle(self, *, limit_ms: float = 60_000.0) -> None:
        """Let time pass until nothing is left that could happen, or ``limit_ms`` have passed."""
        until = self.now_ms + limit_ms
        while self._agenda and self._agenda[0][0] <= until:
            self.step()

    def all_of(self, kind: type[E]) -> list[E]:
        """The client's events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    def heard_by_model(self, kind: type[E]) -> list[E]:
        """The model session's inputs of one type."""
        return [told.event for told in self.told if isinstance(told.event, kind)]

    def audio(self) -> bytes:
        """All output audio that the client got, in order."""
        return b"".join(event.delta for event in self.all_of(OutputAudioDelta))

    def close(self) -> None:
        """Close the workers, if they are this driver's own. The session itself is closed by command."""
        if self._own_host:
            self.host.close()
