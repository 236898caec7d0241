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
    """A part cannot do what it was asked to. The message says what, where and what to do: it is for who runs the server.

    Args:
        message: For the server's log. It may name addresses and files.
        told: What a client is told; the sentence of the class when left out.

    Attributes:
        told: What a client is told: one sentence without addresses, files or anything of a request.
    """

    told = "a part of the model failed; the server's log says why"

    def __init__(self, message: str, *, told: str | None = None) -> None:
        super().__init__(message)
        if told is not None:
            self.told = told


class CancelledError(PartError):
    """The work was given up because the caller's :data:`Cancel` said so."""

    def __init__(self, work: str) -> None:
        super().__init__(f"{work} was cancelled")


class WeightsError(PartError):
    """Weights are missing, or are not those that this version was tested with."""


class VoiceError(PartError):
    """A voice gave no usable audio for a text."""

    told = "the voice cannot speak a part of the answer; the server's log says why"


class LanguageModelError(PartError):
    """A language model cannot answer.

    Attributes:
        retryable: Whether the same request may succeed later.
    """

    retryable = False
    told = "the language model cannot answer; the server's log says why"


class RequestRefusedError(LanguageModelError):
    """The endpoint understood the request and refused it (a wrong key, an unknown model, a bad parameter)."""

    told = "the language model refused the request; the server's log says why"


class EndpointUnavailableError(LanguageModelError):
    """The endpoint cannot be reached, is overloaded, or did not answer in time."""

    retryable = True
    told = "the language model is not available at the moment; try again later"


class BrokenAnswerError(LanguageModelError):
    """The answer is not what the protocol says, or ended before it was whole."""

    retryable = True
    told = "the language model's answer broke off; try again"
