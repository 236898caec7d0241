"""The audio front end on tiny checkpoints of our own: against transformers' parts, and session beside session."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoderLayer

from model_minicpmo.gpu.audio import AudioFrontEnd, AudioStream, EncodedAudio
from model_minicpmo.gpu.checkpoint import open_checkpoint
from model_minicpmo.gpu.mel import LogMel, MelStream
from model_minicpmo.gpu.whisper import KvCache, WhisperEncoder
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

pytestmark = pytest.mark.engines

SECOND = 16_000
MEL = 1e-5
HIDDEN = 5e-5


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def front_end(tmp_path_factory: pytest.TempPathFactory) -> AudioFrontEnd:
    folder = write_checkpoint(tmp_path_factory.mktemp("tiny"), TINY, seed=5)
    return AudioFrontEnd.load(open_checkpoint(folder), dtype=torch.float32, device="cpu")


def murmur(seconds: float, seed: int) -> Tensor:
    """Sound that swells and fades, with tones that move: quiet and loud parts, as speech has."""
    generator = torch.Generator().manual_seed(seed)
    length = int(seconds * SECOND)
    time = torch.arange(length) / SECOND
    swell = (torch.rand(length // 1600 + 2, generator=generator) ** 3).repeat_interleave(1600)[:length]
    tone = torch.sin(2 * torch.pi * (150 + 40 * torch.sin(3 * time + seed)) * time)
    return (0.4 * tone + 0.05 * torch.randn(length, generator=generator)) * swell


def units(samples: Tensor) -> list[Tensor]:
    return list(samples.split(SECOND))


def run(front_end: AudioFrontEnd, sound: list[Tensor], stream: AudioStream | None = None) -> list[EncodedAudio]:
    stream = front_end.open() if stream is None else stream
    encoded = []
    for part in sound:
        [(stream, unit)] = front_end.encode([(stream, part)])
        encoded.append(unit)
    return encoded


# -- the spectrogram ---------------------------------------------------------------------------------------------------


def test_a_stream_s_frames_are_those_of_the_whole_sound_that_is_kept() -> None:
    extractor = WhisperFeatureExtractor()
    samples = murmur(34.03, 1)
    past, at = MelStream(), 0
    for number in range(33):
        length = 16_480 if number == 0 else SECOND
        past, frames = LogMel().step(past, samples[at : at + length])
        at += length
        kept = samples[past.dropped : at]
        assert torch.equal(past.samples, kept)
        whole = torch.from_numpy(extractor._torch_extract_fbank_features(kept[None].numpy())[0])
        end = past.emitted - past.dropped // 160 + 2
        expected = whole[:, max(0, end - 104) : end]
        if at < 5 * SECOND:  # the library's floor follows the loudest bin from the beginning on
            above = expected > whole.min() + MEL
            assert float(above.float().mean()) > 0.2
            assert float((frames[0] - expected)[above].abs().max()) <= MEL
        else:
            assert float((frames[0] - expected).abs().max()) <= MEL
    assert past.dropped == 10 * SECOND


def test_a_clip_s_frames_are_those_of_the_library() -> None:
    extractor = WhisperFeatureExtractor()
    for seconds in (0.1, 2.0, 3.077, 29.99, 30.0):
        samples = murmur(seconds, 2)
        expected = extractor(samples.numpy(), sampling_rate=SECOND, return_tensors="pt").input_features[0]
        frames = LogMel().clip(samples)[0]
        assert frames.shape[1] == -(-samples.shape[0] // 160)
        assert float((frames - expected[:, : frames.shape[1]]).abs().max()) <= MEL


def test_a_clip_of_nothing_and_one_of_more_than_thirty_seconds_are_refused() -> None:
    for length in (0, 30 * SECOND + 1):
        with pytest.raises(ValueError, match=f"a clip of {length} samples"):
            LogMel().clip(torch.zeros(length))


def test_a_unit_that_could_still_change_is_refused() -> None:
    past, _ = LogMel().step(MelStream(), torch.zeros(16_480))
    with pytest.raises(ValueError, match="needs 32360 samples, not 31480"):
        LogMel().step(past, torch.zeros(15_000))


# -- the encoder -------------------------------------------------------------------------------------------------------


def oracle(encoder: WhisperEncoder, frames: Tensor) -> Tensor:
    """Run transformers' layers over all positions at once; a position sees its own second and all before it."""
    config = WhisperConfig(
        d_model=encoder.config.d_model,
        encoder_attention_heads=encoder.config.encoder_attention_heads,
        encoder_ffn_dim=encoder.config.encoder_ffn_dim,
        attn_implementation="eager",
    )
    seconds = torch.arange(frames.shape[1]) // 50
    mask = torch.zeros(len(seconds), len(seconds)).masked_fill(seconds[None, :] > seconds[:, None], float("-inf"))
    hidden = frames + encoder.embed_positions.weight[: frames.shape[1]]
    for layer in encoder.layers:
        public = WhisperEncoderLayer(config).eval()
        public.load_state_dict(layer.state_dict(), strict=True)
        hidden = public(hidden, mask[None, None])
    return torch.layer_norm(hidden, hidden.shape[-1:], encoder.layer_norm.weight, encoder.layer_norm.bias)


