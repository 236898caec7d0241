"""The benchmark of the ``torch`` runtime runs, and gives every figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stages import batched_report
from tests.repo import tree

pytestmark = pytest.mark.engines


def test_two_sessions_give_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.stages", "--part", "torch", "--quick", "--sessions", "2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], check=False, capture_output=True, text=True, cwd=tree.ROOT, timeout=150
    )
    assert done.returncode == 0, done.stderr
    results = batched_report.from_json((tmp_path / "stages-torch.json").read_text())
    (row,) = results.rows
    assert (row.sessions, row.frames) == (2, 50)
    assert min(row.bare.cpu_ms, row.queued.cpu_ms, row.rounds.cpu_ms, row.answer_50_ms) > 0
    assert row.bare.cpu_ms <= row.bare.ms * 1.05, "one thread"
    assert (tmp_path / "stages-torch-table.txt").read_text() == batched_report.table(results)
    assert (tmp_path / "stages-torch.svg").read_text() == batched_report.chart(results)
