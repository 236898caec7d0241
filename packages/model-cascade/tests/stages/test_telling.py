"""What goes wrong in a part, as a client and as the server's log are told of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from duplex_core.errors import DuplexError, ErrorCode
from model_cascade.parts.errors import (
    BrokenAnswerError,
    CancelledError,
    EndpointUnavailableError,
    PartError,
    RequestRefusedError,
    VoiceError,
)
from model_cascade.parts.language_model import ChatRequest, Message
from model_cascade.settings import LanguageModelSettings
from model_cascade.stages.language import LanguageWorker
from model_cascade.stages.telling import told

SECRET = "http://10.0.0.7:9000 answered 401: key sk-123 is wrong"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine at which nobody listens, and nobody can while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_an_endpoint_that_cannot_be_reached_is_a_sentence_for_the_client_and_an_address_for_the_log(
    closed_port: int,
) -> None:
    settings = LanguageModelSettings(provider="openai", base_url=f"http://127.0.0.1:{closed_port}/v1", model="big")
    worker = LanguageWorker(settings=settings)
    request = ChatRequest(messages=(Message(role="user", content="Hello"),))
    try:
        with pytest.raises(DuplexError) as caught:
            worker.run(request, lambda piece: None, lambda: False)
    finally:
        worker.close()
    info = caught.value.info
    assert (info.code, info.retryable) == (ErrorCode.ENGINE_ERROR, True)
    assert info.message == "the language model is not available at the moment; try again later"
    assert f"http://127.0.0.1:{closed_port}/v1/chat/completions cannot be reached" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "kind", [PartError, VoiceError, RequestRefusedError, EndpointUnavailableError, BrokenAnswerError]
)
def test_a_client_is_told_nothing_of_the_operators(kind: type[PartError]) -> None:
    with pytest.raises(DuplexError) as caught, told():
        raise kind(SECRET)
    assert not [part for part in ("10.0.0.7", "sk-123", "401", kind.__name__) if part in caught.value.info.message]
    assert str(caught.value.__cause__) == SECRET


def test_what_is_the_clients_own_is_told_to_it_as_it_is_and_not_called_worth_trying_again() -> None:
    with pytest.raises(DuplexError) as caught, told():
        raise RequestRefusedError("x", told="there is no function fly")
    assert (caught.value.info.message, caught.value.info.retryable) == ("there is no function fly", False)


def test_a_cancellation_is_no_failure() -> None:
    with pytest.raises(CancelledError), told():
        raise CancelledError("Speech")
