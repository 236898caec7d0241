"""What bytes mean: each encoding against an independent implementation, each refusal with its reason."""

import importlib
import io
import struct
import sys
import warnings
import wave
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from duplex_core.audio import AudioEncoding
from duplex_server.audio import AudioFormatError, check_channels, decode, encode

ALL_SAMPLES = np.arange(-32768, 32768).astype(np.int16)
ALL_CODES = bytes(range(256))


def pcm(values: list[int]) -> npt.NDArray[np.int16]:
    return np.array(values, np.int16)


@pytest.fixture(scope="module")
def audioop() -> Any:
    """CPython's G.711, in C, which shares nothing with ours; a package of its own since Python 3.13."""
    if sys.version_info >= (3, 13):
        return pytest.importorskip("audioop", reason="needs audioop-lts on Python 3.13")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("audioop")


class TestG711:
    @pytest.mark.parametrize(("encoding", "name"), [(AudioEncoding.PCMU, "ulaw"), (AudioEncoding.PCMA, "alaw")])
    def test_every_code_and_every_sample_equal_cpythons(self, audioop: Any, encoding: AudioEncoding, name: str) -> None:
        expanded = np.frombuffer(getattr(audioop, f"{name}2lin")(ALL_CODES, 2), np.int16)
        np.testing.assert_array_equal(decode(encoding, ALL_CODES), expanded)
        assert encode(encoding, ALL_SAMPLES) == getattr(audioop, f"lin2{name}")(ALL_SAMPLES.tobytes(), 2)

    @pytest.mark.parametrize(("encoding", "subtype"), [(AudioEncoding.PCMU, "ULAW"), (AudioEncoding.PCMA, "ALAW")])
    def test_every_code_equals_libsndfiles(self, encoding: AudioEncoding, subtype: str) -> None:
        expanded, _ = soundfile.read(
            io.BytesIO(ALL_CODES), dtype="int16", format="RAW", subtype=subtype, channels=1, samplerate=8000
        )
        np.testing.assert_array_equal(decode(encoding, ALL_CODES), expanded)

    @pytest.mark.parametrize("encoding", [AudioEncoding.PCMU, AudioEncoding.PCMA])
    def test_a_code_survives_decoding_and_encoding(self, encoding: AudioEncoding) -> None:
        # Mu-law has two zeros: code 0x7F (minus zero) comes back as 0xFF.
        expected = ALL_CODES if encoding is AudioEncoding.PCMA else ALL_CODES.replace(b"\x7f", b"\xff")
        assert encode(encoding, decode(encoding, ALL_CODES)) == expected

    def test_known_points_of_the_standard(self) -> None:
        assert decode(AudioEncoding.PCMU, b"\xff\x00\x80").tolist() == [0, -32124, 32124]
        assert decode(AudioEncoding.PCMA, b"\xd5\x55\xaa\x2a").tolist() == [8, -8, 32256, -32256]


class TestLinear:
    def test_pcm16_is_little_endian_and_not_copied(self) -> None:
        data = b"\x01\x00\xff\x7f\x00\x80"
        samples = decode(AudioEncoding.PCM16, data)
        assert samples.tolist() == [1, 32767, -32768]
        assert np.shares_memory(samples, np.frombuffer(data, np.uint8)) == (sys.byteorder == "little")

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_is_taken(self, kind: Any) -> None:
        assert decode(AudioEncoding.PCM16, kind(b"\x01\x00\x02\x00")).tolist() == [1, 2]

    @given(st.lists(st.integers(-32768, 32767), max_size=50))
    def test_linear_encodings_return_what_went_in(self, values: list[int]) -> None:
        for encoding in (AudioEncoding.PCM16, AudioEncoding.FLOAT32):
            assert decode(encoding, encode(encoding, pcm(values))).tolist() == values

    def test_float32_is_clipped_at_full_scale_and_rounded(self) -> None:
        values = [0.0, 0.5, -1.0, 1.0, 7.0, -1e30, 0.6 / 32768, 1.5 / 32768]
        data = struct.pack(f"<{len(values)}f", *values)
        assert decode(AudioEncoding.FLOAT32, data).tolist() == [0, 16384, -32768, 32767, 32767, -32768, 1, 2]

    @pytest.mark.parametrize("encoding", list(AudioEncoding))
    def test_nothing_is_nothing(self, encoding: AudioEncoding) -> None:
        assert decode(encoding, b"").tolist() == []
        assert encode(encoding, pcm([])) == b""

    @pytest.mark.parametrize("encoding", list(AudioEncoding))
    def test_a_slice_with_gaps_is_encoded_like_its_copy(self, encoding: AudioEncoding) -> None:
        strided = np.arange(-3000, 3000, 7, dtype=np.int16)[::3]
        assert encode(encoding, strided) == encode(encoding, strided.copy())

    @pytest.mark.parametrize("wrong", [np.zeros(4, np.float32), np.zeros((2, 2), np.int16), np.zeros(4, np.int32)])
    def test_encode_refuses_other_arrays(self, wrong: Any) -> None:
        with pytest.raises(TypeError, match="int16"):
            encode(AudioEncoding.PCM16, wrong)


