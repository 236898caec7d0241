"""Draw the state diagram anew: `python docs/draw_state_diagram.py`, after a change of the transition table.

Writes `docs/architecture/state-diagram.svg`. A test fails while that file is not what the table gives.
"""

from __future__ import annotations

from pathlib import Path

from duplex_core.machine.diagram import draw

PICTURE = Path(__file__).resolve().parent / "architecture" / "state-diagram.svg"

if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
