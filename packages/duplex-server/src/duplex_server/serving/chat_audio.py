"""Speech in chat requests and answers, in OpenAI's shapes.

Owns the audio files that a request holds and an answer gives, and the words of spoken answers by the ids under which later
requests speak of them. Used by :mod:`duplex_server.serving.chat`. Decoding may take tens of milliseconds: callers do it off the
event loop. Must never keep a sound, or grow beyond its bounds.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import soxr

from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_server.audio import AudioFormatError
from duplex_server.audio.wav import read_wav, write_wav
from duplex_server.engine.chat import AUDIO_FORMAT

MAX_REMEMBERED = 1024
"""Most spoken answers that are remembered."""
REMEMBERED_S = 3600
"""How long a spoken answer is remembered, in seconds."""
OUTPUT_FORMATS = ("wav", "pcm16")
"""What an answer may be spoken in."""


def hear(data: str, kind: str, rate_hz: int, place: str) -> bytes:
    """The sound of an ``input_audio`` part: 16-bit mono PCM at the model's input rate.

    Args:
        data: the file, in base64.
        kind: what it is said to be.
        rate_hz: the model's input rate.
        place: the path of the part, for errors.

    Raises:
        DuplexError: it is not what it is said to be, or nothing that can be read here.
    """
    if kind != "wav":
        message = f"{kind} files cannot be read here; send the speech as wav"
        raise refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=f"{place}.format")
    param = f"{place}.data"
    try:
        samples, given_hz = read_wav(base64.b64decode(data, validate=True))
    except binascii.Error as exc:
        raise refuse(ErrorCode.INVALID_VALUE, f"{param} is not base64: {exc}", param=param) from None
    except AudioFormatError as exc:
        raise refuse(ErrorCode.INVALID_AUDIO, f"{param}: {exc}", param=param) from None
    if not samples.size:
        raise refuse(ErrorCode.EMPTY_AUDIO, f"{param} holds no sound", param=param)
    if given_hz != rate_hz:
        floats = soxr.resample(samples.astype(np.float32), given_hz, rate_hz, quality="HQ")
        samples = np.clip(np.rint(floats), -32768, 32767).astype(np.int16)
    pcm: bytes = samples.astype("<i2").tobytes()
    return pcm


def file_of(pcm: bytes, kind: str) -> str:
    """An answer's whole sound as the client asked for it, in base64."""
    data = write_wav(pcm, AUDIO_FORMAT.rate_hz) if kind == "wav" else pcm
    return base64.b64encode(data).decode()


class Spoken:
    """What spoken answers said, by the id that each was given, for the requests that speak of them later."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """Remember nothing yet; ``now`` is the time in seconds since 1970."""
        self._now = now
        self._said: OrderedDict[str, tuple[str, float]] = OrderedDict()

    @staticmethod
    def new_id() -> str:
        """The id of an answer that begins."""
        return f"audio_{secrets.token_hex(12)}"

    def keep(self, audio_id: str, transcript: str) -> int:
        """Remember an answer; until when, in seconds since 1970."""
        until = self._now() + REMEMBERED_S
        self._said[audio_id] = (transcript, until)
        while len(self._said) > MAX_REMEMBERED:
            self._said.popitem(last=False)
        return int(until)

    def transcript(self, audio_id: str, place: str) -> str:
        """What the answer said.

        Raises:
            DuplexError: it is not, or no more, remembered.
        """
        said, until = self._said.get(audio_id, ("", 0.0))
        if until <= self._now():
            raise _forgotten(audio_id, place)
        return said


def _forgotten(audio_id: str, place: str) -> DuplexError:
    message = (
        f"there is no answer {audio_id!r} here, or it is too long ago ({REMEMBERED_S // 60} minutes, and at most "
        f"{MAX_REMEMBERED} answers since); send what it said as the message's content"
    )
    return refuse(ErrorCode.INVALID_VALUE, message, param=f"{place}.audio.id")
