"""What many scenes come to: shares and times by class, as values and as tables.

Used by ``run.py`` and by the test that holds the documented figures. Pure: it plays nothing and reads no file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from benchmarks.overlap.recorded import Kind
from benchmarks.overlap.scene import Outcome

YIELD_TARGET: Final = 0.95
TALK_THROUGH_TARGET: Final = 0.80
LATE_TARGET_MS: Final = 300.0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The middle, the ninth tenth and the largest of some times in ms."""

    p50: float
    p90: float
    largest: float

    def __str__(self) -> str:
        """For a table's cell."""
        return f"{self.p50:.0f} / {self.p90:.0f} / {self.largest:.0f}"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Times are those of :class:`~benchmarks.overlap.scene.Outcome`, of the scenes that have them."""

    scenes: int
    right: int
    never_held: int
    held_ms: Times | None
    decided_ms: Times | None
    late_ms: Times | None
    paused_ms: Times | None

    @property
    def share(self) -> float:
        """How many of the scenes came out right, from 0 to 1; 0 when there are none."""
        return self.right / self.scenes if self.scenes else 0.0


def times(values: Sequence[float | None]) -> Times | None:
    """Sum some times up; ``None`` when there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    at = [known[min(len(known) - 1, int(share * len(known)))] for share in (0.5, 0.9)]
    return Times(p50=round(at[0], 1), p90=round(at[1], 1), largest=round(known[-1], 1))


def figures(outcomes: Sequence[Outcome], chosen: Callable[[Outcome], bool] = lambda outcome: True) -> Figures:
    """The figures of the scenes that are ``chosen``."""
    some = [outcome for outcome in outcomes if chosen(outcome)]
    return Figures(
        scenes=len(some),
        right=sum(outcome.right for outcome in some),
        never_held=sum(outcome.held_ms is None for outcome in some),
        held_ms=times([outcome.held_ms for outcome in some]),
        decided_ms=times([outcome.decided_ms for outcome in some]),
        late_ms=times([outcome.late_ms for outcome in some]),
        paused_ms=times([outcome.paused_ms for outcome in some if outcome.held_ms is not None]),
    )


ROWS: Final[dict[str, Callable[[Outcome], bool]]] = {
    "**all that should yield**": lambda o: o.kind.yields,
    "interruptions": lambda o: o.kind is Kind.INTERRUPTION,
    "interruptions spoken by people": lambda o: o.kind is Kind.INTERRUPTION and o.human,
    "interruptions with a pause": lambda o: o.kind is Kind.PAUSE,
    "interruptions in a noisy room": lambda o: o.kind.yields and o.snr_db is not None,
    "**all acknowledgements**": lambda o: o.kind is Kind.BACKCHANNEL,
    "acknowledgements that are words": lambda o: o.kind is Kind.BACKCHANNEL and o.text != "(hummed)",
    "acknowledgements in a noisy room": lambda o: o.kind is Kind.BACKCHANNEL and o.snr_db is not None,
    "**all noises**": lambda o: o.kind is Kind.NOISE,
    "noises other than voices": lambda o: o.kind is Kind.NOISE and o.text != "babble",
}
"""Lines of the table, by what they count."""


def table(outcomes: Sequence[Outcome]) -> str:
    """The table of the documentation, in Markdown."""
    lines = [
        "| class | scenes | as it should be | never held | onset to hold | onset to decision | decision frame to last old audio "
        "| answer held |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, chosen in ROWS.items():
        row = figures(outcomes, chosen)
        cells = [row.held_ms, row.decided_ms, row.late_ms, row.paused_ms]
        shown = " | ".join("—" if cell is None else str(cell) for cell in cells)
        lines.append(f"| {name} | {row.scenes} | {row.share:.0%} | {row.never_held} | {shown} |")
    return "\n".join(lines)


def wrong(outcomes: Sequence[Outcome]) -> str:
    """Every scene that came out wrong, a line each: what was said, and what was understood."""
    lines = []
    for outcome in outcomes:
        if not outcome.right:
            heard = " → ".join(dict.fromkeys(outcome.heard)) or "(nothing)"
            room = "quiet" if outcome.snr_db is None else f"{outcome.snr_db:.0f} dB"
            verdicts = ", ".join(outcome.verdicts) or "never noticed"
            lines.append(f"{outcome.file} {outcome.text!r} in {room}: understood {heard}; {verdicts}")
    return "\n".join(lines)
