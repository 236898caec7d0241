"""A model that hears no words, and a transcriber beside it: `echo` with the cascade's recogniser, over a real socket."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm
from tests.conversations.caller import TRANSCRIPTION, call, words
from tests.conversations.conftest import start, stop
from tests.support.clips import Clip

pytestmark = pytest.mark.slow

SILENCE = bytes(SESSION_RATE_HZ * 2)


@pytest.fixture(scope="module")
def transcribed() -> Iterator[str]:
    """`host:port` of a server of `echo` whose users are transcribed by `moonshine`."""
    process, address = start("echo", "--set", "transcribes=false", "--transcriber", "moonshine")
    yield address
    stop(process)


async def test_speech_is_transcribed_while_it_is_spoken_and_whole_when_it_ends(
    transcribed: str, say: dict[str, bytes]
) -> None:
    async with call(transcribed) as caller:
        await caller.speak(say["stop"] + SILENCE)
        completed = await caller.until(TRANSCRIPTION + "completed")
        item_id = completed["item_id"]
        assert words(completed["transcript"]) == words("Please stop and tell me the color of the sky.")
        types = [event["type"] for event in caller.seen]
        assert types.index(TRANSCRIPTION + "delta") < types.index("input_audio_buffer.speech_stopped")
        assert completed["transcript"].startswith(caller.deltas(item_id)[:10])
        (committed,) = caller.of("input_audio_buffer.committed")
        assert committed["item_id"] == item_id
        done = caller.of("response.done") or [await caller.until("response.done")]
        assert done[0]["response"]["status"] == "completed"
        assert done[0]["response"]["output"][0]["content"][0]["transcript"].startswith("You said "), "echo answers"


async def test_a_cancelled_answer_leaves_the_transcript(transcribed: str, say: dict[str, bytes]) -> None:
    """Commit by hand: the words are still being sought when the answer begins, and is cancelled."""
    async with call(transcribed, turn_detection=None) as caller:
        for at in range(0, len(say["story"]), 48_000):
            part = base64.b64encode(say["story"][at : at + 48_000]).decode()
            await caller.say("input_audio_buffer.append", audio=part)
        await caller.say("input_audio_buffer.commit")
        await caller.say("response.create")
        await caller.until("response.created")
        await caller.say("response.cancel")
        done = await caller.until("response.done")
        assert done["response"]["status"] == "cancelled"
        assert not caller.of(TRANSCRIPTION + "completed"), "the words were not known yet"
        completed = await caller.until(TRANSCRIPTION + "completed")
        assert words(completed["transcript"]) == words("Please tell me a long story about a dog.")
        assert completed["item_id"] == caller.of("input_audio_buffer.committed")[0]["item_id"]
        assert not caller.of("error")


async def test_who_talks_over_the_answer_is_transcribed_too(transcribed: str, say: dict[str, bytes]) -> None:
    async with call(transcribed) as caller:
        await caller.speak(say["story"] + SILENCE)
        await caller.until("response.output_audio.delta")
        await caller.speak(say["stop"] + SILENCE)
        while len(caller.of(TRANSCRIPTION + "completed")) < 2:
            await caller.until(TRANSCRIPTION + "completed")
        first, second = (words(event["transcript"]) for event in caller.of(TRANSCRIPTION + "completed"))
        assert first == words("Please tell me a long story about a dog.")
        assert second[-5:] == words("the color of the sky")
        assert caller.of("response.done")[0]["response"]["status"] == "cancelled"


@pytest.mark.clips
async def test_people_are_transcribed(transcribed: str, clips: list[Clip]) -> None:
    clip = next(each for each in clips if each.name.endswith("0930"))
    async with call(transcribed) as caller:
        await caller.speak(resample_pcm(clip.pcm(), 16_000, SESSION_RATE_HZ) + SILENCE)
        completed = await caller.until(TRANSCRIPTION + "completed")
        assert words(completed["transcript"]) == words(clip.transcript)
        assert completed["usage"]["seconds"] > 2


async def test_without_the_wish_for_transcripts_none_are_sent(transcribed: str, say: dict[str, bytes]) -> None:
    async with call(transcribed, transcription=None) as caller:
        await caller.speak(say["capital"] + SILENCE)
        await caller.until("response.done")
        assert not [event for event in caller.seen if event["type"].startswith(TRANSCRIPTION)]