def test_streamed_seconds_are_what_the_library_computes_in_one_go(front_end: AudioFrontEnd) -> None:
    encoder = front_end.encoder
    encoded = run(front_end, units(murmur(12, 3)))
    frames = torch.cat(
        [encoder.convolve(unit.mel)[:, 0 if number == 0 else 1 :][:, :50] for number, unit in enumerate(encoded)], dim=1
    )
    streamed = torch.cat([unit.hidden for unit in encoded], dim=1)
    assert streamed.shape == (1, 600, 32)
    assert float((streamed - oracle(encoder, frames)).abs().max()) <= HIDDEN


def test_a_clip_is_what_the_library_computes(front_end: AudioFrontEnd) -> None:
    for seconds in (0.95, 7.33):
        encoded = front_end.encode_clip(murmur(seconds, 4))
        expected = oracle(front_end.encoder, front_end.encoder.convolve(encoded.mel))
        assert float((encoded.hidden - expected).abs().max()) <= HIDDEN
        pooled = front_end.projection(expected)[0, : len(encoded.embeds) * 5].unflatten(0, (-1, 5)).mean(dim=1)
        assert float((encoded.embeds - pooled).abs().max()) <= 1e-5


def test_a_long_clip_is_encoded_in_pieces_of_thirty_seconds(front_end: AudioFrontEnd) -> None:
    samples = murmur(33, 6)
    whole = front_end.encode_clip(samples).embeds
    pieces = [front_end.encode_clip(piece).embeds for piece in samples.split(30 * SECOND)]
    assert whole.shape == (330, 128)
    assert torch.equal(whole, torch.cat(pieces))


def test_a_clip_too_short_for_one_embedding_is_refused(front_end: AudioFrontEnd) -> None:
    assert front_end.encode_clip(murmur(0.1, 7)).embeds.shape == (1, 128)
    assert front_end.encode_clip(torch.zeros(1281)).embeds.shape == (1, 128)
    with pytest.raises(ValueError, match="a clip of 1280 samples is too short: one embedding needs 1281"):
        front_end.encode_clip(torch.zeros(1280))


def test_an_encoder_that_is_full_says_so(front_end: AudioFrontEnd) -> None:
    cache = KvCache(front_end.encoder.config, front_end.encoder.conv1.weight)
    with pytest.raises(ValueError, match="would have 1501 positions; the encoder knows 1500"):
        front_end.encoder.continue_streams(torch.zeros(1, 50, 32), [cache], [1451])


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_sessions_of_any_age_stepped_together_are_what_each_is_alone(front_end: AudioFrontEnd) -> None:
    sounds = [units(murmur(seconds, seed)) for seconds, seed in ((32, 11), (7, 12), (3, 13))]
    alone = [run(front_end, sound) for sound in sounds]
    streams = [front_end.open() for _ in sounds]
    together: list[list[EncodedAudio]] = [[] for _ in sounds]
    for number in range(len(sounds[0])):
        # The first session runs from the beginning; the others come later, go, and are listed in another order each time.
        ages = {0: number, 1: number - 24, 2: number - 29}
        present = [session for session, age in ages.items() if 0 <= age < len(sounds[session])]
        present = present[::-1] if number % 2 else present
        stepped = front_end.encode([(streams[session], sounds[session][ages[session]]) for session in present])
        for session, (stream, encoded) in zip(present, stepped, strict=True):
            streams[session] = stream
            together[session].append(encoded)
    for mine, own in zip(together, alone, strict=True):
        assert len(mine) == len(own)
        for one, other in zip(mine, own, strict=True):
            assert torch.equal(one.mel, other.mel)
            assert float((one.embeds - other.embeds).abs().max()) <= 1e-5


