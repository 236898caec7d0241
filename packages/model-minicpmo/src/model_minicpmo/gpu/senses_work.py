"""What becomes of one request to the senses, from its payload to what the thinker is given; the encoding lies between.

Owns: checking and decoding of what came, and its order. Called by: the senses' worker, which computes the pieces.
Never: encodes, or knows a slot.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from duplex_core.errors import ErrorInfo
from duplex_core.stages import Forward, LinkKind
from duplex_core.tensors import Tensor
from duplex_core.torch_tensors import as_torch, of_torch
from model_minicpmo.errors import InputError, TooLongError
from model_minicpmo.gpu.audio import UNIT
from model_minicpmo.gpu.mel import CLIP, SAMPLE_RATE
from model_minicpmo.gpu.pictures import MOST_PIXELS, Strip, decode_picture, picture_size
from model_minicpmo.gpu.recordings import decode_recording
from model_minicpmo.gpu.vision import VisionFrontEnd
from model_minicpmo.payloads import (
    Chat,
    ChatSensed,
    Open,
    Opened,
    Picture,
    Sensed,
    SensedMessage,
    SensedPart,
    Unit,
)
from model_minicpmo.slicing import plan_views
from model_minicpmo.sound import FULL_SCALE

EMBEDDING = SAMPLE_RATE // 10
"""Samples that an embedding of sound stands for."""


@dataclass(slots=True, kw_only=True)
class Piece:
    """What of a request is encoded in one step.

    Attributes:
        unit: The next sound of the slot's stream, float32 [n].
        clip: Sound on its own, float32 [n], at most 30 s.
        views: Views of pictures.
        heard: What the sound became, [positions, hidden].
        seen: What the views became, [views, 64, hidden].
    """

    unit: torch.Tensor | None = None
    clip: torch.Tensor | None = None
    views: list[Strip] = field(default_factory=list)
    heard: torch.Tensor | None = None
    seen: torch.Tensor | None = None

    @property
    def finite(self) -> bool:
        """Whether all that it became are numbers. What is none would outlive its session in the thinker's cache."""
        return all(each is None or bool(torch.isfinite(each).all()) for each in (self.heard, self.seen))


class Viewed:
    """One decoded picture: its views, and the picture that they become."""

    def __init__(self, encoded: bytes, vision: VisionFrontEnd, *, max_slices: int | None) -> None:
        """Decode a picture and cut it.

        Raises:
            ValueError: The bytes are no picture, or it cannot be shown.
        """
        picture = decode_picture(encoded)
        self.views = vision.cut(picture, max_slices=max_slices)
        self._columns = plan_views(picture.size, settings=vision.settings, max_slices=max_slices).grid[0]

    def seen(self, rows: torch.Tensor) -> Picture:
        """Give the picture from what its views became, [views, 64, hidden]."""
        whole, *slices = (of_torch(row) for row in rows)
        return Picture(whole=whole, slices=tuple(slices), columns=self._columns)


class OpenWork:
    """A session's opening: its prompt with a reference voice, its own or the checkpoint's.

    Args:
        opening: The payload.
        own: The embeddings of the checkpoint's own voice, if it has one.

    Raises:
        ValueError: The reference voice cannot be used.
    """

    def __init__(self, opening: Open, *, own: torch.Tensor | None) -> None:
        self._opening = opening
        self._own = own
        self._clip: torch.Tensor | None = None
        if opening.reference:
            self._clip = torch.from_numpy(decode_recording(opening.reference).at(SAMPLE_RATE))

    def next_piece(self) -> Piece:
        """Give the voice, if the session brings one."""
        return Piece(clip=self._clip)

    def take(self, piece: Piece) -> Forward:
        """Give what the thinker is told."""
        voice = self._own if piece.heard is None else piece.heard
        opened = Opened(
            prompt=self._opening.prompt,
            options=self._opening.options,
            reference=None if voice is None else of_torch(voice),
        )
        return Forward(kind=LinkKind.EMBEDDINGS, payload=opened)


