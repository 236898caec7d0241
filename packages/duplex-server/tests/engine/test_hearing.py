"""Audio on its way in: what it may be, and what becomes of it."""

from __future__ import annotations

import numpy as np
import pytest

from duplex_core.audio import AudioEncoding, AudioFormat
from duplex_core.commands import (
    Command,
    ConversationItemCreate,
    InputAudioBufferAppend,
    InputAudioBufferCommit,
    ResponseCreate,
)
from duplex_core.errors import DuplexError
from duplex_core.items import InputAudio, MessageItem, Role
from duplex_core.patch import ResponseParams, WireFormat
from duplex_core.testing.speech import burst
from duplex_server.engine.hearing import Hearing, append_format

PCM24 = AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=24_000)
ULAW = AudioFormat(encoding=AudioEncoding.PCMU, rate_hz=8000)


def append(audio: bytes = b"\0\0", **fields: object) -> InputAudioBufferAppend:
    return InputAudioBufferAppend(audio=audio, **fields)  # type: ignore[arg-type]


def pcm(command: Command) -> bytes:
    assert isinstance(command, InputAudioBufferAppend)
    return command.audio


@pytest.mark.parametrize(
    ("command", "session", "encoding", "rate"),
    [
        (append(), PCM24, AudioEncoding.PCM16, 24_000),
        (append(), ULAW, AudioEncoding.PCMU, 8000),
        (append(sample_rate_hz=16_000), PCM24, AudioEncoding.PCM16, 16_000),
        (append(format="pcm16"), ULAW, AudioEncoding.PCM16, 24_000),
        (
            append(format="pcm16"),
            AudioFormat(encoding=AudioEncoding.FLOAT32, rate_hz=48_000),
            AudioEncoding.PCM16,
            48_000,
        ),
        (append(format="g711_alaw"), PCM24, AudioEncoding.PCMA, 8000),
        (append(format="audio/float32", sample_rate_hz=16_000), PCM24, AudioEncoding.FLOAT32, 16_000),
        (append(format=WireFormat(type=AudioEncoding.PCM16, rate=8000)), PCM24, AudioEncoding.PCM16, 8000),
        (
            append(format=WireFormat(type=AudioEncoding.PCM16, rate=8000), sample_rate_hz=8000),
            PCM24,
            AudioEncoding.PCM16,
            8000,
        ),
    ],
)
def test_an_appends_own_fields_win_over_the_sessions(
    command: InputAudioBufferAppend, session: AudioFormat, encoding: AudioEncoding, rate: int
) -> None:
    assert append_format(command, session) == AudioFormat(encoding=encoding, rate_hz=rate)


@pytest.mark.parametrize("rate", [11_025, -8000, 0])
def test_a_rate_that_does_not_exist_is_named(rate: int) -> None:
    with pytest.raises(DuplexError) as caught:
        append_format(append(sample_rate_hz=rate), PCM24)
    assert caught.value.info.param == "sample_rate_hz"
    assert str(rate) in caught.value.info.message


def test_the_same_audio_in_any_pieces_gives_the_same_samples_and_all_of_them() -> None:
    said = burst(333, 24_000)
    whole, parts = Hearing(16_000), Hearing(16_000)
    one = pcm(whole.convert(append(said), PCM24)) + whole.flush()
    many = b"".join(pcm(parts.convert(append(said[at : at + 98]), PCM24)) for at in range(0, len(said), 98))
    many += parts.flush()
    assert one == many
    assert len(one) / 2 == pytest.approx(0.333 * 16_000, abs=1)


def test_a_change_of_rate_in_mid_stream_loses_nothing() -> None:
    hearing = Hearing(16_000)
    first = pcm(hearing.convert(append(burst(200, 24_000)), PCM24))
    second = pcm(hearing.convert(append(burst(200, 8000), sample_rate_hz=8000), PCM24))
    total = len(first + second + hearing.flush())
    assert total / 2 == pytest.approx(0.4 * 16_000, abs=2)


def test_a_refused_append_leaves_the_stream_untouched() -> None:
    said = burst(100, 24_000)
    plain, disturbed = Hearing(16_000), Hearing(16_000)
    expected = pcm(plain.convert(append(said), PCM24)) + plain.flush()
    half = len(said) // 4 * 2
    got = pcm(disturbed.convert(append(said[:half]), PCM24))
    for bad in (append(b"abc"), append(b""), append(b"\0\0", sample_rate_hz=7), append(b"\0\0", duration_ms=50)):
        with pytest.raises(DuplexError):
            disturbed.convert(bad, PCM24)
    got += pcm(disturbed.convert(append(said[half:]), PCM24)) + disturbed.flush()
    assert got == expected


def test_a_duration_may_be_rounded() -> None:
    hearing = Hearing(16_000)
    assert pcm(hearing.convert(append(burst(100.4, 24_000), duration_ms=100), PCM24))


def test_audio_in_items_is_converted_each_part_for_itself() -> None:
    said = burst(250, 8000)
    item = MessageItem(role=Role.USER, content=(InputAudio(audio=said), InputAudio(audio=said)))
    narrow = AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=8000)
    hearing = Hearing(16_000)
    created = hearing.convert(ConversationItemCreate(item=item), narrow)
    asked = hearing.convert(ResponseCreate(response=ResponseParams(input=(item,))), narrow)
    assert isinstance(created, ConversationItemCreate)
    assert isinstance(asked, ResponseCreate)
    assert asked.response is not None
    for got in (created.item, *(asked.response.input or ())):
        assert isinstance(got, MessageItem)
        first, second = (part.audio for part in got.content if isinstance(part, InputAudio))
        assert first is not None
        assert first == second
        assert len(first) / 2 == pytest.approx(0.25 * 16_000, abs=1)
        assert np.abs(np.frombuffer(first, np.int16)).max() > 3000


def test_commands_without_audio_pass_as_they_are() -> None:
    command = InputAudioBufferCommit()
    assert Hearing(16_000).convert(command, PCM24) is command
