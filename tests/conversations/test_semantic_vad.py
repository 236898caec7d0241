"""`semantic_vad` on real speech, over a real socket in real time: finished speech is answered soon, a pause is waited for.

The sentence with the pause is a person's, cut where the reader could have paused: "Had he married a more amiable woman, he might
have | been made still more respectable than he was". The finished one is a person's too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from duplex_client.audio import SESSION_RATE_HZ, resample_pcm
from tests.conversations.caller import TRANSCRIPTION, Caller, call, words
from tests.conversations.conftest import start, stop
from tests.support.clips import Clip

pytestmark = [pytest.mark.slow, pytest.mark.clips]

CUT_MS = 3225


def silence(ms: int) -> bytes:
    return bytes(SESSION_RATE_HZ * 2 * ms // 1000)


@pytest.fixture(scope="module")
def both() -> Iterator[str]:
    """`host:port` of a server of `echo` with both witnesses: an end-of-turn network and a transcriber."""
    process, address = start(
        "echo", "--set", "transcribes=false", "--transcriber", "moonshine", "--end-of-turn", "smart-turn"
    )
    yield address
    stop(process)


@pytest.fixture(scope="module")
def neither() -> Iterator[str]:
    """`host:port` of a server of `echo` alone: nothing but silence to go by."""
    process, address = start("echo", "--set", "transcribes=false")
    yield address
    stop(process)


def pcm_of(clips: list[Clip], name: str) -> bytes:
    clip = next(each for each in clips if each.name.endswith(name))
    return resample_pcm(clip.pcm(), 16_000, SESSION_RATE_HZ)


@pytest.fixture
def sentence(clips: list[Clip]) -> tuple[bytes, bytes]:
    """The two parts of the sentence with the pause."""
    pcm = pcm_of(clips, "0920")
    at = SESSION_RATE_HZ * 2 * CUT_MS // 1000
    return pcm[:at], pcm[at:]


async def silence_until_committed(caller: Caller) -> float:
    """Be silent until the speech that went before has ended: for how long the client was silent by then, in ms."""
    loop = asyncio.get_running_loop()
    assert await caller.has("input_audio_buffer.speech_started")
    began = loop.time()
    speaking = asyncio.create_task(caller.speak(silence(10_000)))
    while len(caller.of("input_audio_buffer.committed")) < len(caller.of("input_audio_buffer.speech_started")):
        await caller.until("input_audio_buffer.committed")
    took_ms = (loop.time() - began) * 1000
    speaking.cancel()
    return took_ms


def semantic(eagerness: str) -> dict[str, str]:
    return {"type": "semantic_vad", "eagerness": eagerness}


@pytest.mark.parametrize(("eagerness", "limit_ms"), [("high", 900), ("auto", 900), ("low", 2000)])
async def test_a_finished_sentence_ends_the_turn_soon(
    both: str, clips: list[Clip], eagerness: str, limit_ms: float
) -> None:
    """Sooner than silence alone ends it under `auto` and `low`; under `high` there is no room between the two."""
    async with call(both, turn_detection=semantic(eagerness)) as caller:
        await caller.speak(pcm_of(clips, "cards/003"))
        assert await silence_until_committed(caller) < limit_ms
        await caller.until("response.created")


@pytest.mark.parametrize("eagerness", ["auto", "low"])
async def test_a_pause_in_mid_sentence_is_waited_for(both: str, sentence: tuple[bytes, bytes], eagerness: str) -> None:
    first, second = sentence
    async with call(both, turn_detection=semantic(eagerness)) as caller:
        await caller.speak(first + silence(1500) + second)
        await silence_until_committed(caller)
        completed = await caller.until(TRANSCRIPTION + "completed")
        assert len(caller.of("input_audio_buffer.speech_started")) == 1
        heard = words(completed["transcript"])
        assert heard[:4] == words("Had he married a")
        assert heard[-3:] == words("than he was")


async def test_high_eagerness_waits_two_seconds_for_the_rest_and_no_longer(
    both: str, sentence: tuple[bytes, bytes]
) -> None:
    first, second = sentence
    async with call(both, turn_detection={**semantic("high"), "create_response": False}) as caller:
        await caller.speak(first + silence(1500))
        assert not await caller.has("input_audio_buffer.committed")
        await caller.speak(silence(1000) + second)
        await silence_until_committed(caller)
        assert len(caller.of("input_audio_buffer.committed")) == 2


async def test_without_witnesses_low_eagerness_still_waits_and_high_does_not(
    neither: str, sentence: tuple[bytes, bytes]
) -> None:
    first, second = sentence
    turns = {}
    for eagerness in ("low", "high"):
        detection = {**semantic(eagerness), "create_response": False}
        async with call(neither, transcription=None, turn_detection=detection) as caller:
            await caller.speak(first + silence(1200) + second)
            await silence_until_committed(caller)
            turns[eagerness] = len(caller.of("input_audio_buffer.committed"))
    assert turns == {"low": 1, "high": 2}


async def test_the_cascade_goes_by_its_own_words(server: str, say: dict[str, bytes]) -> None:
    """The embedded default as it is served: no end-of-turn network, and a recogniser of its own."""
    async with call(server, turn_detection=semantic("low")) as caller:
        await caller.speak(say["capital"])
        assert await silence_until_committed(caller) < 2000
        done = await caller.until("response.done")
        assert "paris" in done["response"]["output"][0]["content"][0]["transcript"].lower()
