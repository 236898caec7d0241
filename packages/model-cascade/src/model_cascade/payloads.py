"""What travels between the cascade's session and its stages. Frozen values; nobody else looks inside.

The recogniser's stage is asked a :class:`~duplex_core.transcribing.Recognize` and answers with a
:class:`~duplex_core.transcribing.Recognized`, as every transcriber does, so it serves other models too. The language stage is
asked a :class:`~model_cascade.parts.language_model.ChatRequest` and answers with its deltas; a :class:`Prepare` goes before, and
has no answer.
"""

from __future__ import annotations

import msgspec

from model_cascade.parts.language_model import Message

RECOGNIZER = "recognizer"
"""The recogniser's stage in the cascade's plan."""
INPUT_RATE_HZ = 16000
"""What the cascade hears."""


class Utter(msgspec.Struct, frozen=True, kw_only=True):
    """For the voice: speak one clause."""

    text: str
    voice: str


class Uttered(msgspec.Struct, frozen=True, kw_only=True):
    """From the voice: the clause as 16-bit mono PCM at the cascade's output rate; empty when there is nothing to say."""

    pcm: bytes


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """For the language model: read this much of the conversation ahead, so that the next answer begins sooner."""

    messages: tuple[Message, ...]
