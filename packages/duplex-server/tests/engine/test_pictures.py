"""Pictures that come with audio reach the model, also when all of that audio waits in the resampler for more."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from duplex_core.commands import InputAudioBufferAppend, SessionHeartbeat, VideoFrame
from duplex_core.events import ErrorEvent, SessionHeartbeatAck
from duplex_core.model import AudioArrived, ImageArrived, ModelInput, ModelOutput


class Watching:
    """A model session that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[ImageArrived] = []
        self.samples = 0

    def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
        if isinstance(event, ImageArrived):
            self.shown.append(event)
        elif isinstance(event, AudioArrived):
            self.samples += len(event.pcm) // 2
        return ()


async def test_a_picture_whose_audio_waits_in_the_resampler_arrives_and_is_no_error(
    engine_of: Any, stages: Any
) -> None:
    model = Watching()
    gated = stages.gated_model(lambda: model)

    def sees(deploy: Any) -> Any:
        return msgspec.structs.replace(gated.spec.capabilities(deploy), video_input=True)

    async with engine_of(dataclasses.replace(gated.spec, capabilities=sees)) as engine:
        handle = await engine.open_session()
        frame = VideoFrame(data=b"\xff\xd8jpeg", at_ms=0.0)
        for _ in range(3):  # 24 kHz to the model's 16 kHz, one sample at a time
            await handle.submit(InputAudioBufferAppend(audio=b"\x01\x00", video_frames=(frame,)))
        await handle.submit(SessionHeartbeat())
        async with asyncio.timeout(10):
            async for event in handle.events():
                assert not isinstance(event, ErrorEvent), event
                if isinstance(event, SessionHeartbeatAck):
                    break
        assert [event.data for event in model.shown] == [frame.data] * 3
        assert model.samples == 0, "the audio waits"
        await handle.aclose()
