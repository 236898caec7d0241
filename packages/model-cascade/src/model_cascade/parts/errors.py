"""What the parts raise.

Owns: the exception types of this package. Called by: the parts, and the stages that turn them into errors of a session.
Never: wraps an exception that it does not understand.
"""

from __future__ import annotations

from collections.abc import Callable

Cancel = Callable[[], bool]
"""Asked between steps: ``True`` means that nobody wants the result any more."""


def never() -> bool:
    """Answer that the result is still wanted."""
    return False


class PartError(Exception):
    """A part cannot do what it was asked to. The message says what, where and what to do."""


class CancelledError(PartError):
    """The work was given up because the caller's :data:`Cancel` said so."""

    def __init__(self, work: str) -> None:
        super().__init__(f"{work} was cancelled")


class WeightsError(PartError):
    """Weights are missing, or are not those that this version was tested with."""


class VoiceError(PartError):
    """A voice gave no usable audio for a text."""


class LanguageModelError(PartError):
    """A language model cannot answer.

    Attributes:
        retryable: Whether the same request may succeed later.
    """

    retryable = False


class RequestRefusedError(LanguageModelError):
    """The endpoint understood the request and refused it (a wrong key, an unknown model, a bad parameter)."""


class EndpointUnavailableError(LanguageModelError):
    """The endpoint cannot be reached, is overloaded, or did not answer in time."""

    retryable = True


class BrokenAnswerError(LanguageModelError):
    """The answer is not what the protocol says, or ended before it was whole."""

    retryable = True
