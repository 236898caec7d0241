"""Cases 15 to 22: the detector, and where turns begin and end. It goes by loudness here, so that times are exact."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest

from duplex_core.machine import input as machine_input
from duplex_core.testing.native import NATIVE
from tests.field_cases.scenes import AT_ONCE, RATE_HZ, detecting, done, quiet, speech, update
from tests.support.serving import Caller, Served, serving

FRAME_MS = 32
"""What the detector judges at once, so how exact a time can be."""


async def utterance(caller: Caller) -> tuple[int, int]:
    """The next utterance: when it began, with its padding, and when it ended, in ms of the session."""
    started = await caller.until("input_audio_buffer.speech_started")
    stopped = await caller.until("input_audio_buffer.speech_stopped")
    committed = await caller.until("input_audio_buffer.committed")
    assert started["item_id"] == stopped["item_id"] == committed["item_id"]
    return started["audio_start_ms"], stopped["audio_end_ms"]


def near(ms: float) -> Any:
    return pytest.approx(ms, abs=FRAME_MS + 1)


async def test_case_15_the_end_of_one_utterance_and_the_beginning_of_the_next_in_one_chunk(served: Served) -> None:
    """Both are kept, each with its own times."""
    async with served.session() as caller:
        await detecting(caller, create_response=False, prefix_padding_ms=200, silence_duration_ms=400)
        await caller.append(quiet(1000) + speech(600))
        await caller.append(speech(200) + quiet(700) + speech(300))
        await caller.append(speech(500) + quiet(700))
        first, second = await utterance(caller), await utterance(caller)
        assert first == (near(800), near(1800))
        assert second == (near(2300), near(3300))


async def test_case_16_speech_that_goes_on_resets_the_clock(served: Served) -> None:
    """Pauses that are each too short to end a turn do not end one together."""
    async with served.session() as caller:
        await detecting(caller, create_response=False, silence_duration_ms=400)
        said = quiet(1000)
        for _ in range(4):
            said += speech(500) + quiet(300)
        await caller.append(said + quiet(600))
        start_ms, end_ms = await utterance(caller)
        assert (start_ms, end_ms) == (near(700), near(1000 + 4 * 800 - 300))
        await caller.say("session.heartbeat")
        await caller.until("session.heartbeat_ack")
        assert caller.types().count("input_audio_buffer.committed") == 1


async def test_case_17_a_whole_utterance_in_one_append(served: Served) -> None:
    """Started, stopped, committed, answered, in this order."""
    async with served.session() as caller:
        await update(caller, options=AT_ONCE)
        await caller.append(quiet(500) + speech(600) + quiet(800))
        await utterance(caller)
        await caller.until("conversation.item.done")
        await caller.until("response.created")
        assert (await done(caller))["status"] == "completed"


async def test_case_18_the_first_syllable_is_not_clipped(served: Served) -> None:
    """The item begins the padding before the first loud sample, and has that sample where it was."""
    async with served.session() as caller:
        await detecting(caller, create_response=False, prefix_padding_ms=300)
        await caller.append(quiet(1000) + speech(600) + quiet(800))
        start_ms, _ = await utterance(caller)
        assert start_ms == near(700)
        item_id = caller.seen[-1]["item_id"]
        await caller.say("conversation.item.retrieve", item_id=item_id)
        item = (await caller.until("conversation.item.retrieved"))["item"]
        pcm = memoryview(base64.b64decode(item["content"][0]["audio"])).cast("h")
        rate = served.engine.served.capabilities.input_rate_hz
        loud = next(index for index, sample in enumerate(pcm) if abs(sample) > 1000)
        assert start_ms + loud * 1000 / rate == pytest.approx(1000, abs=2)


async def test_case_19_a_microphone_that_stops_in_mid_speech(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout closes the utterance; what was said is answered, and the next utterance is heard."""
    monkeypatch.setattr(machine_input, "STALL_MS", 100.0)
    async with served.session() as caller:
        await detecting(caller, options=AT_ONCE, silence_duration_ms=50)
        await caller.append(quiet(500) + speech(640))
        start_ms, end_ms = await utterance(caller)
        assert (start_ms, end_ms) == (near(200), near(1140))
        assert (await done(caller))["status"] == "completed"
        await caller.say("playback.ack", played_ms=10_000.0)
        await caller.append(quiet(500) + speech(400) + quiet(500))
        assert (await utterance(caller))[1] == near(2040)


async def test_case_20_a_commit_after_the_detectors_own(served: Served) -> None:
    """It clears the silent tail and invents no turn; nor does it when an answer is asked for along with it."""
    async with served.session() as caller:
        await detecting(caller, create_response=False)
        await caller.append(quiet(300) + speech(600) + quiet(900))
        await utterance(caller)
        await caller.say("input_audio_buffer.commit")
        await caller.until("input_audio_buffer.cleared")
        await caller.say("response.create")
        await done(caller)
        assert caller.types().count("input_audio_buffer.committed") == 1
        assert "error" not in caller.types()


async def test_case_21_a_tail_shorter_than_the_models_unit_is_padded_and_used() -> None:
    """The model hears in units of a second; what is said fits into none, and the model decides on it all the same."""
    listener = dataclasses.replace(NATIVE, id="listener")
    async with serving(listener) as served, served.session() as caller:
        await caller.append(speech(310))
        await caller.say("input_audio_buffer.commit", response_create=True)
        response = await done(caller)
        assert response["status"] == "completed"
        assert response["output"], "the tail was dropped: there was nothing to answer"


@pytest.mark.parametrize("odd", [1, 7, 333])
async def test_case_21_nothing_of_a_tail_that_fills_no_frame_is_lost(served: Served, odd: int) -> None:
    """Echo says back what it heard, to the sample, whatever the resamplers hold back."""
    async with served.session() as caller:
        await caller.by_hand(options=AT_ONCE)
        samples = RATE_HZ // 2 + odd
        await caller.append(speech(600)[: samples * 2])
        await caller.say("input_audio_buffer.commit", response_create=True)
        await done(caller)
        heard = [e for e in caller.seen if e["type"] == "response.output_audio.delta"]
        assert sum(len(base64.b64decode(e["delta"])) // 2 for e in heard) == pytest.approx(samples, abs=2)


async def test_case_22_turn_two_and_turn_ten_with_the_detector_alone(served: Served) -> None:
    """The client commits nothing and asks for nothing; each utterance is answered once, to its own length."""
    async with served.session() as caller:
        await update(caller, options=AT_ONCE)
        for turn in range(10):
            spoken_ms = 400 + 50 * turn
            await caller.append(quiet(400) + speech(spoken_ms) + quiet(700))
            await utterance(caller)
            response = await done(caller)
            assert response["status"] == "completed"
            said = response["output"][0]["content"][0]["transcript"]
            heard_ms = int(said.split()[2])
            assert heard_ms == pytest.approx(300 + spoken_ms + 160, abs=2 * FRAME_MS + 2), (turn, said)
            await caller.say("playback.ack", played_ms=10_000.0, response_id=response["id"])
        assert caller.types().count("response.created") == caller.types().count("response.done") == 10
