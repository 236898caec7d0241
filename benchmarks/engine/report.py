"""What a run says: its figures as JSON, as a table for the documentation, and as a chart.

Owns the files' contents and the conditions that stand above the figures. Called by the command line; a test makes the table again
from the JSON that the documentation shows. Must never leave a figure out because it is a bad one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks import conditions as conditions_of
from benchmarks.conditions import line
from benchmarks.engine.interruptions import Interruptions
from benchmarks.engine.rounds import Frames, Row, Setup

TARGETS = {Setup.ENGINE: 2.0, Setup.VAD: 3.5}
"""Most processor time, as a multiple of the echo's."""
INTERRUPTION_MS = 20.0
INTERRUPTION_SESSIONS = 100
LIBRARIES = ("uvicorn", "websockets", "fastapi", "uvloop", "msgspec", "numpy", "soxr", "onnxruntime")


class Conditions(conditions_of.Conditions, frozen=True, kw_only=True):
    """Under which a run was made."""

    seconds: float
    repeats: int


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. ``rows`` hold the median of the repeats."""

    conditions: Conditions
    frames: Frames
    rows: list[Row]
    interruptions: list[Interruptions]

    def row(self, setup: Setup, sessions: int) -> Row:
        """The row of a setup."""
        return next(row for row in self.rows if row.setup is setup and row.sessions == sessions)

    def ratio(self, row: Row) -> float:
        """A row's processor time as a multiple of the echo's with as many clients."""
        return row.cpu_ms / self.row(Setup.ECHO, row.sessions).cpu_ms

    @property
    def counts(self) -> list[int]:
        """How many sessions there were, once for each step."""
        return sorted({row.sessions for row in self.rows})


def conditions(*, seconds: float, repeats: int, load_before: float) -> Conditions:
    """The conditions of the run that ends now."""
    return Conditions(seconds=seconds, repeats=repeats, **conditions_of.now(LIBRARIES, load_before=load_before))


def median_row(rows: Sequence[Row]) -> Row:
    """The one of several measurements of the same that took the median of processor time."""
    return sorted(rows, key=lambda row: row.cpu_ms)[len(rows) // 2]


def from_json(text: str) -> Results:
    """The results that :func:`benchmarks.conditions.to_json` wrote."""
    return msgspec.json.decode(text, type=Results)


def table(results: Results) -> str:
    """The results as Markdown."""
    return "\n".join([*_cost_lines(results), "", *_interruption_lines(results), "", *_condition_lines(results), ""])


def _cost_lines(results: Results) -> list[str]:
    head = [
        "sessions",
        "server",
        "ms of CPU per session-second",
        "times the echo",
        "of the core",
        "event, median / 99 % (ms)",
        "audio late, 99 % (ms)",
        "memory per session (kB)",
    ]
    lines = [line(head), line(["---:", ":---", *["---:"] * (len(head) - 2)])]
    for sessions in results.counts:
        for setup in Setup:
            row = results.row(setup, sessions)
            lines.append(line(_cells(results, row)))
    return lines


def _cells(results: Results, row: Row) -> list[str]:
    ratio = "1" if row.setup is Setup.ECHO else f"**{results.ratio(row):.2f}**"
    return [
        str(row.sessions),
        row.setup.value + ("" if row.keeps_up else " (falls behind)"),
        f"{row.cpu_ms:.2f}",
        ratio,
        f"{100 * row.core_share:.0f} %",
        f"{row.event_50_ms:.1f} / {row.event_99_ms:.1f}",
        f"{row.late_99_ms:.1f}",
        f"{row.memory_kb:.0f}",
    ]


def _interruption_lines(results: Results) -> list[str]:
    head = [
        "decided by",
        "sessions",
        "interruptions",
        "median (ms)",
        "99 % (ms)",
        "most (ms)",
        "missed",
        "old audio after",
    ]
    lines = [line(head), line([":---", *["---:"] * (len(head) - 1)])]
    lines += [
        line(
            [
                each.decided_by,
                str(each.sessions),
                str(each.count),
                f"{each.median_ms:.1f}",
                f"**{each.late_99_ms:.1f}**",
                f"{each.most_ms:.1f}",
                str(each.missed),
                str(each.stale),
            ]
        )
        for each in results.interruptions
    ]
    return lines


def _condition_lines(results: Results) -> list[str]:
    how = results.conditions
    waited = max(row.waited_share for row in results.rows if row.setup is not Setup.VAD)  # there its own worker counts
    libraries = ", ".join(f"{name} {version}" for name, version in how.libraries.items())
    repeats = "once" if how.repeats == 1 else f"{how.repeats} times, of which the median is shown"
    return [
        f"Measured on {how.date}: {how.processor}, {how.cores} cores, {how.system}, Python {how.python}; {libraries}. "
        f"Each row {how.seconds:g} s, {repeats}; load of the machine {how.load_before} before and {how.load_after} after; "
        f"other processes kept the server from its core for at most {100 * waited:.0f} % of a row. "
        f"Audio frames to the client have {results.frames.audio} characters, others {results.frames.other}."
    ]
