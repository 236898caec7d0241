"""The results as a picture: an SVG, written by hand, that needs no library and is the same for the same figures.

Pure. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.engine.report import TARGETS, Results
from benchmarks.engine.rounds import Row, Setup

WIDTH, HEIGHT = 860, 340
PLOT = 330
TOP, BOTTOM = 50, 290
COLOURS = {Setup.ECHO: "#777777", Setup.ENGINE: "#1f77b4", Setup.VAD: "#d95f02"}
STYLE = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.g{stroke:#ddd}.d{stroke-dasharray:5 4;opacity:.7}"


def chart(results: Results) -> str:
    """Two plots over the number of sessions: processor time, and its ratio to the echo's with the targets."""
    cost = _plot(results, 60, "ms of CPU per session-second", dict.fromkeys(Setup), lambda row: row.cpu_ms)
    ratio = _plot(results, 490, "times the echo (dashed: target)", TARGETS, results.ratio)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *cost,
            *ratio,
            "</svg>",
            "",
        ]
    )


def _plot(
    results: Results, left: int, title: str, targets: Mapping[Setup, float | None], value: Callable[[Row], float]
) -> list[str]:
    """One plot: a line for each setup in ``targets``, and a dashed one where it has a target."""
    counts = results.counts
    values = [value(results.row(setup, count)) for setup in targets for count in counts]
    most = max([*values, *(target for target in targets.values() if target is not None)])
    step = _step(most)
    top = step * (int(most / step) + 1)

    def across(count: int) -> float:
        return left + (PLOT * count / counts[-1])

    def up(amount: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * amount / top

    marks = [f'<text class="t" x="{left}" y="20">{title}</text>']
    for index in range(round(top / step) + 1):
        y = up(index * step)
        marks.append(f'<line class="g" x1="{left}" x2="{left + PLOT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}</text>')
    marks += [
        f'<text x="{across(count):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{count}</text>'
        for count in _apart(counts)
    ]
    marks.append(f'<text x="{left + PLOT / 2}" y="{BOTTOM + 38}" text-anchor="middle">sessions</text>')
    for place, (setup, target) in enumerate(targets.items()):
        points = " ".join(f"{across(n):.1f},{up(value(results.row(setup, n))):.1f}" for n in counts)
        colour = COLOURS[setup]
        marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        marks.append(f'<text x="{left + 110 * place}" y="38" style="fill:{colour}">{setup.value}</text>')
        if target is not None:
            y = up(target)
            marks.append(
                f'<line class="d" x1="{left}" x2="{left + PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
            )
    return marks


def _step(most: float) -> float:
    """A round distance between grid lines, of which there are four to ten."""
    return next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 1e9) if most / step <= 10)


def _apart(counts: Sequence[int]) -> list[int]:
    """The counts whose labels do not run into each other."""
    kept: list[int] = []
    for count in counts:
        if not kept or (count - kept[-1]) / counts[-1] > 0.08:
            kept.append(count)
    return kept
