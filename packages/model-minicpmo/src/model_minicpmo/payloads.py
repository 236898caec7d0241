"""What passes between a conversation and the stages, and from stage to stage: the only types that all of them know.

Owns these values. Made and read by the session (sans-I/O), the workers of the stages and the tests; sent between processes as
they are. Holds no rule and imports nothing heavy.

The way of a unit: session -> ``senses`` (:class:`Unit`) -> ``thinker`` (:class:`Sensed`) -> session (:class:`Decided`) and,
when it speaks or a turn ends, ``talker`` (:class:`Said`) -> ``voice`` (:class:`Codes`) -> session (:class:`Sound`). The way of a
chat request is the same, with :class:`Chat` and :class:`ChatSensed` in place of the first two and :class:`Written` in place of
the third.
"""

from __future__ import annotations

from typing import Any

import msgspec

from duplex_core.errors import ErrorInfo
from duplex_core.tensors import Tensor

SENSES = "senses"
THINKER = "thinker"
TALKER = "talker"
VOICE = "voice"
LEAST_TEMPERATURE = 0.01
"""Logits are divided by nothing smaller."""


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """Uniform numbers in [0, 1) that stand for a generator's, in the order in which they are used; for tests."""

    llm: tuple[float, ...] = ()
    tts: tuple[float, ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the session's options say about thinking and speaking; see :mod:`model_minicpmo.options` for each.

    ``char_limit``: end a unit's text before so many characters; 0 has no limit (the published class), 28 is the vendor's demo.
    ``interruption``: a value of :class:`~model_minicpmo.rules.turn.Interruption`.
    """

    greedy: bool = False
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 0.8
    repetition_penalty: float = 1.05
    repetition_window: int = 512
    length_penalty: float = 1.1
    listen_scale: float = 1.0
    max_tokens: int = 20
    char_limit: int = 0
    tts_temperature: float = 0.8
    tts_repetition_penalty: float = 1.05
    seed: int = 0
    window: str = "context"
    high_tokens: int = 4000
    low_tokens: int = 3500
    context_units: int = 24
    previous_tokens: int = 500
    interruption: str = "close"


# -- a session's opening ----------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To ``senses``, before the first unit: the system prompt and the reference voice, a wav or flac file.

    Without ``reference`` the checkpoint's own default voice is taken.
    """

    prompt: str
    options: Options
    reference: bytes = b""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``senses`` to ``thinker``: the prompt, and the reference voice's embeddings ``[n, hidden]``, if it has one."""

    prompt: str
    options: Options
    reference: Tensor | None = None


class Voice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To ``voice``, before the first unit: whose voice to speak with, a wav or flac file; none is the checkpoint's own."""

    reference: bytes = b""
    seed: int = 0


# -- a unit -----------------------------------------------------------------------------------------------------------


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the session says about a unit.

    Attributes:
        number: its number, from 0.
        forced: listen, whatever is in it.
        ends_turn: with ``forced``, in a turn that is open: close it first (``<|turn_eos|>`` is fed), since it was interrupted.
        text: words to take in before the audio (a text-seeded turn, and an answer's own instructions).
        asked: an answer is waited for: listening is not allowed.
        waited_for: what is in it was given for an answer: where it fits into no context it is refused, and else its pictures are
            left out.
        temperature: of the unit's words, when it is not the options'; 0 is greedy.
        most_tokens: text tokens that the unit may have at most; with them the turn ends. ``None`` is no limit.
        draws: for tests.
    """

    number: int
    forced: bool = False
    ends_turn: bool = False
    text: str = ""
    asked: bool = False
    waited_for: bool = False
    temperature: float | None = None
    most_tokens: int | None = None
    draws: Draws | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To ``senses``: 1 s of sound and what was seen at its beginning.

    ``samples``: float32 ``[16000]`` at 16 kHz. ``pictures``: JPEG or PNG files. ``max_slices``: slices of each picture at most.
    """

    orders: Orders
    samples: Tensor
    pictures: tuple[bytes, ...] = ()
    max_slices: int = 1


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One picture as the model sees it: the whole and its slices, row by row; each ``[64, hidden]``."""

    whole: Tensor
    slices: tuple[Tensor, ...] = ()
    columns: int = 0


class Sensed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``senses`` to ``thinker``: the unit's embeddings, ``audio`` ``[10, hidden]``.

    ``faults`` say why pictures of it were left out; they go to the session, with :class:`Decided`.
    """

    orders: Orders
    audio: Tensor
    pictures: tuple[Picture, ...] = ()
    faults: tuple[ErrorInfo, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``thinker`` to the session: what came of a unit.

    Attributes:
        number: of the unit.
        listens: whether nothing is said in it.
        text: what is said in it.
        tokens: how many text tokens that is.
        ends_turn: whether the turn is over with it.
        cut: whether the turn is over because it had as many tokens as it might.
        ids: all ids chosen in it, with the one that ended it.
        context: positions in the context now.
        dropped_units: units that the window has dropped so far.
        faults: why pictures of it were left out.
    """

    number: int
    listens: bool
    text: str = ""
    tokens: int = 0
    ends_turn: bool = False
    cut: bool = False
    ids: tuple[int, ...] = ()
    context: int = 0
    dropped_units: int = 0
    faults: tuple[ErrorInfo, ...] = ()


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``thinker`` to ``talker``: the words of a unit, or of an answer in chat.

    Attributes:
        number: of the unit.
        ids: text ids that are to be heard, ``[n]``; may be empty.
        hidden: last hidden states at these ids, float32 ``[n, llm hidden]``.
        opens_turn: whether a turn begins with it.
        ends_turn: whether it ends the turn.
        abandoned: the turn is over and nothing of it is to be heard any more: forget it, unless the options say otherwise.
        chat: an answer in chat, not a unit.
        draws: for tests.
    """

    number: int
    ids: tuple[int, ...]
    hidden: Tensor | None
    opens_turn: bool = False
    ends_turn: bool = False
    abandoned: bool = False
    chat: bool = False
    options: Options = Options()
    draws: Draws | None = None


class Codes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``talker`` to ``voice``: audio codes, 25 a second."""

    number: int
    codes: tuple[int, ...]
    ends_turn: bool = False
    abandoned: bool = False
    chat: bool = False


class Sound(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``voice`` to the session: 24 kHz 16-bit mono, what there is of the unit's sound."""

    number: int
    pcm: bytes
    ends_turn: bool = False


# -- chat -------------------------------------------------------------------------------------------------------------


class ChatPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message: text, 16 kHz sound ``[samples]`` in float32 or int16, or a picture file."""

    text: str = ""
    samples: Tensor | None = None
    picture: bytes = b""


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    parts: tuple[ChatPart, ...]


class Chat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To ``senses``: a chat to answer, in text, and in sound when ``spoken``."""

    messages: tuple[ChatMessage, ...]
    options: Options
    max_tokens: int = 1024
    spoken: bool = False
    draws: Draws | None = None


class SensedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message as the model takes it in: text, sound ``[n, hidden]``, or a picture."""

    text: str = ""
    audio: Tensor | None = None
    picture: Picture | None = None


class SensedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    parts: tuple[SensedPart, ...]


class ChatSensed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``senses`` to ``thinker``: the chat with its embeddings."""

    messages: tuple[SensedMessage, ...]
    options: Options
    max_tokens: int
    spoken: bool
    draws: Draws | None = None


class Written(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``thinker`` to the chat: more of the answer's text; the last has ``done``, and the counts of tokens."""

    text: str
    done: bool = False
    cut: bool = False
    input_tokens: int = 0
    output_tokens: int = 0


Payload = Open | Opened | Voice | Unit | Sensed | Decided | Said | Codes | Sound | Chat | ChatSensed | Written
"""Every payload of every stage of this model: what :attr:`duplex_core.stages.StageSpec.payloads` names."""

PAYLOADS = "model_minicpmo.payloads:Payload"


def at_temperature(options: Options, temperature: float) -> Options:
    """The same options with another temperature of the words; 0, and what is too little to divide by, is greedy."""
    if temperature < LEAST_TEMPERATURE:
        return msgspec.structs.replace(options, greedy=True)
    return msgspec.structs.replace(options, greedy=False, temperature=temperature)


def plain(options: Options) -> dict[str, Any]:
    """Options as plain values, for a decider."""
    fields: dict[str, Any] = msgspec.structs.asdict(options)
    return fields
