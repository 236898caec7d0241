"""Which models get a transcriber, what is refused with a clear sentence, and that chat is left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from duplex_core.commands import InputAudioBufferAppend, InputAudioBufferCommit, SessionClose, SessionUpdate
from duplex_core.config import Transcription
from duplex_core.events import InputCommitted, TranscriptionCompleted
from duplex_core.hookspecs import hookimpl
from duplex_core.items import InputText, MessageItem, Role
from duplex_core.patch import SessionPatch
from duplex_core.stages import StageSpec
from duplex_core.testing.echo import ECHO
from duplex_core.testing.echo.options import EchoSettings
from duplex_core.testing.speech import burst
from duplex_core.transcribing import TranscriberSpec
from duplex_server.engine.chat import ChatRequest, ChatText
from duplex_server.engine.served import ModelUnavailable


class Deaf(EchoSettings):
    """Echo that does not transcribe."""

    transcribes: bool = False


DEAF = dataclasses.replace(ECHO, id="deaf", deploy_model=Deaf)


class OfferTranscriber:
    """A plugin with one transcriber."""

    def __init__(self, stage: str = "transcriber") -> None:
        self.stage = StageSpec(name=stage, factory="tests.support.stages:Clock")

    @hookimpl
    def duplex_register_transcribers(self) -> Sequence[TranscriberSpec]:
        return [TranscriberSpec(id="clock", summary="hears how long", stage=self.stage)]


async def test_a_model_that_hears_no_words_gets_them(engine_of: Callable[..., Any]) -> None:
    patch = SessionPatch(input_audio_transcription=Transcription(), turn_detection=None)
    async with engine_of(DEAF, extra=(OfferTranscriber(),), transcriber="clock") as engine:
        assert engine.served.capabilities.input_transcription
        handle = await engine.open_session()
        await handle.submit(SessionUpdate(session=patch))
        await handle.submit(InputAudioBufferAppend(audio=burst(500, 24_000)))
        await handle.submit(InputAudioBufferCommit())
        committed = None
        async for event in handle.events():
            if isinstance(event, InputCommitted):
                committed = event.item_id
            if isinstance(event, TranscriptionCompleted):
                assert (event.item_id, event.transcript) == (committed, "500 ms at 16000 Hz")
                await handle.submit(SessionClose())
        assert committed is not None


async def test_chat_on_the_same_engine_is_the_models_alone(engine_of: Callable[..., Any]) -> None:
    said = MessageItem(role=Role.USER, content=(InputText(text="hello"),))
    async with engine_of(DEAF, extra=(OfferTranscriber(),), transcriber="clock") as engine:
        events = [event async for event in engine.generate(ChatRequest(history=(said,)))]
        assert events[:-1] == [ChatText(text="hello")]


async def test_without_a_transcriber_the_wish_for_transcripts_is_refused(engine_of: Callable[..., Any]) -> None:
    async with engine_of(DEAF) as engine:
        assert not engine.served.capabilities.input_transcription


@pytest.mark.parametrize(
    ("deploys", "stage", "wanted", "why"),
    [
        (Deaf, "transcriber", "ears", r"there is no transcriber 'ears'; installed are: clock"),
        (EchoSettings, "transcriber", "clock", r"model deaf transcribes by itself; leave the transcriber clock out"),
        (Deaf, "cut", "clock", r"the transcriber clock and the model deaf both have a stage 'cut'"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_starts(
    engine_of: Callable[..., Any], deploys: type[EchoSettings], stage: str, wanted: str, why: str
) -> None:
    spec = dataclasses.replace(DEAF, deploy_model=deploys)
    with pytest.raises(ModelUnavailable, match=why):
        async with engine_of(spec, extra=(OfferTranscriber(stage),), transcriber=wanted):
            pass
