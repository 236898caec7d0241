"""Conversation items, in the shape of the GA Realtime protocol.

Items are what a history is made of: messages, function calls and their outputs. Owned by the session machine, read by
model sessions and serving. Audio inside an item is plain 16-bit PCM ``bytes``; base64 exists only on the wire.
"""

from __future__ import annotations

import base64
import enum

import msgspec


class Role(enum.Enum):
    """Who a message is from."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"


class ItemStatus(enum.Enum):
    """Whether an item is whole. ``incomplete`` is what an interruption leaves."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    IN_PROGRESS = "in_progress"


class InputText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input_text"):
    """Text from the user or the system."""

    text: str


class InputAudio(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="input_audio",
):
    """Speech from the user. ``transcript`` is ``None`` until recognised.

    ``audio`` is in the session's input format on the wire, and 16-bit mono PCM at the model's input rate inside the engine;
    the runner converts.
    """

    audio: bytes | None = None
    transcript: str | None = None


class InputImage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="input_image",
):
    """An image as a ``data:`` URL (JPEG or PNG)."""

    image_url: str
    detail: str | None = None


class OutputText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="output_text"):
    """Text of the assistant."""

    text: str


class OutputAudio(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="output_audio",
):
    """Speech of the assistant with its transcript."""

    audio: bytes | None = None
    transcript: str | None = None


ContentPart = InputText | InputAudio | InputImage | OutputText | OutputAudio


class MessageItem(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag="message"
):
    """One utterance of one speaker."""

    role: Role
    content: tuple[ContentPart, ...]
    id: str | None = None
    status: ItemStatus | None = None
    object: str | None = None


class FunctionCallItem(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="function_call",
):
    """The model asks for a tool. ``arguments`` is JSON text."""

    name: str
    arguments: str
    call_id: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    object: str | None = None


class FunctionCallOutputItem(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="function_call_output",
):
    """What a tool gave back, joined to its call by ``call_id``."""

    call_id: str
    output: str
    id: str | None = None
    status: ItemStatus | None = None
    object: str | None = None


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem

_ALLOWED_PARTS: dict[Role, tuple[type, ...]] = {
    Role.USER: (InputText, InputAudio, InputImage),
    Role.SYSTEM: (InputText,),
    Role.ASSISTANT: (OutputText, OutputAudio),
}


def misplaced_part(item: Item) -> int | None:
    """Index of the first content part that the item's role cannot have, or ``None`` when all fit."""
    if not isinstance(item, MessageItem):
        return None
    allowed = _ALLOWED_PARTS[item.role]
    return next((index for index, part in enumerate(item.content) if not isinstance(part, allowed)), None)


def part_text(part: ContentPart) -> str:
    """The words of one content part; an image or unrecognised audio has none."""
    if isinstance(part, InputText | OutputText):
        return part.text
    if isinstance(part, InputAudio | OutputAudio):
        return part.transcript or ""
    return ""


def item_text(item: Item) -> str:
    """The words of an item, for a model that reads text: messages joined, calls and outputs verbatim."""
    if isinstance(item, MessageItem):
        return " ".join(text for part in item.content if (text := part_text(part)))
    return item.arguments if isinstance(item, FunctionCallItem) else item.output


def picture_bytes(image_url: str) -> bytes:
    """The file in a picture's ``data:`` URL.

    Raises:
        ValueError: it is none, or its contents are empty or not base64; the message says so to whoever sent it.
    """
    kind, _, content = image_url.partition(",")
    if not kind.startswith("data:image/") or not kind.endswith(";base64"):
        raise ValueError("an image must be a data: URL with a picture in base64; this server fetches nothing")
    try:
        data = base64.b64decode(content, validate=True)
    except ValueError as exc:
        raise ValueError(f"the data: URL of an image is not base64: {exc}") from None
    if not data:
        raise ValueError("the data: URL of an image has nothing in it; put the picture behind the comma, in base64")
    return data
