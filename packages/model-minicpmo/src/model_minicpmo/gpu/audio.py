"""The audio front end: sound in, embeddings for the language model out, ten for each second.

Owns: how a stream is cut into units, when the encoder's cache is cleared, and the way from sound to embeddings, for streams and
for clips (the reference voice, sound in a chat).
Called by: the worker of the front-end stage, which holds one `AudioStream` a session.
Never: keeps a session's state in itself, so that sessions share nothing but weights and any of them can be stepped together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_minicpmo.gpu.checkpoint import Checkpoint
from model_minicpmo.gpu.mel import CLIP, HOP, MARGIN, SAMPLE_RATE, LogMel, MelStream
from model_minicpmo.gpu.whisper import KvCache, WhisperEncoder

UNIT = SAMPLE_RATE
"""Samples of a unit but the first: one second."""
FIRST_UNIT = 1035 * SAMPLE_RATE // 1000
"""Samples that the first unit is filled up to with silence on its left, when there are fewer."""
FIRST_TAKEN = FIRST_UNIT // HOP * HOP
"""Samples that the first unit takes of them: whole frames. The rest waits for the second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioStream:
    """All state of one session's sound. A step gives another one.

    The cache is one block of memory that all states of a session write to in turn, each behind what those before it wrote:
    continue the newest one only.

    Attributes:
        cache: The encoder's keys and values.
        encoded: How many positions of the cache are filled.
        mel: The past of the spectrogram.
        waiting: Sound that no unit has taken yet, float32 [n].
        units: How many units have been encoded since the session began.
    """

    cache: KvCache
    encoded: int = 0
    mel: MelStream = field(default_factory=MelStream)
    waiting: Tensor = field(default_factory=lambda: torch.zeros(0))
    units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedAudio:
    """What a unit, or a clip, became.

    Attributes:
        embeds: For the language model, in the type and on the device of the weights, [positions, hidden size].
        mel: The frames that went into the encoder, float32 on the CPU, [1, bins, frames]; of a long clip those of its last piece.
        hidden: What came out of the encoder, [1, positions, encoder size]; of a long clip that of its last piece.
    """

    embeds: Tensor
    mel: Tensor
    hidden: Tensor


class AudioProjection(nn.Module):
    """From the encoder's size to the language model's; its parameters are named as those under `audio_projection_layer.`.

    Args:
        size: The encoder's size.
        hidden: The language model's.
    """

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(size, hidden)
        self.linear2 = nn.Linear(hidden, hidden)

    def forward(self, encoded: Tensor) -> Tensor:
        """Project [batch, positions, encoder size] to [batch, positions, hidden size]."""
        projected: Tensor = self.linear2(F.relu(self.linear1(encoded)))
        return projected


