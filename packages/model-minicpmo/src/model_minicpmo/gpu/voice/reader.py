"""Reads a reference voice: a recording becomes audio codes, mel frames and a speaker vector.

Owns: the two ONNX models of `assets/token2wav`, how they are called, and how their results are brought together.
Called by: the worker of the stage that gives answers their voice, when a session brings a voice or begins with the
checkpoint's own. Never: decodes a file, keeps a recording, or fetches a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from model_minicpmo.errors import CheckpointError, RecordingError
from model_minicpmo.gpu.token2wav.flow import Voice
from model_minicpmo.gpu.voice.resample import resample
from model_minicpmo.gpu.voice.spectra import PROMPT_RATE, SPEECH_RATE, prompt_frames, speaker_frames, speech_frames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from model_minicpmo.gpu.checkpoint import Token2WavFiles

SHORTEST_S = 0.5
"""The shortest recording that tells a voice, in seconds."""
LONGEST_S = 30.0
"""The longest recording that the speech tokenizer takes at once, in seconds."""
_FRAMES_A_CODE = 2
# What onnxruntime raises for a file that is no model, or one that it cannot run.
_NOT_LOADED = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NoModel,
    errors.NotImplemented,
    errors.RuntimeException,
)


class VoiceReader:
    """The speech tokenizer and the speaker model, each on one CPU thread."""

    def __init__(self, files: Token2WavFiles) -> None:
        """Load the two.

        Args:
            files: where they are.

        Raises:
            CheckpointError: one is missing, is no ONNX model, or takes other inputs than the published one.
        """
        folder = files.description.parent
        self._tokenizer = _Model(files.speech_tokenizer or folder / "speech_tokenizer_v2_25hz.onnx", inputs=2)
        self._speaker = _Model(files.speaker_model or folder / "campplus.onnx", inputs=1)

    def read(self, samples: NDArray[np.float32], *, rate: int) -> Voice:
        """Turn a recording into a voice.

        Args:
            samples: [n], mono, within ±1.
            rate: its sample rate in Hz.

        Returns:
            The voice: 25 codes and 50 mel frames a second of it, and its speaker vector; float32, on the CPU.

        Raises:
            RecordingError: it is too short, too long, or holds something else than numbers within a sound's range.
        """
        _check(samples, rate)
        speech = resample(samples, rate=rate, to=SPEECH_RATE)
        codes = self._codes(speech_frames(speech))
        vector = self._speaker.run(speaker_frames(speech)[None]).reshape(-1)
        frames = prompt_frames(resample(samples, rate=rate, to=PROMPT_RATE))
        if not (np.isfinite(vector).all() and np.isfinite(frames).all()):
            message = "the reference voice gives features that are no numbers: is it sound within ±1?"
            raise RecordingError(message)
        return Voice(
            codes=torch.from_numpy(codes),
            mel=torch.from_numpy(_as_long_as(frames, _FRAMES_A_CODE * len(codes))),
            speaker=torch.from_numpy(vector.astype(np.float32)),
        )

    def _codes(self, frames: NDArray[np.float32]) -> NDArray[np.int64]:
        length = np.array([frames.shape[1]], dtype=np.int32)
        codes = self._tokenizer.run(frames[None], length).reshape(-1).astype(np.int64)
        if not len(codes):
            message = (
                "the speech tokenizer found no speech token in the reference voice: is it long enough, and speech?"
            )
            raise RecordingError(message)
        return codes


class _Model:
    """One ONNX model, its inputs taken in the order in which it names them."""

    def __init__(self, path: Path, *, inputs: int) -> None:
        if not path.is_file():
            problem = "is missing; without it no reference voice can be read. It belongs to the published checkpoint"
            raise CheckpointError(path, problem)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except _NOT_LOADED as error:
            raise CheckpointError(path, f"cannot be loaded as an ONNX model ({_first_line(error)})") from error
        self._names = [node.name for node in self._session.get_inputs()]
        if len(self._names) != inputs:
            problem = f"takes the inputs {self._names}; the published model takes {inputs}"
            raise CheckpointError(path, problem)

    def run(self, *values: NDArray[np.generic]) -> NDArray[np.generic]:
        fed: Mapping[str, NDArray[np.generic]] = dict(zip(self._names, values, strict=True))
        return np.asarray(self._session.run(None, fed)[0])


def _check(samples: NDArray[np.float32], rate: int) -> None:
    if samples.ndim != 1 or rate < 1:
        message = f"a reference voice has to be mono at a rate above 0 Hz, not {list(samples.shape)} at {rate} Hz"
        raise RecordingError(message)
    seconds = len(samples) / rate
    if not SHORTEST_S <= seconds <= LONGEST_S:
        message = (
            f"the reference voice lasts {seconds:.2f} s; it has to last between {SHORTEST_S:g} and {LONGEST_S:g} s"
        )
        raise RecordingError(message)
    if not np.isfinite(samples).all():
        message = "the reference voice holds values that are no numbers"
        raise RecordingError(message)


def _as_long_as(frames: NDArray[np.float32], wanted: int) -> NDArray[np.float32]:
    """Cut mel frames [n, bins] to as many as the codes stand for, or repeat the last one until there are so many."""
    missing = max(0, wanted - len(frames))
    return np.pad(frames, ((0, missing), (0, 0)), mode="edge")[:wanted]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
