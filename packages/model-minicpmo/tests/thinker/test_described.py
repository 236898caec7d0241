"""The folders in which vLLM is told of checkpoints, and that none stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from model_minicpmo.gpu.described import DescriptionFolder

pytestmark = pytest.mark.engines

MAKES_ONE = """
import time
from model_minicpmo.gpu.described import DescriptionFolder
made = DescriptionFolder()
(made.path / "config.json").touch()
print(made.path, flush=True)
time.sleep(60)
"""


def age(folder: Path) -> None:
    """Have it been made an hour ago."""
    at = folder.stat().st_mtime - 3600
    os.utime(folder, (at, at))


def test_a_folder_is_taken_away_with_its_engine_and_after_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foreign = tmp_path / "minicpmo-of-somebody-else"
    foreign.mkdir()
    (foreign / "notes.txt").touch()
    age(foreign)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MAKES_ONE],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    try:
        killed, lives = (Path(str(each.stdout and each.stdout.readline()).strip()) for each in running)
        running[0].kill()
        running[0].wait()
        own = DescriptionFolder()
        assert killed.is_dir(), "it may just be in the making"
        for folder in (killed, lives, own.path):
            age(folder)
        other = DescriptionFolder()
        assert not killed.exists()
        assert lives.is_dir()
        assert own.path.is_dir()
        for each in (own, other):
            each.close()
        assert sorted(tmp_path.iterdir()) == sorted([foreign, lives])
    finally:
        for process in running:
            process.kill()
            process.communicate()
