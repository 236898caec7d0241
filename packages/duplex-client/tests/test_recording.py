"""Files hold what sounded, where it sounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from duplex_client.audio import UnreadableAudio, load_pcm, resample_pcm, to_float, to_pcm, voiced_span, write_wav
from duplex_client.pacing import SentChunk
from duplex_client.playback import Span
from duplex_client.player import HeardAnswer
from duplex_client.recording import ConversationRecorder, WavSink, join
from tests.clients.scripted import RATE_HZ, tone


def heard(*spans: tuple[float, bytes], response_id: str = "resp_1") -> HeardAnswer:
    made = tuple(
        Span(response_id=response_id, starts_at_ms=at, offset_ms=0.0, pcm=pcm, rate_hz=RATE_HZ) for at, pcm in spans
    )
    return HeardAnswer(response_id=response_id, item_id="i", spans=made, played_ms=0.0, received_ms=0.0, cut_at_ms=None)


def spoke(at_ms: float, pcm: bytes, rate_hz: int = RATE_HZ) -> SentChunk:
    return SentChunk(pcm=pcm, rate_hz=rate_hz, offset_ms=0.0, starts_at_ms=at_ms)


def test_each_answer_gets_its_file_with_its_pauses(tmp_path: Path) -> None:
    sink = WavSink(tmp_path / "out")
    sink.heard(heard((100.0, tone(10, 3)), (130.0, tone(10, 4))))
    sink.heard(heard(response_id="never heard"))
    sink.heard(heard((900.0, tone(5, 6)), response_id="resp_2"))
    assert sink.written == [
        ("resp_1", tmp_path / "out" / "answer-1.wav"),
        ("resp_2", tmp_path / "out" / "answer-2.wav"),
    ]
    samples, rate = soundfile.read(sink.written[0][1], dtype="int16")
    assert rate == RATE_HZ
    assert samples.tobytes() == tone(10, 3) + tone(20, 0) + tone(10, 4)


def test_a_conversation_has_the_user_left_and_the_assistant_right_on_one_line(tmp_path: Path) -> None:
    recorder = ConversationRecorder(RATE_HZ)
    for index in range(4):
        recorder.spoke(spoke(1000.0 + 20 * index, tone(20, 1)))
    recorder.heard(heard((1040.0, tone(60, 2))))
    recorder.write(tmp_path / "conversation.wav")
    samples, rate = soundfile.read(tmp_path / "conversation.wav", dtype="int16")
    assert (rate, samples.shape) == (RATE_HZ, (2400, 2))
    assert samples[:, 0].tobytes() == tone(80, 1) + tone(20, 0)
    assert samples[:, 1].tobytes() == tone(40, 0) + tone(60, 2)


def test_a_conversation_in_which_nobody_spoke_is_empty() -> None:
    assert ConversationRecorder().line().shape == (0, 2)


def test_sides_at_different_rates_share_one_clock() -> None:
    recorder = ConversationRecorder(24_000)
    seconds = np.arange(16_000) / 16_000
    sine = to_pcm((0.5 * np.sin(2 * np.pi * 200 * seconds)).astype(np.float32))
    for index in range(0, len(sine), 640):
        recorder.spoke(spoke(index / 32, sine[index : index + 640], 16_000))
    recorder.heard(heard((500.0, tone(500, 9))))
    line = recorder.line()
    assert abs(len(line) - 24_000) <= 1
    spectrum = np.abs(np.fft.rfft(line[:24_000, 0].astype(float)))
    assert spectrum.argmax() == 200
    assert np.sort(spectrum)[-2] < spectrum.max() / 100, "chunk edges click"


def test_pieces_that_touch_are_joined_and_others_are_not() -> None:
    joined = join([(0.0, tone(10, 1), RATE_HZ), (10.0, tone(10, 2), RATE_HZ), (25.0, tone(10, 3), RATE_HZ)])
    assert joined == [(0.0, tone(10, 1) + tone(10, 2), RATE_HZ), (25.0, tone(10, 3), RATE_HZ)]


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44_100, 2), (16_000, 3), (24_000, 1)])
def test_any_file_becomes_mono_at_the_wanted_rate(tmp_path: Path, rate: int, channels: int) -> None:
    seconds = np.arange(rate) / rate
    sine = (8000 * np.sin(2 * np.pi * 300 * seconds)).astype(np.int16)
    write_wav(tmp_path / "in.wav", np.stack([sine] * channels, axis=1), rate)
    samples = np.frombuffer(load_pcm(tmp_path / "in.wav", 24_000), dtype="<i2")
    assert abs(len(samples) - 24_000) <= 2
    assert np.abs(np.fft.rfft(samples[:24_000].astype(float))).argmax() == 300
    assert np.abs(samples).max() == pytest.approx(8000, rel=0.02)


def test_a_file_that_is_no_sound_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_text("hello")
    for name in ("x.wav", "absent.wav"):
        with pytest.raises(UnreadableAudio, match=name):
            load_pcm(tmp_path / name)
    write_wav(tmp_path / "empty.wav", np.zeros(0, dtype=np.int16), 8000)
    with pytest.raises(UnreadableAudio, match="holds no sound"):
        load_pcm(tmp_path / "empty.wav")


def test_the_voiced_part_is_found() -> None:
    quiet, loud = tone(100, 3), tone(250, 9000)
    assert voiced_span(quiet + loud + quiet, RATE_HZ) == (100.0, 350.0)
    assert voiced_span(tone(50, 0), RATE_HZ) == (0.0, 0.0)
    assert voiced_span(b"", RATE_HZ) == (0.0, 0.0)


def test_samples_survive_the_way_through_floats() -> None:
    every = np.arange(-32768, 32768, dtype="<i2").tobytes()
    assert to_pcm(to_float(every)) == every


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    assert resample_pcm(tone(10), 8000, 8000) == tone(10)
