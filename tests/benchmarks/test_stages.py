"""The benchmark of the stage runtimes: the documentation shows what it wrote, and its figures are what they are called."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.stages import batched_report
from benchmarks.stages.batched_report import Row
from benchmarks.stages.frames import Took
from tests.repo import tree

SHOWN = tree.ROOT / "docs" / "benchmarks"


def test_the_documentation_shows_the_run_that_it_keeps() -> None:
    results = batched_report.from_json((SHOWN / "stages-torch.json").read_text())
    assert (SHOWN / "stages-torch-table.txt").read_text() == batched_report.table(results)
    assert (SHOWN / "stages-torch.svg").read_text() == batched_report.chart(results)
    assert ET.fromstring((SHOWN / "stages-torch.svg").read_text()).tag.endswith("svg")  # noqa: S314 - our own file


def test_what_is_added_is_a_share_of_the_bare_step() -> None:
    row = Row(
        sessions=4,
        bare=Took(ms=4.0, cpu_ms=3.0),
        queued=Took(ms=5.0, cpu_ms=3.3),
        rounds=Took(ms=6.0, cpu_ms=3.5),
        frames=100,
        misses=1,
        answer_50_ms=5.0,
        answer_99_ms=9.0,
    )
    assert (row.overhead, row.cpu_overhead) == pytest.approx((0.25, 0.1))
