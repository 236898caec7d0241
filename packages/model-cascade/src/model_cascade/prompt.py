"""From the conversation's items to the messages of a language model. Pure; called by the cascade's session."""

from __future__ import annotations

from duplex_core import config as config_types
from duplex_core.config import SessionConfig
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, InputAudio, Item, MessageItem, item_text
from model_cascade.parts.language_model import ChatRequest, Message, Tool, ToolChoice, ToolMode, ToolRequest
from model_cascade.settings import LanguageModelSettings


def missing_transcripts(history: tuple[Item, ...]) -> tuple[tuple[str, bytes], ...]:
    """Items of the user whose words are not known yet: (item id, 16-bit PCM at 16 kHz)."""
    return tuple(
        (item.id, part.audio)
        for item in history
        if isinstance(item, MessageItem) and item.id is not None
        for part in item.content
        if isinstance(part, InputAudio) and part.transcript is None and part.audio
    )


def build(config: SessionConfig, history: tuple[Item, ...], settings: LanguageModelSettings) -> ChatRequest:
    """What to ask the language model. All the words of the user must be known."""
    messages = [Message(role="system", content=config.instructions)] if config.instructions else []
    messages += [message for item in history if (message := _message(item)) is not None]
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(
            Tool(name=tool.name, description=tool.description or "", parameters=tool.parameters or {})
            for tool in config.tools
        ),
        tool_choice=_tool_choice(config.tool_choice),
        max_tokens=config.max_output_tokens or settings.max_tokens,
        temperature=settings.temperature if config.temperature is None else config.temperature,
    )


def _tool_choice(choice: config_types.ToolChoice) -> ToolChoice:
    if isinstance(choice, config_types.ToolFunction):
        return ToolChoice(mode=ToolMode.FUNCTION, name=choice.name)
    return ToolChoice(mode=ToolMode(choice.value))


def _message(item: Item) -> Message | None:
    if isinstance(item, FunctionCallItem):
        call = ToolRequest(call_id=item.call_id or "", name=item.name, arguments=item.arguments)
        return Message(role="assistant", tool_calls=(call,))
    if isinstance(item, FunctionCallOutputItem):
        return Message(role="tool", content=item.output, tool_call_id=item.call_id)
    text = item_text(item).strip()
    return Message(role=item.role.value, content=text) if text else None
