"""The state diagram of the documentation, drawn from the transition table and from nothing else.

Called by ``docs/draw_state_diagram.py``, which writes the picture, and by the test that holds the two together. Never used
while a session runs. The picture is one SVG without scripts, fonts or anything else from elsewhere; the same table gives the
same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

from duplex_core.machine.table import TRANSITIONS, State, Trigger

BOX = (128, 40)
"""Width and height of a state."""
GAP = 150
"""Between two states of a lane."""
LEFT, TOP = 150, 56
"""Where the first state of the first lane lies."""
RISE = 30
"""How far an arrow rises above (forward) or falls below (backward) the boxes, for each state that it spans."""

Table = Mapping[State, Mapping[Trigger, State]]

_STYLE = (
    "text{font:14px sans-serif;fill:#1b1f24;text-anchor:middle}"
    ".lane{font-weight:bold;text-anchor:start}"
    ".move{font-size:12px;fill:#444c56;stroke:#fff;stroke-width:4;paint-order:stroke}"
    "rect.state{fill:#eef2f8;stroke:#3b5b92;stroke-width:1.5}"
    "path{fill:none;stroke:#57606a;stroke-width:1.3}"
)
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<polygon points="0,0 8,4 0,8" fill="#57606a"/></marker>'
)


def moves(table: Table) -> Iterator[tuple[State, State, str]]:
    """Each pair of states with a move between them, and the triggers that make it, as the table orders them."""
    for state, following in table.items():
        for after in dict.fromkeys(following.values()):
            yield state, after, ", ".join(trigger.value for trigger, goal in following.items() if goal is after)


def draw(table: Table = TRANSITIONS) -> str:
    """The table as an SVG document: a row for each lane, its states from left to right."""
    rows: list[str] = []
    top = TOP
    width = 0
    for lane, group in itertools.groupby(table, type):
        states = list(group)
        above, below = _reach(states, table)
        top += above
        rows.append(f'<text class="lane" x="24" y="{top + BOX[1] // 2 + 5}">{escape(lane.__name__)}</text>')
        rows += (_state(state, _left(at), top) for at, state in enumerate(states))
        inside = (move for move in moves(table) if move[0] in states)
        rows += (_move(states.index(one), states.index(other), text, top) for one, other, text in inside)
        width = max(width, _left(len(states) - 1) + BOX[0] + 40)
        top += BOX[1] + below
    body = "\n".join(rows)
    described = "; ".join(f"{_path(one)} to {_path(other)} by {text}" for one, other, text in moves(table))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">States and moves of a session</title>\n<desc id="desc">{escape(described)}</desc>\n'
        f"<style>{_STYLE}</style>\n<defs>{_ARROW}</defs>\n"
        f'<rect width="{width}" height="{top}" rx="8" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _path(state: State) -> str:
    return f"{type(state).__name__}.{state.value}"


def _left(at: int) -> int:
    return LEFT + at * (BOX[0] + GAP)


def _reach(states: list[State], table: Table) -> tuple[int, int]:
    """How much room the arrows of a lane need above and below its boxes."""
    above = below = 0
    for state in states:
        for after in table[state].values():
            span = states.index(after) - states.index(state)
            above, below = max(above, span, int(span == 0)), max(below, -span)
    return above * RISE + 14, below * RISE + 26


def _state(state: State, left: int, top: int) -> str:
    middle = left + BOX[0] // 2
    return (
        f'<rect class="state" x="{left}" y="{top}" width="{BOX[0]}" height="{BOX[1]}" rx="6"/>'
        f'<text x="{middle}" y="{top + BOX[1] // 2 + 5}">{escape(state.value)}</text>'
    )


def _move(start: int, goal: int, text: str, top: int) -> str:
    """An arrow: forward above the boxes, backward below them, a loop above its own box."""
    span = goal - start
    edge = top + BOX[1] if span < 0 else top
    height = -RISE * (abs(span) or 1) if span >= 0 else RISE * -span
    out, into = _left(start) + BOX[0] // 2, _left(goal) + BOX[0] // 2
    out += 24 if span >= 0 else -24
    into += -24 if span >= 0 else 24
    bend = edge + height * 4 // 3
    label = edge + height + (4 if span < 0 else 2)
    return (
        f'<path d="M{out},{edge} C{out},{bend} {into},{bend} {into},{edge}" marker-end="url(#arrow)"/>'
        f'<text class="move" x="{(out + into) // 2}" y="{label}">{escape(text)}</text>'
    )
