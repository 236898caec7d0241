"""The engine's benchmark: it runs, its sounds are what they are taken for, and the documentation shows what it wrote."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from benchmarks.engine import report
from benchmarks.engine.chart import chart
from benchmarks.engine.rounds import Setup, lateness_ms, quantile
from benchmarks.engine.sound import babble, hiss
from duplex_server.detectors import SileroBatch
from tests.repo import tree

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.engine.sound import Samples

SHOWN = tree.ROOT / "docs" / "benchmarks"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins processes to cores, as Linux can")


@pytest.mark.slow
def test_two_sessions_for_a_second_give_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.engine", "--sessions", "2", "--seconds", "1"]
    command += ["--interrupting", "2", "--interruptions", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tree.ROOT, timeout=150)
    assert done.returncode == 0, done.stderr
    results = report.from_json((tmp_path / "engine.json").read_text())
    assert [(row.setup, row.sessions) for row in results.rows] == [(setup, 2) for setup in Setup]
    assert all(row.cpu_ms > 0 for row in results.rows)
    assert results.frames.audio > 6400  # 100 ms of 24 kHz in base64, and more
    assert [stops.count - stops.missed for stops in results.interruptions] == [2, 2]
    assert (tmp_path / "engine-table.txt").read_text() == report.table(results)
    assert (tmp_path / "engine.svg").read_text() == chart(results)


def probabilities(sound: Samples) -> list[float]:
    detector = SileroBatch()
    state = detector.new_state()
    frames = (sound[: len(sound) // 512 * 512] / np.float32(32768)).astype(np.float32).reshape(-1, 1, 512)
    return [detector.probabilities(frame, [state])[0] for frame in frames]


def test_the_detector_takes_the_voice_for_speech_and_the_room_for_silence() -> None:
    heard = probabilities(np.concatenate([hiss(16000, 1.0), babble(16000, 1.5)]))
    before, speech = heard[:31], heard[31:]
    assert max(before) < 0.3
    assert min(speech[3:]) > 0.7


def test_lateness_counts_from_the_piece_that_came_soonest() -> None:
    assert lateness_ms([10.0, 10.13, 10.2, 10.3]) == pytest.approx([0.0, 30.0, 0.0, 0.0], abs=1e-6)
    assert lateness_ms([]) == []
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 3.0


@pytest.mark.parametrize("run", ["engine", "engine-python311"])
def test_the_documentation_shows_the_runs_that_it_keeps(run: str) -> None:
    results = report.from_json((SHOWN / f"{run}.json").read_text())
    assert (SHOWN / f"{run}-table.txt").read_text() == report.table(results)
    assert f"docs/benchmarks/{run}-table.txt" in (SHOWN.parent / "benchmarks.md").read_text()


def test_the_chart_is_of_the_first_of_these_runs() -> None:
    results = report.from_json((SHOWN / "engine.json").read_text())
    assert (SHOWN / "engine.svg").read_text() == chart(results)
    assert ET.fromstring((SHOWN / "engine.svg").read_text()).tag.endswith("svg")  # noqa: S314 - our own file


def test_each_repeat_is_compared_with_the_echo_next_to_it() -> None:
    known = report.from_json((SHOWN / "engine.json").read_text()).rows[0]
    took = {Setup.ECHO: (1.0, 4.0, 2.0), Setup.ENGINE: (2.0, 6.0, 8.0)}
    repeats = {
        setup: [msgspec.structs.replace(known, setup=setup, cpu_ms=ms) for ms in times] for setup, times in took.items()
    }
    echo, engine = report.summary(repeats)
    assert (echo.cpu_ms, echo.times_echo) == (2.0, (1.0, 1.0, 1.0))
    assert (engine.cpu_ms, engine.times_echo) == (6.0, (1.5, 2.0, 4.0))
