"""What a run of the ``torch`` half says: its figures as JSON, as a table for the documentation, and as a chart.

Owns the files' contents. Pure but for the conditions. A test makes table and chart again from the JSON that the documentation
shows. Must never leave a figure out because it is a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from benchmarks import conditions as conditions_of
from benchmarks.conditions import line
from benchmarks.stages.frames import Took

TARGET = 0.10
"""Most that the runtime may add to a step, as a share of it."""
LIBRARIES = ("torch", "msgspec", "uvloop", "numpy")
WIDTH, HEIGHT, PLOT, TOP, BOTTOM = 860, 340, 330, 50, 290
STYLE = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.g{stroke:#ddd}.d{stroke-dasharray:5 4;opacity:.7}"
COLOURS = {"bare": "#777777", "queued": "#1f77b4", "rounds": "#d95f02", "answer": "#1b9e77"}


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """Shares by the clock, and of processor time, which others on the machine disturb less."""

    clock: float
    cpu: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One number of sessions. Times are in milliseconds.

    Attributes:
        sessions: sessions, each with a slot.
        bare: a step of the bare loop.
        queued: a step in the runtime, while the work of all further ones waits already.
        rounds: from one step to the next where each session sends its next frame when it has its answer.
        added: what the runtime adds to a step, as shares of the bare one measured just before: the median of the repeats.
        frames: frames that were sent in their own rhythm, one every 80 ms for each session.
        misses: how many of them were answered later than 80 ms after they were sent.
        answer_50_ms: from such a frame to its answer, median.
        answer_99_ms: the same, 99 %.
    """

    sessions: int
    bare: Took
    queued: Took
    rounds: Took
    added: Added
    frames: int
    misses: int
    answer_50_ms: float
    answer_99_ms: float


class Conditions(conditions_of.Conditions, frozen=True, kw_only=True):
    """Under which a run was made."""

    steps: int
    repeats: int
    seconds: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    conditions: Conditions
    rows: list[Row]


def conditions(*, steps: int, repeats: int, seconds: float, load_before: float) -> Conditions:
    """The conditions of the run that ends now."""
    return Conditions(
        steps=steps, repeats=repeats, seconds=seconds, **conditions_of.now(LIBRARIES, load_before=load_before)
    )


def from_json(text: str) -> Results:
    """The results that :func:`benchmarks.conditions.to_json` wrote."""
    return msgspec.json.decode(text, type=Results)


def table(results: Results) -> str:
    """The results as Markdown."""
    head = [
        "sessions",
        "bare step: CPU (ms)",
        "in the runtime: CPU (ms)",
        "added",
        "bare step: clock (ms)",
        "in the runtime: clock (ms)",
        "added",
        "answer by answer: clock (ms)",
        "frame to answer in rhythm, median / 99 % (ms)",
        "late frames",
    ]
    lines = [line(head), line(["---:"] * len(head))]
    lines += [
        line(
            [
                str(row.sessions),
                f"{row.bare.cpu_ms:.2f}",
                f"{row.queued.cpu_ms:.2f}",
                f"**{100 * row.added.cpu:.1f} %**",
                f"{row.bare.ms:.2f}",
                f"{row.queued.ms:.2f}",
                f"{100 * row.added.clock:.1f} %",
                f"{row.rounds.ms:.2f}",
                f"{row.answer_50_ms:.1f} / {row.answer_99_ms:.1f}",
                f"{row.misses} of {row.frames}",
            ]
        )
        for row in results.rows
    ]
    how = results.conditions
    libraries = ", ".join(f"{name} {version}" for name, version in how.libraries.items())
    told = (
        f"Measured on {how.date}: {how.processor}, {how.cores} cores, {how.system}, Python {how.python}; {libraries}. "
        f"Steps: {how.steps} in a row, {how.repeats} times, of which the median is shown; rhythm: {how.seconds:g} s. "
        f"Load of the machine {how.load_before} before and {how.load_after} after."
    )
    return "\n".join([*lines, "", told, ""])


def chart(results: Results) -> str:
    """Two plots over the number of sessions: a step's time, and the time from a frame to its answer, as an SVG."""
    steps: dict[str, Callable[[Row], float]] = {
        "bare": lambda row: row.bare.ms,
        "queued": lambda row: row.queued.ms,
        "rounds": lambda row: row.rounds.ms,
    }
    left = _plot(results.rows, 60, "ms a step: bare loop, in the runtime, answer by answer", steps, None)
    late: dict[str, Callable[[Row], float]] = {"answer": lambda row: row.answer_99_ms}
    right = _plot(results.rows, 490, "ms from frame to answer, 99 % (dashed: a frame)", late, 80.0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *left,
            *right,
            "</svg>",
            "",
        ]
    )


def _plot(
    rows: Sequence[Row], left: int, title: str, lines: dict[str, Callable[[Row], float]], target: float | None
) -> list[str]:
    most = max([*(value(row) for value in lines.values() for row in rows), target or 0.0])
    step = next(each for each in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if most / each <= 10)
    top = step * (int(most / step) + 1)

    def across(row: Row) -> float:
        return left + PLOT * row.sessions / rows[-1].sessions

    def up(amount: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * amount / top

    marks = [f'<text class="t" x="{left}" y="20">{title}</text>']
    for index in range(round(top / step) + 1):
        y = up(index * step)
        marks.append(f'<line class="g" x1="{left}" x2="{left + PLOT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}</text>')
    last = -100.0
    for row in rows:
        if across(row) - last >= 18:
            last = across(row)
            marks.append(f'<text x="{last:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{row.sessions}</text>')
    marks.append(f'<text x="{left + PLOT / 2}" y="{BOTTOM + 38}" text-anchor="middle">sessions</text>')
    for place, (name, value) in enumerate(lines.items()):
        points = " ".join(f"{across(row):.1f},{up(value(row)):.1f}" for row in rows)
        marks.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        marks.append(f'<text x="{left + 80 * place}" y="38" style="fill:{COLOURS[name]}">{name}</text>')
    if target is not None:
        y = up(target)
        marks.append(f'<line class="d" x1="{left}" x2="{left + PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#222"/>')
    return marks
