"""What a run says: its figures as JSON, as a table for the documentation, and as a chart.

Owns the files' contents and the conditions that stand above the figures. Called by the command line; a test makes the table again
from the JSON that the documentation shows. Must never leave a figure out because it is a bad one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

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
    """A whole run. ``rows`` hold the repeat with the median of processor time, and what all of them took in comparison."""

    conditions: Conditions
    frames: Frames
    rows: list[Row]
    interruptions: list[Interruptions]

    def row(self, setup: Setup, sessions: int) -> Row:
        """The row of a setup."""
        return next(row for row in self.rows if row.setup is setup and row.sessions == sessions)

    def ratio(self, row: Row) -> float:
        """A row's processor time as a multiple of the echo's with as many clients: the median of the repeats."""
        return statistics.median(row.times_echo)

    @property
    def counts(self) -> list[int]:
        """How many sessions there were, once for each step."""
        return sorted({row.sessions for row in self.rows})


def conditions(*, seconds: float, repeats: int, load_before: float) -> Conditions:
    """The conditions of the run that ends now."""
    return Conditions(seconds=seconds, repeats=repeats, **conditions_of.now(LIBRARIES, load_before=load_before))


def summary(repeats: Mapping[Setup, Sequence[Row]]) -> list[Row]:
    """A row for each setup, of repeats in which each was measured once, one after the other.

    Each is compared with the echo next to it in time: what the machine has left for this process changes within minutes.
    """
    echoes = repeats[Setup.ECHO]
    rows = []
    for each in repeats.values():
        times = sorted(row.cpu_ms / echo.cpu_ms for row, echo in zip(each, echoes, strict=True))
        median = sorted(each, key=lambda row: row.cpu_ms)[len(each) // 2]
        rows.append(msgspec.structs.replace(median, times_echo=tuple(times)))
    return rows


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
        "times the echo, median (least to most)",
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
    ratio = "1" if row.setup is Setup.ECHO else _ratio(results, row)
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


def _ratio(results: Results, row: Row) -> str:
    """The ratio to the echo, and between what it was in the repeats."""
    median = f"**{results.ratio(row):.2f}**"
    return median if len(row.times_echo) == 1 else f"{median} ({row.times_echo[0]:.2f} to {row.times_echo[-1]:.2f})"


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
