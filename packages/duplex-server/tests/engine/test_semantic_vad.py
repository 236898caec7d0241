"""`semantic_vad` through the engine and a real socket, with a detector whose opinion is the test's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duplex_core.detection import EndOfTurnSpec
from duplex_core.hookspecs import hookimpl
from duplex_core.machine.table import Hearing
from duplex_core.testing.speech import burst, silence
from duplex_server.engine.served import ModelUnavailable

RATE = 24_000
HEARS_HZ = 8000


class Opinion:
    """An end-of-turn detector that says what it is told to, and keeps what it heard."""

    rate_hz = HEARS_HZ
    window_ms = 1000

    def __init__(self) -> None:
        self.probability_of_the_end = 0.9
        self.heard: list[npt.NDArray[np.float32]] = []
        self.broken = False
        self.thinks = threading.Event()
        self.thinks.set()

    def probability(self, samples: npt.NDArray[np.float32]) -> float:
        self.heard.append(samples)
        assert self.thinks.wait(20)
        if self.broken:
            raise RuntimeError("out of memory")
        return self.probability_of_the_end


class Offer:
    """A plugin with that detector, and with one that cannot be made."""

    def __init__(self, opinion: Opinion) -> None:
        self.opinion = opinion

    @hookimpl
    def duplex_register_end_of_turn_detectors(self) -> Sequence[EndOfTurnSpec]:
        def lost() -> Opinion:
            raise OSError("weights.bin: no such file")

        return [
            EndOfTurnSpec(id="opinion", summary="says what it is told", create=lambda: self.opinion),
            EndOfTurnSpec(id="lost", summary="cannot be made", create=lost),
        ]


@pytest.fixture
def opinion() -> Opinion:
    return Opinion()


@contextlib.asynccontextmanager
async def talking(serving: Callable[..., Any], opinion: Opinion | None, eagerness: str = "auto") -> AsyncIterator[Any]:
    """A session under `semantic_vad` in which half a second of speech was just said."""
    extra: dict[str, Any] = {"extra": (Offer(opinion),), "end_of_turn": "opinion"} if opinion else {}
    async with serving(**extra) as served, served.session() as caller:
        detection = {"type": "semantic_vad", "eagerness": eagerness}
        await caller.say(
            "session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        )
        updated = await caller.until("session.updated")
        assert updated["session"]["audio"]["input"]["turn_detection"]["eagerness"] == eagerness
        await caller.append(silence(200, RATE) + burst(500, RATE))
        yield caller


async def at_pace(caller: Any, pcm: bytes) -> None:
    """Send audio at the pace at which it sounds, as a microphone would."""
    loop = asyncio.get_running_loop()
    due, size = loop.time(), RATE * 2 // 10
    for at in range(0, len(pcm), size):
        await caller.append(pcm[at : at + size])
        due += 0.1
        await asyncio.sleep(due - loop.time())


async def seen_by_now(caller: Any) -> list[str]:
    """The types of what the session has sent until now."""
    await caller.say("session.heartbeat")
    await caller.until("session.heartbeat_ack")
    types: list[str] = caller.types()
    return types


async def test_a_finished_turn_ends_as_soon_as_the_detector_says_so(
    serving: Callable[..., Any], opinion: Opinion
) -> None:
    """All the silence is there already; nothing but the verdict can end the turn before the microphone counts as dead."""
    async with talking(serving, opinion, "low") as caller, asyncio.timeout(3):
        await caller.append(silence(1500, RATE))
        committed = await caller.until("input_audio_buffer.committed")
        assert committed["item_id"] == (await caller.until("response.created", "conversation.item.added"))["item"]["id"]
    (heard,) = opinion.heard
    assert heard.dtype == np.float32
    assert 0.5 * HEARS_HZ < heard.size <= HEARS_HZ, "the utterance and its padding, at the detector's rate"
    assert np.abs(heard).max() > 0.1
    assert not heard[-HEARS_HZ // 20 :].any(), "and some of the silence after it"


async def test_a_pause_in_what_is_not_finished_does_not_end_it(serving: Callable[..., Any], opinion: Opinion) -> None:
    opinion.probability_of_the_end = 0.1
    async with talking(serving, opinion) as caller:
        await at_pace(caller, silence(1500, RATE))
        assert "input_audio_buffer.committed" not in await seen_by_now(caller)
        opinion.probability_of_the_end = 0.9
        await at_pace(caller, burst(500, RATE) + silence(1000, RATE))
        await caller.until("input_audio_buffer.committed")
        stopped = [event for event in caller.seen if event["type"] == "input_audio_buffer.speech_stopped"]
        assert len(stopped) == 1
        assert stopped[0]["audio_end_ms"] > 2600, "one turn, with the pause in it"
        assert len(opinion.heard) == 2


async def test_a_detector_that_fails_costs_the_turn_nothing_but_its_opinion(
    serving: Callable[..., Any], opinion: Opinion
) -> None:
    opinion.broken = True
    async with talking(serving, opinion) as caller:
        await caller.append(silence(1000, RATE))
        await caller.until("input_audio_buffer.committed")
        await caller.until("response.created")
        assert not [event for event in caller.seen if event["type"] == "error"]


async def test_what_came_of_each_pause_is_counted(serving: Callable[..., Any], opinion: Opinion) -> None:
    extra: dict[str, Any] = {"extra": (Offer(opinion),), "end_of_turn": "opinion"}
    async with serving(**extra) as served, served.session() as caller:
        detection = {"type": "semantic_vad", "eagerness": "low", "create_response": False}
        await caller.say(
            "session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        )
        machine = served.engine.sessions.get(caller.seen[0]["session"]["id"])._machine

        async def counted(**wanted: int) -> None:
            async with asyncio.timeout(10):
                while True:
                    counts = {
                        sample.labels["outcome"]: int(sample.value)
                        for family in served.engine.metrics.end_of_turn.collect()
                        for sample in family.samples
                        if sample.name.endswith("_total")
                    }
                    if counts == wanted:
                        return
                    await asyncio.sleep(0.005)

        async def pause(probability: float = 0.9) -> None:
            opinion.probability_of_the_end = probability
            await caller.append(burst(500, RATE) + silence(1500, RATE))

        await caller.append(silence(200, RATE))
        await pause(0.9)
        await counted(finished=1)
        await caller.until("input_audio_buffer.committed")
        await pause(0.1)
        await counted(finished=1, unfinished=1)
        opinion.broken = True
        await pause()
        await counted(finished=1, unfinished=1, failed=1)
        opinion.broken = False
        opinion.thinks.clear()
        await pause()
        await pause()
        await counted(finished=1, unfinished=1, failed=1, superseded=1)
        await caller.append(burst(500, RATE))
        async with asyncio.timeout(10):
            while machine.lanes.hearing is not Hearing.SPEAKING:  # noqa: ASYNC110 - of the machine's own
                await asyncio.sleep(0.005)
        opinion.thinks.set()
        await counted(finished=1, unfinished=1, failed=1, superseded=1, late=1)


async def test_without_a_detector_silence_ends_the_turn(serving: Callable[..., Any]) -> None:
    async with talking(serving, None) as caller:
        await at_pace(caller, silence(700, RATE))
        assert "input_audio_buffer.committed" not in await seen_by_now(caller)
        await at_pace(caller, silence(300, RATE))
        await caller.until("input_audio_buffer.committed")


async def test_other_turns_are_not_judged(serving: Callable[..., Any], opinion: Opinion) -> None:
    async with serving(extra=(Offer(opinion),), end_of_turn="opinion") as served, served.session() as caller:
        await caller.append(burst(500, RATE) + silence(1000, RATE))
        await caller.until("input_audio_buffer.committed")
    assert opinion.heard == []


async def test_every_model_can_semantic_vad(serving: Callable[..., Any]) -> None:
    async with serving() as served:
        assert served.engine.served.capabilities.semantic_vad


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("ears", r"there is no end-of-turn detector 'ears'; installed are: lost, opinion, smart-turn"),
        ("lost", r"the end-of-turn detector lost did not load: weights.bin: no such file"),
    ],
)
async def test_a_detector_that_is_not_to_be_had_stops_the_start(
    engine_of: Callable[..., Any], opinion: Opinion, wanted: str, why: str
) -> None:
    with pytest.raises(ModelUnavailable, match=why):
        async with engine_of(extra=(Offer(opinion),), end_of_turn=wanted):
            pass
