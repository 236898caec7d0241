"""A handle tells what its answer says, how it ended, and ends its iterators at the right moment."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duplex_client.errors import ConnectionClosed
from duplex_client.responses import ResponseHandle
from duplex_core.events import (
    Event,
    OutputAudioDone,
    OutputBufferCleared,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    OutputTranscriptDone,
    PlaybackAcknowledged,
    ResponseCreated,
    ResponseMetrics,
    ResponseStatus,
)
from duplex_core.items import FunctionCallItem
from duplex_core.ledger import PlaybackLedger
from tests.clients.scripted import audio, begin, done, response, tone, words
from tests.clients.virtual import settle


def handle(*events: Event) -> ResponseHandle:
    made = ResponseHandle(ResponseCreated(response=response(), epoch=3, turn_id=2), 100.0)
    for index, event in enumerate(events):
        made.absorb(event, 101.0 + index)
    return made


async def taken(answer: ResponseHandle) -> list[bytes]:
    return [chunk async for chunk in answer.audio()]


def test_it_gathers_what_the_answer_says_and_when() -> None:
    one = handle(begin()[1], words("Hello "), audio(tone(20)), words("there."), done())
    assert (one.item_id, one.transcript, one.status) == ("item_resp_1", "Hello there.", ResponseStatus.COMPLETED)
    assert (one.epoch, one.turn_id) == (3, 2)
    assert (one.created_at_ms, one.first_audio_at_ms, one.done_at_ms) == (100.0, 103.0, 105.0)
    assert one.received_ms == 20.0
    assert not one.interrupted


def test_it_knows_how_long_the_server_took() -> None:
    took = ResponseMetrics(
        first_output_ms=80.0, first_audio_ms=95.0, total_ms=400.0, output_tokens=9, ms_per_output_token=40.0
    )
    assert handle(begin()[1]).metrics is None
    assert handle(msgspec.structs.replace(done(), metrics=took)).metrics == took


def test_the_final_words_win_over_their_pieces() -> None:
    place = {"response_id": "resp_1", "item_id": "i", "output_index": 0, "content_index": 0}
    one = handle(
        words("Helo"),
        OutputTranscriptDone(**place, transcript="Hello"),  # type: ignore[arg-type]
        OutputTextDelta(**place, delta="Hi"),  # type: ignore[arg-type]
        OutputTextDone(**place, text="Hi!"),  # type: ignore[arg-type]
    )
    assert (one.transcript, one.text) == ("Hello", "Hi!")


def test_tool_calls_are_kept_whole() -> None:
    call = FunctionCallItem(name="clock", arguments="{}", call_id="call_1", id="item_2")
    assert handle(OutputItemDone(response_id="resp_1", output_index=0, item=call)).tool_calls == [call]


async def test_audio_can_be_taken_by_several_from_the_beginning_while_it_arrives() -> None:
    one = handle(audio(b"aa"))
    early = asyncio.ensure_future(taken(one))
    await settle()
    one.absorb(audio(b"bb"), 1.0)
    late = asyncio.ensure_future(taken(one))
    await settle()
    one.absorb(OutputAudioDone(response_id="resp_1", item_id="i", output_index=0, content_index=0), 2.0)
    assert await early == await late == [b"aa", b"bb"]


@pytest.mark.parametrize(
    "cut",
    [OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=10), done(status=ResponseStatus.CANCELLED)],
    ids=["cleared", "cancelled"],
)
async def test_an_interruption_ends_the_audio_at_once(cut: Event) -> None:
    one = handle(audio(b"aa"), audio(b"bb"))
    stream = one.audio()
    assert await anext(stream) == b"aa"
    one.absorb(cut, 1.0)
    assert [chunk async for chunk in stream] == []
    assert one.interrupted


async def test_a_cleared_answer_that_was_complete_stays_complete() -> None:
    one = handle(audio(b"aa"), done())
    one.absorb(OutputBufferCleared(response_id="resp_1", epoch=1, audio_end_ms=10), 1.0)
    assert one.interrupted
    assert await one.wait() is ResponseStatus.COMPLETED


async def test_waiting_ends_with_the_answer() -> None:
    one = handle()
    waiting = asyncio.ensure_future(one.wait())
    await settle()
    assert not waiting.done()
    one.absorb(done(status=ResponseStatus.FAILED), 1.0)
    assert await waiting is ResponseStatus.FAILED


async def test_a_lost_connection_ends_everything_that_waits() -> None:
    one = handle(audio(b"aa"))
    waits = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(taken(one))]
    await settle()
    one.fail(ConnectionClosed("gone"))
    for wait in waits:
        with pytest.raises(ConnectionClosed, match="gone"):
            await wait


def test_the_played_position_only_rises() -> None:
    one = handle(audio(tone(100)))
    one.heard(60.0)
    ledger = PlaybackLedger(generated_ms=100, sent_ms=100, played_ms=40)
    one.absorb(PlaybackAcknowledged(playback=ledger, response_id="resp_1", item_id="i"), 1.0)
    assert one.played_ms == 60.0