class AudioFrontEnd:
    """Encodes the sound of any number of sessions with one set of weights.

    Args:
        encoder: The Whisper encoder.
        projection: From its size to the language model's.
        pool: How many positions of the encoder are averaged into one embedding.
        block: How many positions of the encoder see each other in a clip: one unit's.
    """

    def __init__(self, *, encoder: WhisperEncoder, projection: AudioProjection, pool: int, block: int) -> None:
        self.encoder = encoder
        self.projection = projection
        self.pool = pool
        self.block = block
        self._log_mel = LogMel(encoder.config.num_mel_bins)

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device | str) -> AudioFrontEnd:
        """Load the encoder (`apm.`) and its projection (`audio_projection_layer.`) from a checkpoint.

        Raises:
            CheckpointError: A tensor is missing, unexpected, or of another shape than the configuration's.
        """
        config = checkpoint.config
        with torch.device("meta"):
            encoder = WhisperEncoder(config.audio_config)
            projection = AudioProjection(config.audio_config.d_model, config.hidden_size)
        return cls(
            encoder=checkpoint.load(encoder, "apm.", dtype=dtype, device=device),
            projection=checkpoint.load(projection, "audio_projection_layer.", dtype=dtype, device=device),
            pool=config.audio_pool_step,
            block=int(config.audio_chunk_length * SAMPLE_RATE / HOP / 2),
        )

    @property
    def shortest_clip(self) -> int:
        """How many samples a clip needs for one embedding."""
        return (2 * self.pool - 2) * HOP + 1

    def open(self) -> AudioStream:
        """Begin a stream: take memory for its cache."""
        return AudioStream(cache=KvCache(self.encoder.config, self.encoder.conv1.weight))

    def reset(self, stream: AudioStream) -> AudioStream:
        """Begin anew with the memory of an old stream: nothing of its sound has any effect any more."""
        return AudioStream(cache=stream.cache)

    def forget(self, stream: AudioStream) -> AudioStream:
        """Begin anew, and overwrite the memory: for a stream whose keys and values have become no numbers."""
        stream.cache.store.zero_()
        return self.reset(stream)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[tuple[AudioStream, Tensor]]) -> list[tuple[AudioStream, EncodedAudio]]:
        """Encode the next unit of each of several streams.

        Sound that is too short for a stream's first unit is filled up with silence on its left; sound beyond a unit waits for the
        next one.

        Args:
            inputs: Streams, no two with one cache, each with its next sound: float32 [n], 16 kHz mono, within ±1.

        Returns:
            For each, in order, the stream after it and the unit: 10 embeddings for the published sizes.

        Raises:
            ValueError: The sound of a unit that is not the first is too short, with what waited.
        """
        taken = [self._take(stream, samples) for stream, samples in inputs]
        stepped = [(stream, *self._log_mel.step(stream.mel, samples)) for stream, samples in taken]
        streams = [self._cleared(replace(stream, mel=past), mel) for stream, past, mel in stepped]
        mels = [mel for _, _, mel in stepped]
        frames = self._convolve(mels)
        hidden = self.encoder.continue_streams(
            frames, [stream.cache for stream in streams], [stream.encoded for stream in streams]
        )
        embeds = self._project(hidden)
        return [
            (
                replace(stream, encoded=stream.encoded + frames.shape[1], units=stream.units + 1),
                EncodedAudio(embeds=embeds[row], mel=mels[row], hidden=hidden[row : row + 1]),
            )
            for row, stream in enumerate(streams)
        ]

    @torch.inference_mode()
    def encode_clip(self, samples: Tensor) -> EncodedAudio:
        """Encode a whole clip: a reference voice, or sound in a chat. Pieces of 30 s are encoded each on its own.

        Args:
            samples: float32 [n], 16 kHz mono, within ±1.

        Returns:
            10 embeddings for each second, a last part of a tenth of a second counted when it is whole.

        Raises:
            ValueError: The clip is too short for one embedding.
        """
        pieces = []
        for begin in range(0, samples.shape[0], CLIP):
            mel = self._log_mel.clip(samples[begin : begin + CLIP])
            hidden = self.encoder.encode_clip(mel, block=self.block)
            if hidden.shape[1] >= self.pool:
                pieces.append(EncodedAudio(embeds=self._project(hidden)[0], mel=mel, hidden=hidden))
        if not pieces:
            raise ValueError(
                f"a clip of {samples.shape[0]} samples is too short: one embedding needs {self.shortest_clip}"
            )
        return replace(pieces[-1], embeds=torch.cat([piece.embeds for piece in pieces]))

    def _take(self, stream: AudioStream, samples: Tensor) -> tuple[AudioStream, Tensor]:
        """Take one unit's sound from what waits and what came."""
        waiting = torch.cat([stream.waiting, samples])
        wanted = UNIT
        if stream.units == 0:
            waiting = F.pad(waiting, (max(0, FIRST_UNIT - waiting.shape[0]), 0))
            wanted = FIRST_TAKEN
        elif waiting.shape[0] < UNIT:
            raise ValueError(f"a unit needs {UNIT} samples; {waiting.shape[0]} are there")
        return replace(stream, waiting=waiting[wanted:].clone()), waiting[:wanted]

    def _cleared(self, stream: AudioStream, mel: Tensor) -> AudioStream:
        """Clear the cache before it would be full, counted as the reference does: with the margins."""
        if stream.encoded + (mel.shape[2] + 1) // 2 >= self.encoder.config.max_source_positions:
            return replace(stream, encoded=0)
        return stream

    def _convolve(self, mels: Sequence[Tensor]) -> Tensor:
        """Convolve the frames of several units, those of first units apart, and cut off their margins."""
        rows: dict[int, Tensor] = {}
        for width in {mel.shape[2] for mel in mels}:
            group = [row for row, mel in enumerate(mels) if mel.shape[2] == width]
            left = (width - 2 * self.block - MARGIN) // 2  # a first unit has no margin on its left
            frames = self.encoder.convolve(torch.cat([mels[row] for row in group]))
            rows.update(zip(group, frames[:, left : left + self.block], strict=True))
        return torch.stack([rows[row] for row in range(len(mels))])

    def _project(self, hidden: Tensor) -> Tensor:
        """Project and average: [batch, positions, encoder size] to [batch, positions // pool, hidden size]."""
        return F.avg_pool1d(self.projection(hidden).transpose(1, 2), self.pool).transpose(1, 2)
