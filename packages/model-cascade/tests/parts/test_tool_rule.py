"""When a function is called, and how its result is said, by a model that is too small for either."""

from __future__ import annotations

import pytest

from model_cascade.parts.language_model import Message, Tool, ToolRequest
from model_cascade.parts.tool_rule import function_asked_for, plain_turns, said_plainly

TOOLS = [Tool(name=name) for name in ("get_weather", "set_timer", "lookupOrderStatus", "get_order", "stop")]


def user(text: str) -> Message:
    return Message(role="user", content=text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("What is the weather in Paris?", "get_weather"),
        ("Please set some timers for ten minutes.", "set_timer"),
        ("Where is my order?", "get_order"),
        ("What is the status of my order?", "lookupOrderStatus"),
        ("WEATHER!", "get_weather"),
        ("How are you?", None),
        ("Stop it.", None),
        ("Whether or not?", None),
        ("", None),
    ],
)
def test_a_function_is_called_when_its_name_is_said(text: str, name: str | None) -> None:
    found = function_asked_for([user("weather?"), Message(role="assistant", content="Fine."), user(text)], TOOLS)
    assert (found and found.name) == name


def test_no_function_is_called_where_nobody_asks() -> None:
    assert function_asked_for([], TOOLS) is None
    assert function_asked_for([Message(role="assistant", content="the weather")], TOOLS) is None
    assert function_asked_for([user("the weather")], []) is None


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ('{"temperature_c": 21, "sky": "sunny"}', "Temperature c: 21, sky: sunny."),
        ('{"ok": true, "items": ["a", {"b": 1.5}], "note": null}', "Ok: yes, items: a, b: 1.5."),
        ("It is 10:30.", "It is 10:30."),
        ('"quoted"', "Quoted."),
        ("", "Done."),
        ("null", "Done."),
        ("{}", "Done."),
        ("false", "No."),
        ("word " * 200, f"W{('word ' * 60)[1:].strip()}."),
    ],
)
def test_results_are_said_plainly(result: str, said: str) -> None:
    assert said_plainly(result) == said


def test_a_conversation_without_functions_keeps_what_was_said() -> None:
    call = Message(role="assistant", tool_calls=(ToolRequest(call_id="c", name="get_weather", arguments="{}"),))
    result = Message(role="tool", tool_call_id="c", content='{"sky": "sunny"}')
    answer = Message(role="assistant", content="Sunny.")
    assert plain_turns([user("Hi"), call, result, answer]) == [("user", "Hi"), ("assistant", "Sunny.")]
    assert plain_turns([user("Hi"), call, result, user("So?")]) == [
        ("user", "Hi"),
        ("assistant", "Sky: sunny."),
        ("user", "So?"),
    ]
    assert plain_turns([]) == []
