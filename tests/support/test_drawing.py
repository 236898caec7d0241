"""What a derandomised test draws does not depend on what else is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBE = """
import sys
sys.path.insert(0, {root!r})
if {mended}:
    from tests.support.drawing import leave_other_modules_out
    leave_other_modules_out()
if {beside}:
    import duplex_core.config, duplex_core.machine.session, duplex_core.wire  # among them many a number
from hypothesis import given, settings, strategies as st
drawn = []
@settings(derandomize=True, database=None, max_examples=200)
@given(st.floats(0.0, 3000.0))
def draw(value):
    drawn.append(value)
draw()
print(drawn)
"""


def drawn(*, mended: bool, beside: bool) -> str:
    probe = PROBE.format(root=str(ROOT), mended=mended, beside=beside)
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_the_same_is_drawn_whatever_else_is_loaded() -> None:
    assert drawn(mended=True, beside=True) == drawn(mended=True, beside=False)


def test_without_that_it_would_not_be() -> None:
    """Else hypothesis has changed, and :mod:`tests.support.drawing` is not needed any more."""
    assert drawn(mended=False, beside=True) != drawn(mended=False, beside=False)