class UnitWork:
    """One second. Pictures that cannot be shown are left out and the session is told: its sound is heard all the same.

    Args:
        unit: The payload.
        vision: Cuts its pictures.

    Raises:
        ValueError: Its sound is not one second of numbers; or a picture of it cannot be shown, and an answer to it is waited for.
    """

    def __init__(self, unit: Unit, vision: VisionFrontEnd) -> None:
        self._orders = unit.orders
        self._samples = _sound(unit.samples, what=f"the sound of unit {unit.orders.number}")
        if len(self._samples) != UNIT:
            raise ValueError(f"unit {unit.orders.number} has {len(self._samples)} samples; a unit has {UNIT}")
        self._faults: list[ErrorInfo] = []
        self._pictures: list[Viewed] = []
        left = MOST_PIXELS
        for picture in unit.pictures:
            try:
                left -= _pixels(picture, left=left)
                self._pictures.append(Viewed(picture, vision, max_slices=unit.max_slices))
            except InputError as error:
                if unit.orders.asked and unit.orders.waited_for:
                    raise
                self._faults.append(error.info)

    def next_piece(self) -> Piece:
        """Give all of it."""
        return Piece(unit=self._samples, views=[view for picture in self._pictures for view in picture.views])

    def take(self, piece: Piece) -> Forward:
        """Give what the thinker is told."""
        assert piece.heard is not None, "a unit's sound has been encoded"
        pictures = []
        begin = 0
        for picture in self._pictures:
            assert piece.seen is not None, "a unit's pictures have been encoded"
            pictures.append(picture.seen(piece.seen[begin : begin + len(picture.views)]))
            begin += len(picture.views)
        sensed = Sensed(
            orders=self._orders, audio=of_torch(piece.heard), pictures=tuple(pictures), faults=tuple(self._faults)
        )
        return Forward(kind=LinkKind.EMBEDDINGS, payload=sensed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A part of a chat that has to be encoded: the `place`-th of the message `at`. Either clips or a picture."""

    at: int
    place: int
    clips: deque[torch.Tensor]
    picture: bytes = b""


class ChatWork:
    """A chat, encoded piece by piece: 30 s of sound or a picture each.

    Args:
        chat: The payload.
        vision: Cuts its pictures.
        shortest: Samples of the shortest clip that gives an embedding.
        positions: How many positions of a context it may take; no limit when left out.

    Raises:
        ValueError: Some sound in it is too short, or no numbers; a picture is none; or all of it does not fit into a context,
            which is found before any of it is decoded.
    """

    def __init__(self, chat: Chat, vision: VisionFrontEnd, *, shortest: int, positions: int | None = None) -> None:
        if positions is not None:
            _check_room(chat, vision, positions)
        self._chat = chat
        self._vision = vision
        self._sensed: list[list[SensedPart]] = [
            [SensedPart(text=part.text) for part in message.parts] for message in chat.messages
        ]
        self._left: deque[_Left] = deque()
        self._heard: list[torch.Tensor] = []
        self._viewed: Viewed | None = None
        for at, message in enumerate(chat.messages):
            for place, part in enumerate(message.parts):
                if part.samples is not None:
                    self._left.append(_Left(at=at, place=place, clips=_clips(part.samples, shortest=shortest)))
                elif part.picture:
                    self._left.append(_Left(at=at, place=place, clips=deque(), picture=part.picture))

    def next_piece(self) -> Piece:
        """Give the next piece; nothing is in it when there is nothing to encode.

        Raises:
            ValueError: The next picture cannot be shown.
        """
        if not self._left:
            return Piece()
        part = self._left[0]
        if part.clips:
            return Piece(clip=part.clips.popleft())
        self._viewed = Viewed(part.picture, self._vision, max_slices=None)
        return Piece(views=self._viewed.views)

    def take(self, piece: Piece) -> Forward | None:
        """Take what a piece became; what the thinker is told when that was the last one."""
        if piece.heard is not None:
            self._heard.append(piece.heard)
            if not self._left[0].clips:
                self._put(SensedPart(audio=of_torch(torch.cat(self._heard))))
                self._heard = []
        elif self._viewed is not None:
            assert piece.seen is not None, "the picture's views have been encoded"
            self._put(SensedPart(picture=self._viewed.seen(piece.seen)))
            self._viewed = None
        return None if self._left else Forward(kind=LinkKind.EMBEDDINGS, payload=self._whole())

    def _put(self, sensed: SensedPart) -> None:
        part = self._left.popleft()
        self._sensed[part.at][part.place] = sensed

    def _whole(self) -> ChatSensed:
        chat = self._chat
        messages = (
            SensedMessage(role=message.role, parts=tuple(parts))
            for message, parts in zip(chat.messages, self._sensed, strict=True)
        )
        return ChatSensed(
            messages=tuple(messages),
            options=chat.options,
            max_tokens=chat.max_tokens,
            spoken=chat.spoken,
            draws=chat.draws,
        )


def _check_room(chat: Chat, vision: VisionFrontEnd, positions: int) -> None:
    """Refuse a chat whose sound and pictures alone take more positions than there are; by lengths and headers, undecoded.

    Raises:
        InputError: It is too long, or a picture is none.
    """
    taken = 0
    for part in (part for message in chat.messages for part in message.parts):
        if part.samples is not None:
            taken += part.samples.shape[0] // EMBEDDING if part.samples.shape else 0
        elif part.picture:
            views = 1 + plan_views(picture_size(part.picture), settings=vision.settings).slices
            taken += views * (vision.resampler.query.shape[0] + 2)  # an embedding each, between two marks
        if taken > positions:
            raise TooLongError(
                f"the sound and the pictures of the chat take {taken} positions or more of a context of {positions}; send less"
            )


def _pixels(picture: bytes, *, left: int) -> int:
    """How many pixels a picture has.

    Raises:
        InputError: It is none, or has more than are left for its unit.
    """
    width, height = picture_size(picture)
    if width * height > left:
        raise InputError(
            f"a picture of {width} by {height} pixels is too large beside the others of its second: {MOST_PIXELS} are the most "
            "for all of them"
        )
    return width * height


def _clips(sound: Tensor, *, shortest: int) -> deque[torch.Tensor]:
    """Cut sound into clips; a last one that is too short for an embedding is left out, as in the published code."""
    samples = _sound(sound, what="sound in the chat")
    if len(samples) < shortest:
        raise InputError(f"sound in the chat has {len(samples)} samples; to be heard it needs {shortest}, at 16 kHz")
    return deque(clip for clip in samples.split(CLIP) if len(clip) >= shortest)


def _sound(samples: Tensor, *, what: str) -> torch.Tensor:
    """Give samples as torch's floats within ±1; refuse what is no mono sound."""
    if samples.dtype not in {"float32", "int16"} or len(samples.shape) != 1:
        raise ValueError(f"{what} has to be float32 or int16 [n], not {samples.dtype} {list(samples.shape)}")
    values = as_torch(samples)
    if samples.dtype == "int16":
        return values.float() / FULL_SCALE
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{what} holds values that are no numbers")
    return values.clamp(-1.0, 1.0)
