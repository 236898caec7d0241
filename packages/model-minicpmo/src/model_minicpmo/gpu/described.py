"""The folder in which vLLM is told of a checkpoint: made for one engine, taken away with it, or after it.

Owns: where it is, and whose it is. Called by: the thinker's program. Never: knows what is written into it.

A process that is killed takes nothing away. So each folder is locked for as long as somebody uses it, which ends with the process
however it ends; and whoever makes a folder takes away those that nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "minicpmo-"
_FILES = {"config.json"}
"""All that a folder of ours may hold."""
_MADE_S = 60.0
"""A folder may be without its lock, or still empty, for so long after it was made."""


class DescriptionFolder:
    """A folder of this process's own, in the system's place for temporary files.

    Attributes:
        path: Where it is.
    """

    def __init__(self) -> None:
        """Make it, and take away those that were left behind."""
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._take_away = weakref.finalize(self, _take_away, self.path, lock)

    def close(self) -> None:
        """Take it away."""
        self._take_away()


def _take_away(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _sweep(root: Path) -> None:
    """Take away the folders in `root` that are ours and nobody's any more; what other users own stays."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - _MADE_S and _left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _left(folder: Path) -> bool:
    """Whether a folder is ours, and nobody holds it."""
    if not {each.name for each in folder.iterdir()} <= _FILES:
        return False
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
