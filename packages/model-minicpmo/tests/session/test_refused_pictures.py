"""Pictures that the senses could not show: the client is told, and the conversation goes on; over stages on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from duplex_core.commands import InputAudioBufferAppend, VideoFrame
from duplex_core.errors import ErrorCode, error
from duplex_core.events import ErrorEvent, ResponseDone, ResponseListen, ResponseStatus
from duplex_core.testing.driver import ConversationDriver
from duplex_core.testing.speech import burst, silence
from model_minicpmo.payloads import Decided, Unit
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import Paper, PaperHost

(SPEC,) = duplex_register_models()
SECOND = silence(1000.0, 16_000)
FAULT = error(ErrorCode.INVALID_VALUE, "these 6 bytes cannot be decoded as a picture")


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> ConversationDriver:
    """A conversation whose stages say of every picture that it is none."""
    plain = Paper._unit

    def refuses(paper: Paper, session_id: str, unit: Unit, emit: Callable[[Any], None]) -> None:
        def told(payload: Any) -> None:
            if isinstance(payload, Decided):
                payload = msgspec.structs.replace(payload, faults=(FAULT,) * len(unit.pictures))
            emit(payload)

        plain(paper, session_id, unit, told)

    monkeypatch.setattr(Paper, "_unit", refuses)
    config = msgspec.structs.replace(SPEC.session_config(MiniCPMOSettings()), turn_detection=None)
    return ConversationDriver(SPEC, config=config, host=PaperHost())


def test_a_camera_s_picture_that_is_none_is_told_beside_what_was_decided(talk: ConversationDriver) -> None:
    talk.send(InputAudioBufferAppend(audio=SECOND[:3200], video_frames=(VideoFrame(data=b"GIF89a"),)))
    talk.stream(SECOND)
    talk.wait_for(ResponseListen)
    [told] = talk.all_of(ErrorEvent)
    assert told.error == msgspec.structs.replace(FAULT, param="video_frames")
    talk.stream(burst(1000.0, 16_000))
    assert talk.wait_for(ResponseDone).response.status is ResponseStatus.COMPLETED
    assert len(talk.all_of(ErrorEvent)) == 1
