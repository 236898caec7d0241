"""Latencies are counted from the audio that was spoken, on the client's clock."""

from __future__ import annotations

from duplex_client.latency import InputLine, Latencies, StopLatency, TurnLatency
from duplex_client.pacing import SentChunk
from duplex_client.playback import Span
from duplex_client.player import HeardAnswer
from duplex_core.events import (
    InputCommitted,
    OverlapDecision,
    OverlapVerdict,
    SpeechStopped,
)
from tests.clients.scripted import RATE_HZ, audio, tone


def chunk(starts_at_ms: float, ms: float = 20.0) -> SentChunk:
    return SentChunk(pcm=tone(ms), rate_hz=RATE_HZ, offset_ms=0.0, starts_at_ms=starts_at_ms)


def line_from(*starts: float) -> InputLine:
    line = InputLine()
    for start in starts:
        line.sent(chunk(start))
    return line


def test_a_moment_of_the_audio_has_a_moment_in_time() -> None:
    line = line_from(1000, 1020, 1040, 5000, 5020)
    assert line.spoken_at_ms(0) == 1000
    assert line.spoken_at_ms(59) == 1059
    assert line.spoken_at_ms(60) == 5000
    assert line.spoken_at_ms(99) == 5039
    assert InputLine().spoken_at_ms(0) is None


def test_the_unevenness_of_a_live_source_is_not_taken_for_pauses() -> None:
    line = line_from(*(1000 + 20 * i + (7 if i % 2 else -7) for i in range(50)))
    assert line.spoken_at_ms(990) == 993 + 990


def test_the_first_audio_after_a_turn_is_measured_once() -> None:
    latencies = Latencies(line_from(*(1000 + 20 * i for i in range(100))))
    assert latencies.follow(audio(tone(20)), 1000.0) is None
    assert latencies.follow(SpeechStopped(audio_end_ms=1200, item_id="i"), 2700.0) is None
    assert latencies.follow(InputCommitted(item_id="i"), 2701.0) is None
    assert latencies.follow(audio(tone(20)), 3000.0) == TurnLatency(response_id="resp_1", ms=800.0)
    assert latencies.follow(audio(tone(20)), 3100.0) is None


def heard(response_id: str, ends_at_ms: float, cut_at_ms: float | None) -> HeardAnswer:
    span = Span(response_id=response_id, starts_at_ms=ends_at_ms - 100, offset_ms=0.0, pcm=tone(100), rate_hz=RATE_HZ)
    return HeardAnswer(
        response_id=response_id, item_id="i", spans=(span,), played_ms=100.0, received_ms=900.0, cut_at_ms=cut_at_ms
    )


def test_an_interruption_is_measured_from_its_onset_to_the_last_sound() -> None:
    """Also when the player was silent before the server said that this interrupts."""
    latencies = Latencies(line_from(*(1000 + 20 * i for i in range(100))))
    for verdict, response_id in ((OverlapVerdict.BACKCHANNEL, "resp_0"), (OverlapVerdict.INTERRUPTION, "resp_1")):
        event = OverlapDecision(decision=verdict, audio_ms=1000, epoch=0, response_id=response_id)
        assert latencies.follow(event, 2190.0) is None
    assert latencies.silenced(heard("resp_0", 2200.0, 2200.0)) is None, "nobody interrupted it"
    assert latencies.silenced(heard("resp_1", 2200.0, 2900.0)) == StopLatency(response_id="resp_1", ms=200.0)
    assert latencies.silenced(heard("resp_1", 2200.0, 2900.0)) is None, "told once"


def test_an_answer_that_was_heard_to_its_end_was_not_interrupted() -> None:
    latencies = Latencies(line_from(*(1000 + 20 * i for i in range(100))))
    latencies.follow(
        OverlapDecision(decision=OverlapVerdict.INTERRUPTION, audio_ms=1000, epoch=0, response_id="r"), 9.0
    )
    assert latencies.silenced(heard("r", 2200.0, None)) is None
