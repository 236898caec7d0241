"""What travels between the cascade's session and its recogniser and its voice. Frozen values; nobody else looks inside.

The language stage is asked a :class:`~model_cascade.parts.language_model.ChatRequest` and answers with its deltas; a
:class:`Prepare` goes before, and has no answer.
"""

from __future__ import annotations

import msgspec

from model_cascade.parts.language_model import Message


class Recognize(msgspec.Struct, frozen=True, kw_only=True):
    """For the recogniser: 16-bit mono PCM at 16 kHz."""

    pcm: bytes


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """From the recogniser: the words, empty when there were none."""

    text: str


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
