"""The state diagram of the documentation shows the transition table, all of it and as it is now."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from duplex_core.machine.diagram import draw, moves
from duplex_core.machine.table import TRANSITIONS, Hearing, Life, State, Trigger

PICTURE = Path(__file__).resolve().parents[4] / "docs" / "architecture" / "state-diagram.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_in_the_documentation_is_drawn_from_this_table() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run: python docs/draw_state_diagram.py"


def parsed() -> ElementTree.Element:
    return ElementTree.fromstring(draw())  # noqa: S314  (our own)


def test_it_shows_every_state_and_every_move() -> None:
    picture = parsed()
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    for lane in {type(state) for state in TRANSITIONS}:
        assert texts.count(lane.__name__) == 1
    for state in TRANSITIONS:
        assert state.value in texts
    shown = list(moves(TRANSITIONS))
    assert sum(len(text.split(", ")) for _, _, text in shown) == sum(len(row) for row in TRANSITIONS.values())
    assert len(list(picture.iter(f"{SVG}path"))) == len(shown)
    for _, _, triggers in shown:
        assert triggers in texts


def test_another_table_gives_another_picture() -> None:
    changed: dict[State, dict[Trigger, State]] = {state: dict(row) for state, row in TRANSITIONS.items()}
    changed[Hearing.QUIET][Trigger.TURN_OVER] = Hearing.PAUSED
    assert draw(changed) != draw()
    del changed[Hearing.QUIET][Trigger.TURN_OVER]
    assert draw(changed) == draw()
    del changed[Life.OPEN][Trigger.CLOSE]
    assert draw(changed) != draw()


def test_nothing_of_it_lies_outside_of_it() -> None:
    picture = parsed()
    width, height = (int(size) for size in picture.attrib["viewBox"].split()[2:])
    for text in picture.iter(f"{SVG}text"):
        assert 0 < int(text.attrib["x"]) < width
        assert 0 < int(text.attrib["y"]) < height
