"""A voice that cannot be one: refused by name before anything begins where its header shows it, else the end of its session."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duplex_core.commands import SessionUpdate
from duplex_core.errors import DuplexError, ErrorCode, ErrorType
from duplex_core.events import ErrorEvent, SessionClosed, SessionUpdated
from duplex_core.patch import SessionPatch
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.pipelines import Worked
from model_minicpmo.errors import RecordingError
from model_minicpmo.payloads import Open, Voice
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import Paper, PaperHost

(SPEC,) = duplex_register_models()
NAMED = "session.options.reference_audio"


def wav(seconds: float = 1.0, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """A wav file of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(bytes(2 * channels * round(rate * seconds)))
    return file.getvalue()


def opened(host: PaperHost | None = None) -> ConversationDriver:
    config = msgspec.structs.replace(SPEC.session_config(MiniCPMOSettings()), turn_detection=None)
    return ConversationDriver(SPEC, config=config, host=host or PaperHost())


def send(driver: ConversationDriver, voice: bytes) -> None:
    options = {"reference_audio": base64.b64encode(voice).decode()}
    driver.send(SessionUpdate(session=SessionPatch(options=options), event_id="voiced"))


@pytest.mark.parametrize(
    ("voice", "message"),
    [
        (b"", "must be a wav or flac file in base64"),
        (b"RIFF of nothing", "of 15 bytes cannot be read as a wav or flac file"),
        (wav()[:30], "of 30 bytes cannot be read as a wav or flac file"),
        (wav(0.0), "lasts 0.00 s; it has to last between 0.5 and 30 s"),
        (wav(0.1), "lasts 0.10 s"),
        (wav(31.0, rate=4_000), "lasts 31.00 s"),
        (wav(channels=3), "has 3 channels at 16000 Hz"),
        (wav(rate=2_000), "has 1 channels at 2000 Hz"),
    ],
    ids=["empty", "no-file", "cut", "silent", "short", "long", "channels", "rate"],
)
def test_a_file_whose_header_shows_that_it_is_no_voice_is_refused_by_name(voice: bytes, message: str) -> None:
    driver = opened()
    send(driver, voice)
    refusal = driver.wait_for(ErrorEvent).error
    assert (refusal.type, refusal.code, refusal.param) == (ErrorType.INVALID_REQUEST, ErrorCode.INVALID_VALUE, NAMED)
    assert message in refusal.message
    assert (refusal.event_id, refusal.retryable) == ("voiced", False)
    assert not driver.all_of(SessionUpdated), "nothing of the update holds"
    send(driver, wav())
    driver.wait_for(SessionUpdated)


def test_a_data_url_is_read_alike() -> None:
    url = "data:audio/wav;base64," + base64.b64encode(wav(0.1)).decode()
    driver = opened()
    driver.send(SessionUpdate(session=SessionPatch(options={"reference_audio": url})))
    assert driver.wait_for(ErrorEvent).error.param == NAMED


class Refusing(PaperHost):
    """Stages that cannot read what they are given for a voice."""

    def __init__(self, payload: type) -> None:
        super().__init__()

        class Reading(Paper):
            def run(self, session_id: str, given: Any, emit: Callable[[Any], None]) -> None:
                if isinstance(given, payload):
                    raise DuplexError(RecordingError("the reference voice is no speech").info)
                super().run(session_id, given, emit)

        self.reading = Reading()

    def stage(self, name: str) -> Worked:
        return self.reading


@pytest.mark.parametrize("payload", [Open, Voice])
def test_a_voice_that_a_stage_refuses_ends_its_session_as_the_client_s_own_fault(payload: type) -> None:
    driver = opened(Refusing(payload))
    send(driver, wav())
    assert not driver.all_of(ErrorEvent), "the voice may still become another one"
    driver.stream(bytes(3200))
    closed = driver.wait_for(SessionClosed)
    (refusal,) = (event.error for event in driver.all_of(ErrorEvent))
    assert closed.error == refusal
    assert (refusal.type, refusal.code, refusal.param) == (ErrorType.INVALID_REQUEST, ErrorCode.INVALID_VALUE, NAMED)
    assert not refusal.retryable
    assert driver.released
