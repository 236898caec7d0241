"""The body of ``POST /v1/chat/completions``, and what it asks the engine for.

Owns the fields of OpenAI's chat requests: those that are served, those that are known and change nothing, those that are
refused by name because ignoring them would give another answer than was asked for. Called by
:mod:`duplex_server.serving.chat`. An unknown field is refused by name too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from duplex_core.capabilities import Capabilities
from duplex_core.config import FunctionTool, Modality, ToolChoice, ToolFunction, ToolMode
from duplex_core.errors import DuplexError, ErrorCode, refuse
from duplex_core.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    picture_bytes,
)
from duplex_core.patch import MAX_OUTPUT_TOKENS, OPENAI_VOICES
from duplex_server.engine.chat import ChatRequest
from duplex_server.serving.chat_audio import OUTPUT_FORMATS, Spoken, hear


class _Body(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPart(_Body):
    """Text in a message."""

    type: Literal["text"]
    text: str


class ImageUrl(_Body):
    """Where an image is."""

    url: str
    detail: str | None = None


class ImagePart(_Body):
    """An image in a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class AudioData(_Body):
    """Speech, as a file in base64."""

    data: str
    format: str


class AudioPart(_Body):
    """Speech in a message."""

    type: Literal["input_audio"]
    input_audio: AudioData


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]


class FunctionCall(_Body):
    """The function that the assistant asked for."""

    name: str
    arguments: str


class AskedCall(_Body):
    """One tool call of an assistant's message."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class SystemMessage(_Body):
    """Instructions."""

    role: Literal["system", "developer"]
    content: str | list[TextPart]
    name: str | None = None


class UserMessage(_Body):
    """What the user said."""

    role: Literal["user"]
    content: str | list[Part]
    name: str | None = None


class SpokenAnswer(_Body):
    """An earlier answer that was spoken: by its id, or with all that was told of it then."""

    id: str
    transcript: str | None = None
    data: str | None = None
    expires_at: int | None = None


class AssistantMessage(_Body):
    """What the assistant said, and the tools that it called."""

    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: list[AskedCall] | None = None
    audio: SpokenAnswer | None = None
    name: str | None = None
    refusal: str | None = None


class ToolMessage(_Body):
    """What a tool gave back."""

    role: Literal["tool"]
    tool_call_id: str
    content: str | list[TextPart]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionSchema(_Body):
    """A function that the client offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    """A tool that the client offers."""

    type: Literal["function"]
    function: FunctionSchema


class NamedFunction(_Body):
    """A function by name."""

    name: str


class NamedTool(_Body):
    """A tool by name."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(_Body):
    """How a stream is written."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class VoiceId(_Body):
    """A voice in the long form."""

    id: str


class AudioOutput(_Body):
    """How an answer is spoken."""

    voice: str | VoiceId
    format: str


class ChatCompletionRequest(_Body):
    """The body of a chat request."""

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOutput | None = None
    # known, and without influence on the answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # known, and served only where they ask for nothing
    n: int | None = None
    stop: str | list[str] | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None


_NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ("", []),
    "top_p": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "seed": (),
    "response_format": ({"type": "text"},),
    "reasoning_effort": ("none",),
}
"""Fields that cannot be served, with the values that ask for nothing; absent and ``null`` ask for nothing anyway."""


_SPOKEN_IN = OPENAI_VOICES | {"fable", "nova", "onyx"}
"""Voices of OpenAI's, which stock clients name unasked: each means the default voice."""


def to_request(body: ChatCompletionRequest, can: Capabilities, spoken: Spoken) -> ChatRequest:
    """What the engine is asked for. Decodes the speech that the request holds, which takes its time.

    Args:
        body: the request.
        can: what the served model can do.
        spoken: earlier answers.

    Raises:
        DuplexError: a field that cannot be served, by name.
    """
    _check_fields(body, can)
    instructions, messages = _split_instructions(body.messages)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    history = tuple(item for index, message in messages for item in _Reader(can, spoken, index).items(message))
    if not history:
        message = "messages must hold something to answer besides instructions"
        raise refuse(ErrorCode.INVALID_VALUE, message, param="messages")
    return ChatRequest(
        history=history,
        modality=Modality.AUDIO if body.modalities and "audio" in body.modalities else Modality.TEXT,
        voice=_voice(body, can),
        instructions=instructions,
        tools=tuple(_tool(tool) for tool in body.tools or ()),
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=body.temperature,
        max_output_tokens=limit,
    )


def _check_fields(body: ChatCompletionRequest, can: Capabilities) -> None:
    for name, harmless in _NOTHING_ASKED.items():
        value = getattr(body, name)
        if value is not None and value not in harmless:
            raise _unserved(name, f"{name} cannot be served here; leave it out")
    if body.temperature is not None and not can.temperature:
        raise _unserved("temperature", "the served model has no temperature; leave it out")
    if body.tools and not can.tools:
        raise _unserved("tools", "the served model has no tools; leave them out")


def _unserved(param: str, message: str) -> DuplexError:
    return refuse(ErrorCode.UNSUPPORTED_PARAMETER, message, param=param)


