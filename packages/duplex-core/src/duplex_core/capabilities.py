"""What a served model can do, told to clients before a session is opened and used by the machine to refuse by name."""

from __future__ import annotations

import enum

import msgspec

from duplex_core.config import Modality


class TurnPolicy(enum.Enum):
    """Who opens the model's turns."""

    COMMITTED = "committed"
    """A turn opens when input is committed (by the client or a detector) or a response is asked for."""
    MODEL = "model"
    """The model listens all the time and opens its turns itself; a commit is only a hint."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Declared by a model package, read by the machine, served at ``/v1/realtime/capabilities``.

    ``input_rate_hz`` and ``output_rate_hz`` are the model's own rates; the server resamples both ways.
    ``semantic_vad`` is for the server to say, which serves it for every model; a package leaves it as it is.
    ``voices`` lists the names that ``voice`` may take, the first being the default; empty means that there is no choice.
    ``chat`` says that chat requests are answered, in writing; ``chat_audio_input`` and ``chat_image_input`` that one may hold
    speech or pictures, ``chat_audio_output`` that its answer may be spoken. They are apart from what sessions can do.
    ``out_of_band`` says that a response may leave the conversation alone (``conversation: "none"``) or be made from other items
    (``input``): a model that keeps one context for the whole session cannot forget such a response again, and says no.
    ``fixed_after_start`` names fields of :class:`~duplex_core.config.SessionConfig` that cannot change once the model has
    begun: with the first sound, picture or streamed text, or the first response. Until then each change is told
    (:class:`~duplex_core.model.Configured`), so that a model which prepares at the first one prepares anew.
    ``input_cancel`` says that ``input.cancel`` is taken: that all of the user's input which is not committed can be forgotten. A
    model that takes sound in as it comes says no.
    """

    turn_policy: TurnPolicy = TurnPolicy.COMMITTED
    input_rate_hz: int = 16000
    output_rate_hz: int = 24000
    output_modalities: tuple[Modality, ...] = (Modality.AUDIO, Modality.TEXT)
    text_input: bool = True
    image_input: bool = False
    video_input: bool = False
    text_stream_input: bool = False
    tools: bool = False
    input_transcription: bool = False
    instructions: bool = True
    temperature: bool = False
    speed: bool = False
    chat: bool = False
    chat_audio_input: bool = False
    chat_audio_output: bool = False
    chat_image_input: bool = False
    semantic_vad: bool = False
    barge_in_signal: bool = True
    turn_signal: bool = True
    input_cancel: bool = True
    out_of_band: bool = True
    voices: tuple[str, ...] = ()
    fixed_after_start: tuple[str, ...] = ()
