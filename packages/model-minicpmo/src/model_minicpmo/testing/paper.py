"""Stages on paper: what the four stages would answer, made up from loudness, for tests of the session without any weights.

Owns a script of the model's decisions: it answers speech after a second of silence, in three units. Used by tests and by the
conformance kit where torch is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from duplex_core.stages import StagePlan
from duplex_core.testing.native.decision import Mind, decide
from duplex_core.testing.native.decision import Orders as Wishes
from duplex_core.testing.native.options import NativeOptions
from duplex_core.testing.native.unit import sound_of
from duplex_core.testing.pipelines import Worked
from duplex_core.testing.speech import burst
from duplex_core.testing.stages import StageHost
from model_minicpmo.payloads import Chat, Decided, Open, Sound, Unit, Voice, Written
from model_minicpmo.rules.limit import ends_turn

OUTPUT_HZ = 24000
UNIT_MS = 1000.0


class Paper:
    """The stages of one plan, as one; each session has a mind of its own."""

    def __init__(self) -> None:
        """Begin without sessions."""
        self.given: list[tuple[str, Any]] = []
        """Everything that was given, with its session's id."""
        self._minds: dict[str, Mind] = {}

    def run(self, session_id: str, payload: Any, emit: Callable[[Any], None]) -> None:
        """Answer one request as all the stages together would."""
        self.given.append((session_id, payload))
        match payload:
            case Unit():
                self._unit(session_id, payload, emit)
            case Chat():
                emit(Written(text="On paper. "))
                emit(Written(text="Yes.", done=True, input_tokens=7, output_tokens=4))
                if payload.spoken:
                    emit(Sound(number=0, pcm=burst(UNIT_MS, OUTPUT_HZ), ends_turn=True))
            case Open() | Voice():
                pass  # nothing comes of either
            case _:
                raise TypeError(f"no stage takes {type(payload).__name__} from a session")

    def _unit(self, session_id: str, unit: Unit, emit: Callable[[Any], None]) -> None:
        orders = unit.orders
        mind = self._minds.get(session_id, Mind())
        script = NativeOptions(silence_ms=600.0)
        sound = sound_of(pcm16(unit.samples.data))
        if orders.text or orders.asked:
            mind = Mind(units=mind.units, unanswered_ms=UNIT_MS, silent_ms=UNIT_MS, left=mind.left, length=mind.length)
        thought = decide(
            mind, sound, Wishes(forced=orders.forced, asked=orders.asked, forgets=orders.ends_turn), script
        )
        self._minds[session_id] = thought.mind
        if thought.text is None:
            emit(Decided(number=orders.number, listens=True))
            return
        words = thought.text.split()
        most = len(words) if orders.most_tokens is None else orders.most_tokens
        cut = ends_turn(orders.most_tokens, len(words)) and not (thought.last and len(words) == most)
        if cut:
            self._minds[session_id] = msgspec.structs.replace(thought.mind, left=0, length=0)
        text = " ".join(words[:most]) if cut else thought.text
        over = thought.last or cut
        tokens = min(len(words), most)
        ids = tuple(range(tokens))
        emit(Decided(number=orders.number, listens=False, text=text, tokens=tokens, ends_turn=over, cut=cut, ids=ids))
        emit(Sound(number=orders.number, pcm=burst(UNIT_MS, OUTPUT_HZ), ends_turn=over))

    def release(self, session_id: str) -> None:
        """Forget a session."""
        self._minds.pop(session_id, None)

    def close(self) -> None:
        """Nothing is held."""


class PaperHost(StageHost):
    """A host whose stages are on paper."""

    def __init__(self) -> None:
        """Make the paper."""
        super().__init__(StagePlan())
        self.paper = Paper()

    def stage(self, name: str) -> Worked:
        """Give the paper, whichever stage is asked for."""
        return self.paper

    def release(self, session_id: str) -> None:
        """Forget a session."""
        self.paper.release(session_id)


def pcm16(floats: Any) -> bytes:
    """Turn float32 samples back into 16-bit PCM."""
    return b"".join(
        int(max(-32768.0, min(32767.0, sample * 32768.0))).to_bytes(2, "little", signed=True)
        for sample in memoryview(floats).cast("B").cast("f")
    )