def wav(channels: int, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(bytes(64))
    return file.getvalue()


def encoded_file(form: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(4096, np.int16), 16000, format=form)
    return file.getvalue()


class TestRefusals:
    @pytest.mark.parametrize("size", [1, 3, 641])
    def test_a_cut_int16_sample(self, size: int) -> None:
        with pytest.raises(AudioFormatError, match=f"even number of bytes.*got {size}") as caught:
            decode(AudioEncoding.PCM16, bytes(size))
        assert "odd byte" in caught.value.hint

    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    def test_a_cut_float_sample(self, size: int) -> None:
        with pytest.raises(AudioFormatError, match=f"multiple of 4 bytes, got {size}"):
            decode(AudioEncoding.FLOAT32, bytes(size))

    @pytest.mark.parametrize(
        ("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf")]
    )
    def test_floats_that_are_no_sound(self, value: float, shown: str) -> None:
        with pytest.raises(AudioFormatError, match=f"{shown} at sample 2"):
            decode(AudioEncoding.FLOAT32, struct.pack("<4f", 0, 0, value, float("nan")))

    def test_a_wav_file_is_named_with_what_it_holds(self) -> None:
        with pytest.raises(AudioFormatError, match=r"a WAV file \(2 channels, 44100 Hz, 16 bit\)") as caught:
            decode(AudioEncoding.PCM16, wav(2, 44100))
        assert "Decode the file" in caught.value.hint

    @pytest.mark.parametrize(
        ("form", "kind"), [("FLAC", "FLAC"), ("OGG", "Ogg"), ("AIFF", "AIFF"), ("CAF", "CAF"), ("WAV", "WAV")]
    )
    @pytest.mark.parametrize("encoding", list(AudioEncoding))
    def test_files_as_libsndfile_writes_them(self, form: str, kind: str, encoding: AudioEncoding) -> None:
        with pytest.raises(AudioFormatError, match=f"begins like an? {kind} file"):
            decode(encoding, encoded_file(form))

    @pytest.mark.parametrize(
        ("head", "kind"),
        [
            (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81", "WebM"),
            (b"\x00\x00\x00\x1cftypM4A \x00\x00\x00\x00", "MP4"),
            (b"ID3\x04\x00\x00\x00\x00\x02\x01TS", "MP3"),
        ],
    )
    def test_files_that_browsers_and_phones_record(self, head: bytes, kind: str) -> None:
        with pytest.raises(AudioFormatError, match=f"begins like an? {kind}"):
            decode(AudioEncoding.PCM16, head)

    @pytest.mark.parametrize(
        "sound",
        [
            b"RIFF\x10\x20\x30\x40\x11\x21\x31\x41",
            b"OggS\x07\x01",
            b"fLaC\x33\x12",
            b"ID3\x04\x10\x00",
            b"RIFF",
        ],
    )
    def test_sound_that_only_shares_the_first_letters_passes(self, sound: bytes) -> None:
        assert decode(AudioEncoding.PCM16, sound).tobytes() == sound

    def test_one_channel_is_accepted(self) -> None:
        check_channels(1)

    @pytest.mark.parametrize("channels", [0, 2, 6])
    def test_other_channel_counts(self, channels: int) -> None:
        with pytest.raises(AudioFormatError, match=f"{channels} channels; only mono") as caught:
            check_channels(channels)
        assert "Mix it down" in caught.value.hint
