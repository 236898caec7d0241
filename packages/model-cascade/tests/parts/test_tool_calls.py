"""How calls are told to a model, and read from what it writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_cascade.parts.language_model import Tool
from model_cascade.parts.tool_calls import BrokenCall, Call, CallReader, Read, instructions

WEATHER = Tool(name="weather", description="Tells the weather", parameters={"type": "object", "properties": {}})
NAMES = frozenset({"weather", "timer"})
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
PARIS = Call(name="weather", arguments='{"city": "Paris"}')


def read(text: str, size: int = 1000) -> list[Read]:
    """What is read of a text that comes in pieces, neighbouring text put together."""
    reader = CallReader(NAMES)
    found = [one for at in range(0, len(text), size) for one in reader.feed(text[at : at + size])]
    joined: list[Read] = []
    for one in [*found, *reader.finish()]:
        if isinstance(one, str) and joined and isinstance(joined[-1], str):
            joined[-1] += one
        else:
            joined.append(one)
    return joined


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.", ["Hello there."]),
        ("", []),
        ("\n", ["\n"]),
        (f"<tool_call>{CALL}</tool_call>", [PARIS]),
        (f"<tool_call>\n{CALL}\n</tool_call>\n", [PARIS]),
        (f"Let me look. <tool_call>{CALL}</tool_call>", ["Let me look. ", PARIS]),
        (f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>", [PARIS, PARIS]),
        (f"<tool_call>[{CALL}, {CALL}]</tool_call>", [PARIS, PARIS]),
        (f"<tool_call>{CALL}", [PARIS]),
        (f"<tool_call>{CALL[:-1]}</tool_call>", [PARIS]),
        (f"<tool_call>{CALL[:-3]}", [PARIS]),
        (CALL, [PARIS]),
        (f"```json\n{CALL}\n```", [PARIS]),
        (f"[{CALL}]", [PARIS]),
        ('{"type": "function", "function": ' + CALL + "}", [PARIS]),
        ('<tool_call>{"name": "weather", "parameters": {"city": "Paris"}}</tool_call>', [PARIS]),
        ('<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', [PARIS]),
        ('<tool_call>{"name": "timer"}</tool_call>', [Call(name="timer", arguments="{}")]),
        (
            '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
            [BrokenCall(raw='{"name": "fly", "arguments": {}}')],
        ),
        ("<tool_call>weather Paris</tool_call>", [BrokenCall(raw="weather Paris")]),
        ('<tool_call>{"name": "timer", "arguments": [1]}', [BrokenCall(raw='{"name": "timer", "arguments": [1]}')]),
        ("{not json", ["{not json"]),
        ('{"answer": 42}', ['{"answer": 42}']),
        ("a < b and c <tool", ["a < b and c <tool"]),
        ("It is <tool_tip> then.", ["It is <tool_tip> then."]),
        (f"See {CALL}", [f"See {CALL}"]),
    ],
)
def test_calls_are_read_however_they_come(text: str, expected: list[Read], size: int) -> None:
    assert read(text, size) == expected


@given(st.text("<tol_caegb{}/ ", max_size=60), st.integers(1, 9))
def test_text_that_calls_nothing_is_passed_on_whole(text: str, size: int) -> None:
    found = read(text, size)
    assert "".join(one if isinstance(one, str) else f"<tool_call>{one.raw}" for one in found if not isinstance(one, Call)) in {
        text,
        text.replace("</tool_call>", ""),
    }  # fmt: skip


def test_plain_text_is_not_held_back() -> None:
    reader = CallReader(NAMES)
    assert reader.feed("Hello") == ["Hello"]
    assert reader.feed(" <") == [" "]
    assert reader.feed("b>") == ["<b>"]


def test_the_instructions_hold_each_function_as_json_and_the_form_of_a_call() -> None:
    lines = instructions([WEATHER]).splitlines()
    assert json.loads(lines[1]) == {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {}},
    }
    assert lines[2].endswith('<tool_call>{"name": "...", "arguments": {...}}</tool_call>')
    assert instructions([]) == ""
