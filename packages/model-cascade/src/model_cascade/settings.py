"""The cascade's deploy settings and session options, validated before anything loads.

Read by the server from the deploy file, ``--set`` and the environment. A wrong key or value is refused by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

import pydantic

VOICES = ("joe", "nano", "nano-gb")
"""Voices that come with the package; see :mod:`model_cascade.parts.voices`."""
_IMPORT_PATH = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")

DEFAULT_INSTRUCTIONS = "You are a friendly voice assistant. Answer in one or two short sentences."


def _part(known: tuple[str, ...]) -> pydantic.AfterValidator:
    def check(value: str) -> str:
        if value in known or _IMPORT_PATH.match(value):
            return value
        raise ValueError(
            f"{value!r} is neither one of {', '.join(known)} nor an import path like package.module:factory"
        )

    return pydantic.AfterValidator(check)


def _listed(value: object) -> object:
    """A list that somebody wrote as text: one name, or several with commas between them."""
    if not isinstance(value, str):
        return value
    return [name for name in map(str.strip, value.split(",")) if name]


Recognizer = Annotated[str, _part(("moonshine",))]
Voice = Annotated[str, _part(VOICES)]
Voices = Annotated[tuple[Voice, ...], pydantic.BeforeValidator(_listed)]


class LanguageModelSettings(pydantic.BaseModel):
    """Which language model answers.

    ``smollm2`` is SmolLM2-135M, whose weights come inside this package: fluent, small and **often wrong**. ``openai`` is any
    OpenAI-compatible chat endpoint, for which ``base_url`` and ``model`` are needed.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    provider: Literal["smollm2", "openai"] = "smollm2"
    base_url: pydantic.HttpUrl | None = None
    api_key: pydantic.SecretStr | None = None
    model: str | None = None
    temperature: float = pydantic.Field(default=0.2, ge=0.0, le=2.0)
    max_tokens: int = pydantic.Field(default=96, ge=1, le=4096)
    timeout_s: float = pydantic.Field(default=30.0, gt=0.0, le=600.0)

    @pydantic.model_validator(mode="after")
    def _complete(self) -> Self:
        given = [name for name in ("base_url", "api_key", "model") if getattr(self, name) is not None]
        if self.provider == "smollm2" and given:
            raise ValueError(f"{', '.join(given)} belong to provider 'openai'; set language_model.provider=openai")
        if self.provider == "openai" and (self.base_url is None or self.model is None):
            raise ValueError("provider 'openai' needs base_url and model")
        return self


class CascadeSettings(pydantic.BaseModel):
    """Deploy settings of the cascade.

    Attributes:
        recognizer: ``moonshine``, or an import path of a factory of :class:`~model_cascade.stages.recognizer.Hears`.
        voices: voices to load, the first being the default; names, or import paths of factories of
            :class:`~model_cascade.parts.voices.Voice`. A list, or text with commas.
        language_model: which language model answers.
        instructions: the default system prompt.
        silence_ms: silence that ends a turn, unless the session says otherwise.
        speculate: begin an answer at a pause, before the turn is known to be over; costs CPU, saves the hangover.
        sessions_at_once: how many sessions each stage works on at the same time.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    recognizer: Recognizer = "moonshine"
    voices: Voices = pydantic.Field(default=("joe", "nano"), min_length=1)
    language_model: LanguageModelSettings = LanguageModelSettings()
    instructions: str = DEFAULT_INSTRUCTIONS
    silence_ms: int = pydantic.Field(default=500, ge=100, le=5000)
    speculate: bool = True
    sessions_at_once: int = pydantic.Field(default=1, ge=1, le=64)

    @pydantic.field_validator("voices")
    @classmethod
    def _distinct(cls, voices: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(voices)) != len(voices):
            raise ValueError("a voice is named twice")
        return voices
