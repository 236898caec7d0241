"""A model that takes its turns itself, over a real socket: the conformance kit's ``native``, in units of 200 ms."""

from __future__ import annotations

import dataclasses
from typing import Any

from duplex_core.testing.native import NATIVE
from duplex_core.testing.native.options import NativeSettings
from duplex_core.testing.speech import burst, silence

UNIT_MS = 200.0
RATE_HZ = 16_000
LOUD = burst(UNIT_MS, RATE_HZ)
QUIET = silence(UNIT_MS, RATE_HZ)


class ShortUnits(NativeSettings):
    """Native's settings, with another default."""

    unit_ms: float = UNIT_MS


SHORT = dataclasses.replace(NATIVE, id="hummer", deploy_model=ShortUnits)
FORMAT = {"type": "audio/pcm", "rate": RATE_HZ}


async def configure(caller: Any, *, detection: dict[str, Any] | None, **options: Any) -> None:
    """Set the script; without patience silence is not filled in, so that each unit that is listened to is one that was sent."""
    audio = {"input": {"format": FORMAT, "turn_detection": detection}}
    session = {"type": "realtime", "audio": audio, "options": {"patience_ms": 0.0, "silence_ms": 800.0, **options}}
    await caller.say("session.update", session=session)
    assert (await caller.until("session.updated", "error"))["type"] == "session.updated"


async def listened_to(caller: Any, unit: bytes, times: int) -> None:
    for _ in range(times):
        await caller.append(unit)
        told = await caller.until("response.listen", "response.created")
        assert told["type"] == "response.listen"
        assert told.get("response_id") is None


async def has_come(caller: Any, kind: str) -> None:
    """Wait for an event that may have come already: the detector judges beside the model."""
    if kind not in caller.types():
        await caller.until(kind)


def whole(caller: Any) -> None:
    """The sequence has no gap, and each response one end."""
    assert [event["server_event_seq"] for event in caller.seen] == list(range(1, len(caller.seen) + 1))
    created = [event["response"]["id"] for event in caller.seen if event["type"] == "response.created"]
    done = [event["response"]["id"] for event in caller.seen if event["type"] == "response.done"]
    assert created == done
    assert "error" not in caller.types()


async def test_a_conversation_of_25_units_in_which_the_detector_interrupts(serving: Any) -> None:
    async with serving(SHORT) as served, served.session() as caller:
        await configure(caller, detection={"type": "server_vad"}, turn_units=30)
        await listened_to(caller, QUIET, 7)
        await listened_to(caller, LOUD, 4)
        await has_come(caller, "input_audio_buffer.speech_started")
        await listened_to(caller, QUIET, 3)
        await has_come(caller, "input_audio_buffer.speech_stopped")
        await caller.append(QUIET)
        first = (await caller.until("response.created"))["response"]["id"]
        await caller.until("response.output_audio.delta")

        for _ in range(6):
            await caller.append(LOUD)
        verdict = await caller.until("overlap.decision")
        assert (verdict["decision"], verdict["response_id"]) == ("interruption", first)
        cleared = await caller.until("output_audio_buffer.cleared")
        cut = await caller.until("response.done")
        assert (cut["response"]["id"], cut["response"]["status"]) == (first, "cancelled")
        assert cut["response"]["status_details"]["reason"] == "turn_detected"
        fence = len(caller.seen)

        await configure(caller, detection={"type": "server_vad"}, turn_units=3)
        await caller.append(QUIET)
        told = await caller.until("response.listen", "response.created")
        assert told["type"] == "response.listen", "the unit after an interruption is listened to"
        assert told["epoch"] == cleared["epoch"]
        for _ in range(3):
            await caller.append(QUIET)
        second = await caller.until("response.created")
        done = await caller.until("response.done")  # the microphone has stopped: it goes on by itself
        assert done["response"]["id"] == second["response"]["id"]
        assert done["response"]["status"] == "completed"
        (item,) = done["response"]["output"]
        assert item["content"][0]["transcript"] == "1 of 3. 2 of 3. 3 of 3."

        late = caller.seen[fence:]
        assert not [event for event in late if event.get("response_id") == first]
        sound = [event for event in late if event["type"] == "response.output_audio.delta"]
        assert {event["metadata"]["epoch"] for event in sound} == {cleared["epoch"]}
        assert sum(event["metadata"]["audio_duration_ms"] for event in sound) == 3 * UNIT_MS
        assert caller.types().count("input_audio_buffer.speech_started") == 2
        assert "input_audio_buffer.committed" not in caller.types(), "the detector only interrupts"
        await caller.say("session.close")
        await caller.rest()
        whole(caller)
        assert served.engine.sessions.taken == 0


async def test_a_commit_and_a_question_may_both_end_in_listening(serving: Any) -> None:
    async with serving(SHORT) as served, served.session() as caller:
        await configure(caller, detection=None)
        await caller.append(QUIET[: len(QUIET) // 2])
        await caller.say("input_audio_buffer.commit")
        await caller.until("input_audio_buffer.committed")
        told = await caller.until("response.listen", "response.created")
        assert (told["type"], told.get("response_id")) == ("response.listen", None)

        await caller.say("response.create")
        asked = (await caller.until("response.created"))["response"]["id"]
        assert (await caller.until("response.listen"))["response_id"] == asked
        done = await caller.until("response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (asked, "completed")
        assert done["response"]["output"] == []

        await caller.append(LOUD)
        await caller.say("input_audio_buffer.commit", response_create=True)
        answered = await caller.until("response.done")
        assert answered["response"]["output"]
        await caller.say("session.close")
        await caller.rest()
        whole(caller)
