"""What `session.options` may hold, and what it becomes for the stages. Validated by the engine, before a session sees it.

Types are strict: a number is no text and no boolean. With every value within the bounds an answer consists of words and ends.

Owns the names, the defaults and the bounds. Defaults are the published ones (the vendor's demo server), except that nothing cuts
a unit's text short: the demo's limit of 28 characters is an option.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

import pydantic

from model_minicpmo.payloads import LEAST_TEMPERATURE, Options
from model_minicpmo.voice_file import open_recording

MAX_VOICE_BYTES = 8 * 1024 * 1024
"""Most bytes of a reference voice."""
LEAST_CHARS = 8
"""A smaller limit of a unit's characters would leave room for hardly a word."""


def _voice(value: str | None) -> str | None:
    """Refuse what its header shows to be no voice. Its sound is decoded when the session begins, and may be refused then."""
    if value is None:
        return None
    try:
        content = base64.b64decode(value.partition(",")[2] if value.startswith("data:") else value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be a wav or flac file in base64, or a data: URL of one") from None
    if not content.startswith((b"RIFF", b"fLaC")):
        raise ValueError("must be a wav or flac file in base64, or a data: URL of one")
    if len(content) > MAX_VOICE_BYTES:
        raise ValueError(f"has {len(content)} bytes; a reference voice may have {MAX_VOICE_BYTES}")
    with open_recording(content):
        return value


def _char_limit(value: int) -> int:
    if 0 < value < LEAST_CHARS:
        raise ValueError(f"must be 0, which is no limit, or at least {LEAST_CHARS}")
    return value


class SessionOptions(pydantic.BaseModel):
    """The options of one session.

    Attributes:
        reference_audio: whose voice to speak with: a wav or flac file in base64; the checkpoint's own when left out.
        system_prompt: stands before the voice in the prompt; `session.instructions` when left out.
        forced_listen: so many units (seconds) at the beginning are listened to, whatever is in them.
        greedy: take the most probable token each time.
        temperature: of the words; `greedy` is for no lots at all.
        top_k: words are drawn from so many.
        top_p: words are drawn from the most probable ones of this probability.
        repetition_penalty: makes words that were said less probable.
        length_penalty: above 1 makes turns longer.
        listen_scale: above 1 makes listening more probable where the model may choose.
        char_limit: end the text of a unit before so many characters, but not before its first token; 0 is no limit, 28 is the
            vendor's demo.
        tts_temperature: of the voice.
        tts_repetition_penalty: of the voice.
        seed: fixes all that is drawn; drawn itself when left out.
        window: what is kept when the context has grown: `context`, `basic`, or `off`.
        high_tokens: with `basic`, so many positions are too many.
        low_tokens: with `basic`, so many may be left then.
        context_units: with `context`, so many units (seconds) stay.
        previous_tokens: with `context`, so many tokens of what was said before are remembered.
        max_slices: into how many slices a large picture is cut.
        pictures_per_unit: how many pictures of a second are looked at, the latest ones.
        interruption: what an interruption does: `close` makes the next unit listen and closes the turn, of which nothing is
            remembered; `keep_talker` is the vendor's demo, whose talker speaks the next turn as if it went on with this one;
            `drop_unit` is the vendor's published class, which does not take the next unit in and leaves the model's turn open.
        patience_ms: for how long after the last audio the model goes on listening to silence, when nobody waits for it.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    reference_audio: Annotated[str | None, pydantic.AfterValidator(_voice)] = None
    system_prompt: str | None = pydantic.Field(default=None, max_length=20_000)
    forced_listen: int = pydantic.Field(default=0, ge=0, le=60)
    greedy: bool = False
    temperature: float = pydantic.Field(default=0.7, ge=LEAST_TEMPERATURE, le=2.0)
    top_k: int = pydantic.Field(default=20, ge=0, le=1000)
    top_p: float = pydantic.Field(default=0.8, ge=0.01, le=1.0)
    repetition_penalty: float = pydantic.Field(default=1.05, ge=1.0, le=1.5)
    length_penalty: float = pydantic.Field(default=1.1, ge=0.5, le=2.0)
    listen_scale: float = pydantic.Field(default=1.0, ge=0.01, le=100.0)
    char_limit: Annotated[int, pydantic.AfterValidator(_char_limit)] = pydantic.Field(default=0, ge=0, le=1000)
    tts_temperature: float = pydantic.Field(default=0.8, ge=LEAST_TEMPERATURE, le=2.0)
    tts_repetition_penalty: float = pydantic.Field(default=1.05, ge=1.0, le=1.5)
    seed: int | None = pydantic.Field(default=None, ge=0, lt=2**63)
    window: Literal["off", "basic", "context"] = "context"
    high_tokens: int = pydantic.Field(default=4000, ge=64, le=1_000_000)
    low_tokens: int = pydantic.Field(default=3500, ge=32, le=1_000_000)
    context_units: int = pydantic.Field(default=24, ge=1, le=600)
    previous_tokens: int = pydantic.Field(default=500, ge=0, le=4000)
    max_slices: int = pydantic.Field(default=1, ge=1, le=9)
    pictures_per_unit: int = pydantic.Field(default=1, ge=0, le=4)
    interruption: Literal["close", "keep_talker", "drop_unit"] = "close"
    patience_ms: float = pydantic.Field(default=3000.0, ge=0.0, le=60_000.0)

    @pydantic.model_validator(mode="after")
    def _falls(self) -> SessionOptions:
        if self.low_tokens >= self.high_tokens:
            raise ValueError(f"low_tokens {self.low_tokens} must be less than high_tokens {self.high_tokens}")
        return self


def for_stages(chosen: SessionOptions, *, seed: int) -> Options:
    """What the stages are told of a session's options; `seed` stands for one that was left out."""
    return Options(
        greedy=chosen.greedy,
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        repetition_penalty=chosen.repetition_penalty,
        length_penalty=chosen.length_penalty,
        listen_scale=chosen.listen_scale,
        char_limit=chosen.char_limit,
        tts_temperature=chosen.tts_temperature,
        tts_repetition_penalty=chosen.tts_repetition_penalty,
        seed=seed if chosen.seed is None else chosen.seed,
        window=chosen.window,
        high_tokens=chosen.high_tokens,
        low_tokens=chosen.low_tokens,
        context_units=chosen.context_units,
        previous_tokens=chosen.previous_tokens,
        interruption=chosen.interruption,
    )
