"""The errors of this package that are about what an operator hands over.

Owns: `CheckpointError`. Raised by: the readers of a checkpoint. Never: imports a tensor library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class CheckpointError(ValueError):
    """A checkpoint is not in the published layout, or does not fit its own configuration.

    Attributes:
        path: The file or folder that is at fault.
        problem: What is wrong with it, and what to do.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem
