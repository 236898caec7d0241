"""The benchmark of the stage runtimes: the documentation shows what it wrote, and its figures are what they are called."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.stages import batched_report, engines_report
from benchmarks.stages.batched import added
from benchmarks.stages.frames import Took
from tests.repo import tree

SHOWN = tree.ROOT / "docs" / "benchmarks"


def test_the_documentation_shows_the_run_that_it_keeps() -> None:
    results = batched_report.from_json((SHOWN / "stages-torch.json").read_text())
    assert (SHOWN / "stages-torch-table.txt").read_text() == batched_report.table(results)
    assert (SHOWN / "stages-torch.svg").read_text() == batched_report.chart(results)
    assert ET.fromstring((SHOWN / "stages-torch.svg").read_text()).tag.endswith("svg")  # noqa: S314 - our own file


def test_the_documentation_shows_the_run_of_vllm_that_it_keeps() -> None:
    results = engines_report.from_json((SHOWN / "stages-vllm.json").read_text())
    assert (SHOWN / "stages-vllm-table.txt").read_text() == engines_report.table(results)
    assert {(row.sessions, row.tokens, row.hidden) for row in results.rows} >= {(1, 8, False), (4, 1, True)}


def test_what_is_added_is_a_share_of_the_bare_step_measured_just_before() -> None:
    bare = [Took(ms=4.0, cpu_ms=3.0), Took(ms=40.0, cpu_ms=3.0), Took(ms=4.0, cpu_ms=6.0)]
    queued = [Took(ms=5.0, cpu_ms=3.3), Took(ms=48.0, cpu_ms=3.6), Took(ms=4.0, cpu_ms=6.6)]
    found = added(bare, queued)
    assert (found.clock, found.cpu) == pytest.approx((0.2, 0.1))
