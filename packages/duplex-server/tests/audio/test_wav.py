"""WAV files of every kind that people send are read; others are refused, whatever bytes they are made of."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_server.audio import AudioFormatError
from duplex_server.audio.wav import read_wav, write_wav

TONE = np.sin(np.arange(480) * 2 * np.pi * 440 / 16_000) * 0.5


def wav(
    body: bytes,
    *,
    kind: int = 1,
    channels: int = 1,
    rate: int = 16_000,
    bits: int = 16,
    extra: bytes = b"",
    size: int = -1,
) -> bytes:
    fmt = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits) + extra
    junk = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    shown = len(body) if size < 0 else size
    chunks = b"fmt " + struct.pack("<I", len(fmt)) + fmt + junk + b"data" + struct.pack("<I", shown) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def pcm(bits: int) -> bytes:
    scaled = np.rint(TONE * (1 << (bits - 1)))
    if bits == 8:
        return (scaled + 128).astype(np.uint8).tobytes()
    if bits == 24:
        return scaled.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return scaled.astype(f"<i{bits // 8}").tobytes()


@pytest.mark.parametrize(
    ("data", "tolerance"),
    [
        (wav(pcm(8), bits=8), 130),
        (wav(pcm(16)), 0),
        (wav(pcm(24), bits=24), 1),
        (wav(pcm(32), bits=32), 1),
        (wav(TONE.astype("<f4").tobytes(), kind=3, bits=32), 1),
        (wav(TONE.astype("<f8").tobytes(), kind=3, bits=64), 1),
        (wav(pcm(16), kind=0xFFFE, extra=struct.pack("<HHIH", 22, 16, 4, 1) + bytes(14)), 0),
        (wav(pcm(16), size=0), 0),
        (wav(pcm(16), size=0xFFFFFFFF), 0),
        (wav(pcm(16) + b"\x01"), 0),
    ],
    ids=["8", "16", "24", "32", "float", "double", "extensible", "no length", "endless", "half a sample"],
)
def test_every_kind_of_samples(data: bytes, tolerance: int) -> None:
    samples, rate_hz = read_wav(data)
    assert samples.dtype == np.int16
    assert rate_hz == 16_000
    expected = np.frombuffer(pcm(16), "<i2").astype(int)
    assert samples.shape == expected.shape
    assert np.abs(samples - expected).max() <= tolerance


def test_channels_are_mixed_and_full_scale_is_clipped() -> None:
    stereo = np.stack([np.full(4, 1000), np.full(4, 3000)], axis=1).astype("<i2").tobytes()
    samples, rate_hz = read_wav(wav(stereo, channels=2, rate=44_100))
    assert (samples.tolist(), rate_hz) == ([2000] * 4, 44_100)
    loud, _ = read_wav(wav(np.array([2.0, -2.0], "<f4").tobytes(), kind=3, bits=32))
    assert loud.tolist() == [32767, -32768]


def test_what_is_written_other_programs_read() -> None:
    data = write_wav(pcm(16), 24_000)
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.readframes(1000) == pcm(16)
    assert read_wav(data)[0].tobytes() == pcm(16)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin like a WAV file"),
        (b"ID3\x04 an mp3", "does not begin like a WAV file"),
        (b"RIFF\0\0\0\0AVI LIST", "does not begin like a WAV file"),
        (wav(pcm(16))[:20], "has no header"),
        (wav(b"")[: wav(b"").index(b"data")], "has no samples"),
        (wav(pcm(16), kind=2), "samples of kind 2 with 16 bits"),
        (wav(pcm(16), bits=12), "samples of kind 1 with 12 bits"),
        (wav(pcm(16), channels=0), "0 channels at 16000 Hz"),
        (wav(pcm(16), rate=10), "1 channels at 10 Hz"),
        (wav(np.array([np.nan], "<f4").tobytes(), kind=3, bits=32), "not finite"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(AudioFormatError, match=why):
        read_wav(data)


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=80), at=st.integers(min_value=0, max_value=60), cut=st.integers(min_value=0, max_value=400)
)
def test_no_bytes_break_the_reader(data: bytes, at: int, cut: int) -> None:
    whole = bytearray(wav(pcm(16)[:200]))
    whole[at : at + len(data)] = data
    for each in (bytes(data), bytes(whole), bytes(whole[:cut])):
        try:
            samples, rate_hz = read_wav(each)
        except AudioFormatError:
            continue
        assert samples.dtype == np.int16
        assert rate_hz > 0