def test_a_stream_that_is_begun_anew_knows_nothing_of_the_old_one(front_end: AudioFrontEnd) -> None:
    old, new = units(murmur(8, 21)), units(murmur(4, 22))
    stream = front_end.open()
    for part in old:
        [(stream, _)] = front_end.encode([(stream, part)])
    fresh = run(front_end, new)
    again = run(front_end, new, front_end.reset(stream))
    for one, other in zip(fresh, again, strict=True):
        assert torch.equal(one.mel, other.mel)
        assert torch.equal(one.embeds, other.embeds)


def test_what_a_session_heard_matters_to_it(front_end: AudioFrontEnd) -> None:
    first = run(front_end, units(murmur(3, 23)))[-1]
    other = run(front_end, [*units(murmur(2, 24)), units(murmur(3, 23))[2]])[-1]
    assert float((first.embeds - other.embeds).abs().max()) > 1e-3


def test_a_unit_can_be_taken_again_from_the_state_before_it(front_end: AudioFrontEnd) -> None:
    sound = units(murmur(5, 31))
    stream = front_end.open()
    for part in sound[:4]:
        [(stream, _)] = front_end.encode([(stream, part)])
    [(_, lost)] = front_end.encode([(stream, torch.randn(SECOND) * 0.1)])
    [(after, taken)] = front_end.encode([(stream, sound[4])])
    expected = run(front_end, sound)[-1]
    assert torch.equal(taken.embeds, expected.embeds)
    assert not torch.equal(lost.embeds, expected.embeds)
    assert (stream.units, after.units) == (4, 5)


def test_a_first_unit_is_filled_up_with_silence_on_its_left(front_end: AudioFrontEnd) -> None:
    short = murmur(0.5, 41)
    [(stream, encoded)] = front_end.encode([(front_end.open(), short)])
    [(_, filled)] = front_end.encode([(front_end.open(), torch.cat([torch.zeros(16_560 - len(short)), short]))])
    assert torch.equal(encoded.embeds, filled.embeds)
    assert stream.waiting.shape == (80,)
    assert torch.equal(stream.waiting, short[-80:])


def test_sound_beyond_a_unit_waits_for_the_next_and_too_little_is_refused(front_end: AudioFrontEnd) -> None:
    sound = murmur(4, 42)
    whole = run(front_end, units(sound))
    padded = torch.cat([torch.zeros(560), sound])
    uneven = run(front_end, [padded[begin:end] for begin, end in pairwise([0, 20_000, 33_000, 48_600, 64_560])])
    assert [unit.embeds.shape for unit in uneven] == [(10, 128)] * 4
    for one, other in zip(whole, uneven, strict=True):
        assert torch.equal(one.embeds, other.embeds)
    [(stream, _)] = front_end.encode([(front_end.open(), sound[:SECOND])])
    with pytest.raises(ValueError, match="a unit needs 16000 samples; 15080 are there"):
        front_end.encode([(stream, sound[:15_000])])


def test_half_precision_stays_near(front_end: AudioFrontEnd, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("half"), TINY, seed=5)
    half = AudioFrontEnd.load(open_checkpoint(folder), dtype=torch.bfloat16, device="cpu")
    sound = units(murmur(3, 51))
    for one, other in zip(run(half, sound), run(front_end, sound), strict=True):
        assert one.embeds.dtype == torch.bfloat16
        assert float((one.embeds.float() - other.embeds).abs().max()) < 0.1