def _split_instructions(messages: list[Message]) -> tuple[str | None, list[tuple[int, Message]]]:
    """The instructions that a request opens with, joined, and the other messages with their places."""
    opening = 0
    while opening < len(messages) and isinstance(messages[opening], SystemMessage):
        opening += 1
    texts = [_text(message.content) for message in messages[:opening] if isinstance(message, SystemMessage)]
    return "\n\n".join(texts) if texts else None, list(enumerate(messages))[opening:]


class _Reader:
    """Reads one message."""

    def __init__(self, can: Capabilities, spoken: Spoken, index: int) -> None:
        self._can = can
        self._spoken = spoken
        self._index = index
        self._place = f"messages[{index}]"

    def items(self, message: Message) -> Iterator[Item]:
        """What the message is in a conversation."""
        match message:
            case SystemMessage():
                yield MessageItem(role=Role.SYSTEM, content=(InputText(text=_text(message.content)),))
            case UserMessage():
                yield MessageItem(id=f"item_{self._index}", role=Role.USER, content=tuple(self._user_parts(message)))
            case ToolMessage():
                yield FunctionCallOutputItem(call_id=message.tool_call_id, output=_text(message.content))
            case AssistantMessage():
                yield from self._answer(message)

    def _answer(self, message: AssistantMessage) -> Iterator[Item]:
        parts: list[ContentPart] = []
        if message.audio is not None:
            said = message.audio.transcript
            if said is None:
                said = self._spoken.transcript(message.audio.id, self._place)
            parts.append(OutputAudio(transcript=said))
        text = _text(message.content)
        if text:
            parts.append(OutputText(text=text))
        if parts:
            yield MessageItem(role=Role.ASSISTANT, content=tuple(parts))
        for call in message.tool_calls or ():
            yield FunctionCallItem(name=call.function.name, arguments=call.function.arguments, call_id=call.id)

    def _user_parts(self, message: UserMessage) -> Iterator[ContentPart]:
        if isinstance(message.content, str):
            yield InputText(text=message.content)
            return
        for index, part in enumerate(message.content):
            place = f"{self._place}.content[{index}]"
            match part:
                case TextPart():
                    yield InputText(text=part.text)
                case AudioPart():
                    if not self._can.chat_audio_input:
                        raise _unserved(place, "the served model hears no speech in chat requests; send text")
                    sound = part.input_audio
                    yield InputAudio(
                        audio=hear(sound.data, sound.format, self._can.input_rate_hz, f"{place}.input_audio")
                    )
                case ImagePart():
                    yield self._picture(part, place)

    def _picture(self, part: ImagePart, place: str) -> InputImage:
        if not self._can.chat_image_input:
            raise _unserved(place, "the served model sees no pictures in chat requests; send text")
        try:
            picture_bytes(part.image_url.url)
        except ValueError as exc:
            raise refuse(ErrorCode.INVALID_VALUE, str(exc), param=f"{place}.image_url.url") from None
        return InputImage(image_url=part.image_url.url, detail=part.image_url.detail)


def _voice(body: ChatCompletionRequest, can: Capabilities) -> str | None:
    """The voice of the answer, if it is to be spoken; ``None`` is the model's default.

    Raises:
        DuplexError: it cannot be spoken so.
    """
    wanted, audio = bool(body.modalities and "audio" in body.modalities), body.audio
    if not wanted:
        if audio is not None:
            message = 'audio says how the answer is spoken, but modalities does not ask for "audio"; add it, or leave audio out'
            raise refuse(ErrorCode.INVALID_VALUE, message, param="audio")
        return None
    if not can.chat_audio_output:
        raise _unserved("modalities", 'the served model speaks no answers to chat requests; ask for ["text"]')
    if audio is None:
        message = "audio is missing: it says in which voice and format the answer is spoken"
        raise refuse(ErrorCode.INVALID_VALUE, message, param="audio")
    if audio.format not in OUTPUT_FORMATS:
        message = f"an answer cannot be given as {audio.format!r} here; use one of: {', '.join(OUTPUT_FORMATS)}"
        raise _unserved("audio.format", message)
    if body.stream and audio.format != "pcm16":
        raise _unserved("audio.format", "the speech of a stream comes as pcm16; ask for that, or do not stream")
    name = audio.voice.id if isinstance(audio.voice, VoiceId) else audio.voice
    if name in can.voices:
        return name
    if name not in _SPOKEN_IN:
        served = ", ".join(can.voices) or "none to choose from"
        message = f"there is no voice {name!r}; the served model has: {served}"
        raise refuse(ErrorCode.INVALID_VALUE, message, param="audio.voice")
    return None


def _text(content: str | list[TextPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _tool(tool: Tool) -> FunctionTool:
    function = tool.function
    return FunctionTool(name=function.name, description=function.description, parameters=function.parameters)


def _choice(body: ChatCompletionRequest) -> ToolChoice:
    """The request's tool choice.

    Raises:
        DuplexError: it asks for a tool that is not offered.
    """
    choice = body.tool_choice
    offered = {tool.function.name for tool in body.tools or ()}
    if isinstance(choice, NamedTool):
        if choice.function.name not in offered:
            message = f"tool_choice names {choice.function.name!r}, which tools does not have"
            raise refuse(ErrorCode.INVALID_VALUE, message, param="tool_choice")
        return ToolFunction(name=choice.function.name)
    if choice == "required" and not offered:
        raise refuse(ErrorCode.INVALID_VALUE, "tool_choice is 'required' and there are no tools", param="tool_choice")
    return ToolMode(choice or "auto")
