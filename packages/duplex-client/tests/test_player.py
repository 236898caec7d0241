"""What a player plays, acknowledges, cuts and hands on, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from duplex_client import HeardAnswer, InlineDuplexClient, Player
from duplex_core.commands import PlaybackAck
from duplex_core.events import (
    Event,
    OutputBufferCleared,
    OverlapDecision,
    OverlapVerdict,
    ResponseStatus,
    SessionResyncRequired,
    SpeechStarted,
    TurnEvent,
    TurnEventKind,
)
from tests.clients.scripted import SESSION_ID, audio, begin, done, tone
from tests.clients.virtual import ScriptedEngine, VirtualClock, settle


class Ears:
    def __init__(self) -> None:
        self.answers: list[HeardAnswer] = []

    def heard(self, answer: HeardAnswer) -> None:
        self.answers.append(answer)


class Stage:
    """One conversation with a player in it."""

    def __init__(self) -> None:
        self.engine, self.clock, self.ears = ScriptedEngine(), VirtualClock(), Ears()
        self.client = InlineDuplexClient(self.engine, clock=self.clock)
        self.player: Player

    async def tell(self, *events: Event) -> None:
        self.engine.tell(*events)
        await settle()

    @property
    def acks(self) -> list[tuple[float, bool]]:
        return [(c.played_ms, c.truncate) for c in self.engine.submitted if isinstance(c, PlaybackAck)]


@asynccontextmanager
async def stage(ack_every_ms: float | None = 200.0) -> AsyncIterator[Stage]:
    made = Stage()
    async with made.client:
        made.player = Player(made.client, ack_every_ms=ack_every_ms, sinks=[made.ears])
        async with made.player:
            await settle()
            yield made


async def test_an_answer_is_played_in_real_time_acknowledged_and_handed_on() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(300)), audio(tone(150)), done())
        assert s.player.playing() == "resp_1"
        await s.clock.advance(449.0)
        assert s.ears.answers == []
        await s.clock.advance(1.0)
        assert s.player.playing() is None
        await s.player.idle()
        (heard,) = s.ears.answers
        assert (heard.played_ms, heard.received_ms, heard.cut_at_ms) == (450.0, 450.0, None)
        assert heard.ends_at_ms == s.clock.time_ms
        assert b"".join(span.pcm for span in heard.spans) == tone(450)
        assert s.acks == [(200.0, False), (400.0, False), (450.0, False)]


INTERRUPTIONS: list[Event] = [
    OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=100),
    OverlapDecision(decision=OverlapVerdict.INTERRUPTION, audio_ms=10, epoch=1, response_id="resp_1"),
    done(status=ResponseStatus.CANCELLED),
]


@pytest.mark.parametrize("event", INTERRUPTIONS, ids=["cleared", "decided", "cancelled"])
async def test_an_interruption_silences_at_once_and_tells_what_was_heard(event: Event) -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(1000, 5)))
        await s.clock.advance(123.0)
        await s.tell(event, audio(tone(500, 6)))
        assert s.player.playing() is None
        await s.player.idle()
        (heard,) = s.ears.answers
        assert b"".join(span.pcm for span in heard.spans) == tone(123, 5)
        assert (heard.played_ms, heard.received_ms, heard.cut_at_ms) == (123.0, 1000.0, s.clock.time_ms)
        assert s.acks[-1] == (123.0, True)


@pytest.mark.parametrize(
    "event",
    [
        SpeechStarted(audio_start_ms=5, item_id="item_9"),
        OverlapDecision(decision=OverlapVerdict.BACKCHANNEL, audio_ms=10, epoch=0, response_id="resp_1"),
        OutputBufferCleared(response_id="resp_0", epoch=1, audio_end_ms=100),
        done("resp_0", ResponseStatus.CANCELLED),
    ],
    ids=["somebody speaks", "mhm", "an older answer", "an older answer's end"],
)
async def test_what_is_no_interruption_of_this_answer_is_talked_through(event: Event) -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(300)))
        await s.clock.advance(100.0)
        await s.tell(event, done())
        await s.clock.advance(200.0)
        assert s.ears.answers[0].played_ms == 300.0
        assert s.ears.answers[0].cut_at_ms is None


async def test_sound_that_is_still_queued_when_generation_has_ended_can_be_interrupted() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(2000)), done())
        await s.clock.advance(700.0)
        await s.tell(OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=700))
        assert s.ears.answers[0].played_ms == 700.0
        assert s.acks[-1] == (700.0, True)


async def test_an_answer_that_was_heard_whole_is_not_cut_by_a_late_clear() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(100)))
        await s.clock.advance(100.0)
        await s.tell(done(), OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=100))
        assert s.ears.answers[0].cut_at_ms is None
        assert (100.0, True) not in s.acks


async def test_an_answer_that_pauses_goes_on_and_one_cut_in_its_pause_is_cut() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(100)))
        await s.clock.advance(300.0)
        assert s.ears.answers == []
        await s.tell(audio(tone(100)))
        await s.clock.advance(300.0)
        await s.tell(OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=200))
        (heard,) = s.ears.answers
        assert (heard.played_ms, heard.cut_at_ms) == (200.0, s.clock.time_ms)
        assert [span.starts_at_ms for span in heard.spans] == [10_000.0, 10_300.0]
        assert heard.ends_at_ms == 10_400.0, "the last sound, not the moment of the cut"


async def test_the_next_answer_begins_when_the_one_before_has_sounded() -> None:
    async with stage() as s:
        await s.tell(*begin("resp_1"), audio(tone(100), "resp_1"), done("resp_1"))
        await s.tell(*begin("resp_2"), audio(tone(100), "resp_2"), done("resp_2"))
        await s.clock.advance(200.0)
        assert [(a.response_id, a.starts_at_ms) for a in s.ears.answers] == [("resp_1", 10_000.0), ("resp_2", 10_100.0)]


async def test_an_answer_cut_before_its_first_sample_was_not_heard() -> None:
    async with stage() as s:
        await s.tell(*begin("resp_1"), audio(tone(100), "resp_1"), *begin("resp_2"), audio(tone(100), "resp_2"))
        await s.tell(OutputBufferCleared(response_id="resp_2", epoch=1, audio_end_ms=0))
        (heard,) = s.ears.answers
        assert (heard.response_id, heard.spans, heard.starts_at_ms, heard.played_ms) == ("resp_2", (), None, 0.0)


async def test_hanging_up_in_the_middle_of_an_answer_cuts_it_there() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(1000)))
        await s.clock.advance(250.0)
    assert (s.ears.answers[0].played_ms, s.ears.answers[0].cut_at_ms) == (250.0, 10_250.0)


async def test_what_had_arrived_is_played_when_the_connection_is_lost() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(400)))
        s.engine.vanish()
        waiting = asyncio.ensure_future(s.player.idle())
        await s.clock.advance(400.0)
        assert waiting.done()
        assert s.ears.answers[0].played_ms == 400.0
        assert s.ears.answers[0].cut_at_ms is None


async def test_a_handle_knows_how_far_it_was_played() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(1000)))
        answer = await anext(s.client.responses())
        await s.clock.advance(600.0)
        assert answer.played_ms == 600.0
        assert s.player.played_ms("resp_1") == 600.0


async def test_a_silent_player_acknowledges_nothing() -> None:
    async with stage(ack_every_ms=None) as s:
        await s.tell(*begin(), audio(tone(300)), done())
        await s.clock.advance(300.0)
        assert len(s.ears.answers) == 1
        assert s.acks == []


async def test_one_can_wait_until_so_much_was_heard() -> None:
    async with stage() as s:
        await s.tell(*begin())
        waiting = asyncio.ensure_future(s.player.reached("resp_1", 150.0))
        await s.clock.advance(500.0)
        await s.tell(audio(tone(100)), audio(tone(100)))
        await s.clock.advance(149.0)
        assert not waiting.done()
        await s.clock.advance(1.0)
        assert await waiting


@pytest.mark.parametrize("event", [INTERRUPTIONS[2], done()], ids=["cut", "ended"])
async def test_one_does_not_wait_for_what_will_not_be_heard(event: Event) -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(100)))
        waiting = asyncio.ensure_future(s.player.reached("resp_1", 150.0))
        await s.clock.advance(50.0)
        await s.tell(event)
        assert waiting.done() is (event is INTERRUPTIONS[2]), "an answer that sounds on has not ended"
        await s.clock.advance(50.0)
        assert waiting.done()
        assert not await waiting
        assert not await s.player.reached("resp_1", 150.0)


async def test_waiting_for_sound_ends_with_the_connection() -> None:
    async with stage() as s:
        await s.tell(*begin())
        waiting = asyncio.ensure_future(s.player.reached("resp_1", 150.0))
        s.engine.vanish()
        await settle()
        assert not await waiting


LOST = SessionResyncRequired(session_id=SESSION_ID, last_server_event_seq=0, first_available_seq=9)


@pytest.mark.parametrize("ms", [300.0, 5000.0])
async def test_an_answer_whose_end_may_be_lost_is_waited_for_a_while_and_no_longer(ms: float) -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(ms)), LOST)
        waiting = asyncio.ensure_future(s.player.idle())
        await s.clock.advance(max(2000.0, ms) - 1.0)
        assert not waiting.done()
        await s.clock.advance(1.0)
        assert waiting.done()
        (heard,) = s.ears.answers
        assert (heard.played_ms, heard.cut_at_ms) == (ms, None)
        assert not await s.player.reached("resp_1", ms + 1.0)


async def test_an_answer_that_goes_on_after_a_loss_is_played_to_its_end() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(100)), LOST)
        await s.clock.advance(1999.0)
        await s.tell(audio(tone(100)))
        await s.clock.advance(60_000.0)
        assert s.ears.answers == []
        await s.tell(done())
        assert s.ears.answers[0].played_ms == 200.0


async def test_a_pause_whose_end_may_be_lost_is_over() -> None:
    async with stage() as s:
        await s.tell(*begin(), audio(tone(300)), TurnEvent(kind=TurnEventKind.HELD, epoch=0, turn_id=1))
        await s.clock.advance(1000.0)
        assert s.player.playing() is None
        await s.tell(LOST)
        assert s.player.playing() == "resp_1"


async def test_text_answers_are_none_of_its_business() -> None:
    async with stage() as s:
        await s.tell(*begin(), done())
        await s.player.idle()
        assert s.ears.answers == []
