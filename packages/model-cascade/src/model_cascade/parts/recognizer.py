"""Speech recognition: Moonshine tiny-en, run directly in onnxruntime on one thread.

Owns: the greedy decoding of one utterance, and what keeps the model from inventing words. Called by: the cascade's
recognition stage, on a worker thread. Never: resamples, keeps audio between calls, or decides where an utterance ends.

onnxruntime releases the interpreter lock while it computes; what holds it is a few milliseconds of Python an utterance.
Model and facts: "Moonshine: Speech Recognition for Live Transcription and Voice Commands" (Jeffries et al., 2024); the
weights are those inside ``moonshine-voice==0.1.0``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from model_cascade.parts import weights
from model_cascade.parts.errors import Cancel, CancelledError, PartError, never

SAMPLE_RATE_HZ = 16_000
"""The rate that the model was trained for."""

Samples = npt.NDArray[np.float32]

_START, _END = 1, 2
_HEADS, _HEAD_SIZE = 8, 36
_TOKENS_PER_S = 6.5  # more than anybody speaks; the model's authors bound it so
_SILENT_PEAK = 1e-3  # -60 dBFS: below it there is nothing to recognise, and the model says "You"
_SHORTEST = SAMPLE_RATE_HZ // 2
_LONGEST = 24 * SAMPLE_RATE_HZ
_QUIET_SEARCH = 6 * SAMPLE_RATE_HZ
_QUIET_WINDOW = SAMPLE_RATE_HZ // 10
_LOOPS = 6
_INVENTED = frozenset({"you"})  # what the model makes of silence
_LEAST_CONFIDENCE = -1.0  # mean log probability a token: speech at 6 dB has -0.8 and more, noise alone -1.0 and less


class Recognizer:
    """Turns speech into text. Loading takes about 0.4 s and 170 MB; 3 s of speech take about 0.15 s on one core.

    Raises:
        WeightsError: The weights are missing or are not those that were tested.
    """

    sample_rate_hz = SAMPLE_RATE_HZ

    def __init__(self) -> None:
        self._encoder = _session(weights.verified(weights.MOONSHINE_ENCODER))
        self._decoder = _session(weights.verified(weights.MOONSHINE_DECODER))
        self._vocabulary = read_vocabulary(weights.verified(weights.MOONSHINE_TOKENIZER).read_bytes())
        self._past = [one.name for one in self._decoder.get_inputs() if one.name.startswith("past_key_values.")]
        self._outputs = [one.name for one in self._decoder.get_outputs()]

    def transcribe(self, pcm: Samples, cancelled: Cancel = never) -> str:
        """Recognise one utterance; safe to call from several threads at once.

        Args:
            pcm: Mono samples at 16 000 Hz in [-1, 1], shape ``(n,)``. Any length: what is very short is padded, what
                is longer than 24 s is recognised piece by piece, cut where it is quietest.
            cancelled: Asked before each piece and each decoding step (5 to 10 ms apart).

        Returns:
            What was said, with case and punctuation; empty for silence and noise, of which the model makes words that
            it is itself not sure of, or a lone "You".

        Raises:
            CancelledError: ``cancelled`` said so.
            PartError: The samples have another shape.
        """
        if pcm.ndim != 1:
            raise PartError(f"The recogniser takes mono samples of shape (n,), not {pcm.shape}")
        samples = np.nan_to_num(pcm.astype(np.float32, copy=False), nan=0.0, posinf=1.0, neginf=-1.0)
        texts = (self._piece(piece, cancelled) for piece in _pieces(samples))
        return " ".join(text for text in texts if text)

    def _piece(self, samples: Samples, cancelled: Cancel) -> str:
        if samples.size == 0 or float(np.abs(samples).max()) < _SILENT_PEAK:
            return ""
        if samples.size < _SHORTEST:
            samples = np.pad(samples, (0, _SHORTEST - samples.size))
        text = self._text(self._decode(samples, cancelled))
        return "" if text.strip(" .,!?").lower() in _INVENTED else text

    def _decode(self, samples: Samples, cancelled: Cancel) -> list[int]:
        """Decode greedily; the encoder's keys are computed in the first step and used in all others.

        Returns the tokens without the end; none when the model was guessing.
        """
        _check(cancelled)
        mask = np.ones((1, samples.size), np.int64)
        hidden = self._encoder.run(None, {"input_values": samples[None], "attention_mask": mask})[0]
        feed = {
            "encoder_hidden_states": hidden,
            "encoder_attention_mask": mask,
            "use_cache_branch": np.array([False]),
            "input_ids": np.array([[_START]], np.int64),
        }
        feed |= {name: np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32) for name in self._past}
        tokens: list[int] = []
        confidences: list[float] = []
        for step in range(int(samples.size / SAMPLE_RATE_HZ * _TOKENS_PER_S) + 8):
            _check(cancelled)
            out = dict(zip(self._outputs, self._decoder.run(None, feed), strict=True))
            logits = out["logits"][0, -1]
            token = int(logits.argmax())
            confidences.append(-float(np.log(np.exp(logits - logits[token]).sum())))
            if token == _END:
                break
            tokens.append(token)
            if loop := _loop(tokens):
                del tokens[len(tokens) - loop * (_LOOPS - 1) :]
                break
            for name in self._past:
                if step == 0 or ".decoder." in name:
                    feed[name] = out[name.replace("past_key_values", "present", 1)]
            feed["use_cache_branch"] = np.array([True])
            feed["input_ids"] = np.array([[token]], np.int64)
        return tokens if sum(confidences) / len(confidences) >= _LEAST_CONFIDENCE else []

    def _text(self, tokens: list[int]) -> str:
        raw = b"".join(self._vocabulary[token] for token in tokens)
        return raw.decode("utf-8", "replace").replace("\u2581", " ").strip()


def read_vocabulary(data: bytes) -> list[bytes]:
    """Read ``tokenizer.bin``: for each token its length (one byte below 128, else two, low seven bits first) and bytes."""
    tokens = []
    at = 0
    while at < len(data):
        size = data[at]
        at += 1
        if size >= 128:
            size += (data[at] - 1) * 128
            at += 1
        tokens.append(data[at : at + size])
        at += size
    return tokens


def _session(path: object) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _check(cancelled: Cancel) -> None:
    if cancelled():
        raise CancelledError("Recognition")


def _pieces(samples: Samples) -> Iterator[Samples]:
    """Cut long audio in its quietest tenth of a second, looked for in the last 6 s of each 24."""
    while samples.size > _LONGEST:
        first = _LONGEST - _QUIET_SEARCH
        windows = samples[first:_LONGEST].reshape(-1, _QUIET_WINDOW)
        quietest = int(np.square(windows).mean(axis=1).argmin())
        cut = first + quietest * _QUIET_WINDOW + _QUIET_WINDOW // 2
        yield samples[:cut]
        samples = samples[cut:]
    yield samples


def _loop(tokens: list[int]) -> int:
    """Tell how many tokens the end of the list repeats, six times in a row; 0 when it does not."""
    for size in range(1, len(tokens) // _LOOPS + 1):
        tail = tokens[-size:]
        if tokens[-size * _LOOPS :] == tail * _LOOPS:
            return size
    return 0
