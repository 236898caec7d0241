"""The errors of this package that are about what somebody hands over: an operator a checkpoint, a client its input.

Owns: `CheckpointError`, raised by the readers of a checkpoint; `InputError` and its kinds, raised by whatever takes a client's
input in, in the session's options and in the stages' workers alike. Never: imports a tensor library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from duplex_core.errors import ErrorCode, ErrorInfo, error

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


class InputError(ValueError):
    """What a client sent cannot be used; the message tells why, for whoever sent it.

    Attributes:
        param: The field of the wire that it came in, where there is only one.
        code: What it is told as.
    """

    param: ClassVar[str | None] = None
    code: ClassVar[ErrorCode] = ErrorCode.INVALID_VALUE

    @property
    def info(self) -> ErrorInfo:
        """What the client is told: that it is its own to change, and where."""
        return error(self.code, str(self), param=self.param)


class RecordingError(InputError):
    """A recording cannot serve as a reference voice."""

    param = "session.options.reference_audio"


class TooLongError(InputError):
    """What was sent takes more positions than a context has."""

    code = ErrorCode.CONTEXT_FULL
