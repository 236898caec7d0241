"""Three defects that the framework's reference found in itself, and one that came with them.

The guard against late events that rejected the close is case 7, the metrics that were lost on the way are case 30.
"""

from __future__ import annotations

import base64
import dataclasses

import pytest

from duplex_core.testing.native import NATIVE
from tests.field_cases.scenes import AT_ONCE, RATE_HZ, answers, detecting, done, quiet, speech, update
from tests.support.serving import Caller, Served, serving

PIECE = RATE_HZ * 2 // 100
"""Bytes of ten milliseconds."""


async def append_in_pieces(caller: Caller, pcm: bytes, size: int) -> None:
    for start in range(0, len(pcm), size):
        await caller.append(pcm[start : start + size])


async def test_a_model_that_chose_to_listen_ends_the_response_that_the_client_waits_for(served: Served) -> None:
    """A model of turns hears nothing worth an answer: ``response.listen``, then ``response.done`` without output."""
    async with served.session() as caller:
        await caller.by_hand(options=AT_ONCE)
        await caller.append(quiet(300))
        await caller.say("input_audio_buffer.commit", response_create=True)
        created = await caller.until("response.created")
        listen = await caller.until("response.listen")
        assert listen["response_id"] == created["response"]["id"]
        response = await done(caller, created["response"]["id"])
        assert (response["status"], response["output"]) == ("completed", [])
        await answers(caller)


async def test_a_model_that_takes_its_own_turns_and_listens_ends_it_too() -> None:
    """The client asks a model that hears silence for an answer, and waits; another one, that has spoken, gets its answer."""
    listener = dataclasses.replace(NATIVE, id="listener")
    async with serving(listener) as served, served.session() as caller:
        for said, answered in ((quiet(300), False), (speech(900), True)):
            await caller.append(said)
            await caller.say("input_audio_buffer.commit", response_create=True)
            created = await caller.until("response.created")
            response = await done(caller, created["response"]["id"])
            assert response["status"] == "completed"
            assert bool(response["output"]) is answered


@pytest.mark.parametrize("pieces", [1, 10, 100])
async def test_audio_counts_once_however_it_is_cut(served: Served, pieces: int) -> None:
    """An append of 100 ms, ten of ten, a hundred of one: the times of the speech, the item and the ledger are the same."""
    said = quiet(500) + speech(600) + quiet(700)
    async with served.session() as caller:
        await detecting(caller, options=AT_ONCE, prefix_padding_ms=200, silence_duration_ms=500)
        await append_in_pieces(caller, said, 10 * PIECE // pieces)
        started = await caller.until("input_audio_buffer.speech_started")
        stopped = await caller.until("input_audio_buffer.speech_stopped")
        assert started["audio_start_ms"] == pytest.approx(300, abs=33)
        assert stopped["audio_end_ms"] == pytest.approx(1100, abs=33)
        response = await done(caller)
        deltas = [event for event in caller.seen if event["type"] == "response.output_audio.delta"]
        made_ms = sum(len(base64.b64decode(event["delta"])) / 2 / 24 for event in deltas)
        ledger = deltas[-1]["metadata"]["playback"]
        heard_ms = int(response["output"][0]["content"][0]["transcript"].split()[2])
        assert heard_ms == pytest.approx(stopped["audio_end_ms"] - started["audio_start_ms"] + 160, abs=2)
        assert made_ms == pytest.approx(heard_ms, abs=2)
        assert ledger["generated_ms"] == ledger["sent_ms"] == pytest.approx(made_ms, abs=0.01)
        assert sum(event["metadata"]["audio_duration_ms"] for event in deltas) == pytest.approx(made_ms, abs=0.01)


async def test_the_times_of_a_second_utterance_count_all_audio_once(served: Served) -> None:
    async with served.session() as caller:
        await detecting(caller, create_response=False, prefix_padding_ms=100, silence_duration_ms=300)
        await append_in_pieces(caller, (quiet(500) + speech(500) + quiet(500)) * 3, PIECE)
        starts = [(await caller.until("input_audio_buffer.speech_started"))["audio_start_ms"] for _ in range(3)]
        assert starts == [pytest.approx(400 + 1500 * turn, abs=33) for turn in range(3)]
        await update(caller)
