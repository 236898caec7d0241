"""One chat request to MiniCPM-o: messages in, an answer in text out, spoken too when that is asked for. Sans-I/O.

Made by the plugin for each request. It turns the history into the messages of a chat and passes on what the stages make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from duplex_core import model as m
from duplex_core.config import Modality
from duplex_core.errors import ErrorCode, error
from duplex_core.items import InputAudio, InputImage, InputText, Item, MessageItem, item_text, picture_bytes
from duplex_core.spec import SessionContext
from duplex_core.stages import Lane, StageFailed, StageOutput, StageRequest
from model_minicpmo.options import SessionOptions, for_stages
from model_minicpmo.payloads import SENSES, Chat, ChatMessage, ChatPart, Sound, Written, at_temperature
from model_minicpmo.rules.units import UNIT_BYTES
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import pcm16

if TYPE_CHECKING:
    from duplex_core.fence import Fence

MAX_TOKENS = 1024
"""Most tokens of an answer when the request does not say."""
POSITION_BYTES = UNIT_BYTES // 10
"""Bytes of sound for each position that it takes."""


class ChatAnswer:
    """See the module's docstring."""

    def __init__(self, context: SessionContext) -> None:
        """Begin with nothing asked."""
        assert isinstance(context.deploy, MiniCPMOSettings), "this package's own settings are what the plugin names"
        self._positions = context.deploy.thinker.max_model_len
        self._options = SessionOptions.model_validate(context.config.options)
        self._fence: Fence | None = None
        self._end = m.StopReason.DONE
        self._usage = m.TokenUsage()

    def handle(self, event: m.ModelInput, now_ms: float) -> Sequence[m.ModelOutput]:
        """Take one input; see :class:`~duplex_core.model.ModelSession`."""
        match event:
            case m.Respond():
                return self._ask(event)
            case StageOutput():
                return self._told(event)
            case StageFailed(error=failure) if self._fence is not None:
                return (m.Failed(fence=self._fence, error=failure),)
            case _:
                return ()

    def _ask(self, respond: m.Respond) -> Sequence[m.ModelOutput]:
        self._fence = respond.fence
        config = respond.config
        if (taken := sum(map(_sound_positions, respond.history))) > self._positions:
            told = (
                f"the sound in the messages takes {taken} positions of a context of {self._positions}; send less of it"
            )
            return (m.Failed(fence=respond.fence, error=error(ErrorCode.CONTEXT_FULL, told)),)
        messages = [message for item in respond.history if (message := _message(item)) is not None]
        if config.instructions:
            messages.insert(0, ChatMessage(role="system", parts=(ChatPart(text=config.instructions),)))
        chosen = for_stages(self._options, seed=0)
        if config.temperature is not None:
            chosen = at_temperature(chosen, config.temperature)
        chat = Chat(
            messages=tuple(messages),
            options=chosen,
            max_tokens=config.max_output_tokens or MAX_TOKENS,
            spoken=config.modality is Modality.AUDIO,
        )
        request = StageRequest(stage=SENSES, request_id="chat", fence=respond.fence, lane=Lane.OUTPUT, payload=chat)
        return (m.Submit(request=request),)

    def _told(self, output: StageOutput) -> Sequence[m.ModelOutput]:
        assert self._fence is not None, "nothing is told before something was asked"
        told: list[m.ModelOutput] = []
        match output.payload:
            case Written() as written:
                if written.text:
                    told.append(m.Speak(fence=self._fence, text=written.text))
                if written.done:
                    self._end = m.StopReason.MAX_TOKENS if written.cut else m.StopReason.DONE
                    self._usage = m.TokenUsage(input_tokens=written.input_tokens, output_tokens=written.output_tokens)
            case Sound(pcm=pcm) if pcm:
                told.append(m.Speak(fence=self._fence, pcm=pcm))
            case _:
                pass
        if output.final:
            told.append(m.EndTurn(fence=self._fence, reason=self._end, usage=self._usage))
        return told


def _sound_positions(item: Item) -> int:
    """How many positions of a context the sound in an item takes: one for each tenth of a second."""
    parts = item.content if isinstance(item, MessageItem) else ()
    sounds = (part.audio for part in parts if isinstance(part, InputAudio) and part.audio is not None)
    return sum(len(pcm) // POSITION_BYTES for pcm in sounds)


def _message(item: Item) -> ChatMessage | None:
    """An item as a message; a tool's call or result as words, since this model has no tools."""
    if not isinstance(item, MessageItem):
        text = item_text(item)
        return ChatMessage(role="user", parts=(ChatPart(text=text),)) if text else None
    parts = []
    for part in item.content:
        if isinstance(part, InputAudio) and part.audio is not None:
            parts.append(ChatPart(samples=pcm16(part.audio)))
        elif isinstance(part, InputImage):
            parts.append(ChatPart(picture=picture_bytes(part.image_url)))
        elif isinstance(part, InputText):
            parts.append(ChatPart(text=part.text))
        else:
            parts.append(ChatPart(text=item_text(MessageItem(role=item.role, content=(part,)))))
    return ChatMessage(role=item.role.value, parts=tuple(parts))
