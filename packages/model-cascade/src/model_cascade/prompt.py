"""From the conversation's items to the messages of a language model. Pure; called by the cascade's session."""

from __future__ import annotations

from duplex_core.config import SessionConfig
from duplex_core.items import FunctionCallItem, FunctionCallOutputItem, InputAudio, Item, MessageItem, item_text
from model_cascade.payloads import Ask, Message


def missing_transcripts(history: tuple[Item, ...]) -> tuple[tuple[str, bytes], ...]:
    """Items of the user whose words are not known yet: (item id, 16-bit PCM at 16 kHz)."""
    missing = []
    for item in history:
        if not isinstance(item, MessageItem) or item.id is None:
            continue
        for part in item.content:
            if isinstance(part, InputAudio) and part.transcript is None and part.audio:
                missing.append((item.id, part.audio))
    return tuple(missing)


def build(config: SessionConfig, history: tuple[Item, ...]) -> Ask:
    """What to ask the language model. All the words of the user must be known."""
    messages = [Message(role="system", content=config.instructions)] if config.instructions else []
    messages += [message for item in history if (message := _message(item)) is not None]
    return Ask(
        messages=tuple(messages),
        tools=config.tools,
        tool_choice=config.tool_choice,
        max_tokens=config.max_output_tokens,
        temperature=config.temperature,
    )


def _message(item: Item) -> Message | None:
    if isinstance(item, FunctionCallItem):
        call = (item.call_id or "", item.name, item.arguments)
        return Message(role="assistant", content="", tool_calls=(call,))
    if isinstance(item, FunctionCallOutputItem):
        return Message(role="tool", content=item.output, tool_call_id=item.call_id)
    text = item_text(item).strip()
    return Message(role=item.role.value, content=text) if text else None
