"""What of a conversation is kept where little fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model_cascade.parts.fitting import fitted, tokens
from model_cascade.parts.language_model import Message, Role

SYSTEM = Message(role="system", content="Be kind.")
roles: st.SearchStrategy[Role] = st.sampled_from(["user", "assistant", "tool"])
messages = st.lists(st.builds(Message, role=roles, content=st.text(max_size=200)), max_size=20).map(tuple)


def turn(number: int) -> tuple[Message, Message]:
    return (
        Message(role="user", content=f"question {number} " * 5),
        Message(role="assistant", content=f"answer {number} " * 5),
    )


def test_a_conversation_that_fits_is_kept_whole() -> None:
    conversation = (SYSTEM, *turn(1), *turn(2))
    assert fitted(conversation, 1000) == conversation


def test_the_oldest_turns_go_first_and_what_is_left_begins_with_the_user() -> None:
    conversation = (SYSTEM, *turn(1), *turn(2), *turn(3), Message(role="user", content="And now?"))
    kept = fitted(conversation, 80)
    assert kept == (SYSTEM, *turn(3), conversation[-1])


def test_the_newest_message_is_kept_with_both_its_ends() -> None:
    long = Message(role="user", content="begin " + "x " * 5000 + "end")
    (system, newest) = fitted((SYSTEM, *turn(1), long), 100)
    assert system == SYSTEM
    assert newest.content.startswith("begin")
    assert newest.content.endswith("end")
    assert " ... " in newest.content


@given(messages, st.booleans(), st.integers(60, 400))
def test_what_is_kept_fits_and_is_a_tail_of_the_conversation(
    spoken: tuple[Message, ...], has_system: bool, budget: int
) -> None:
    conversation = (SYSTEM, *spoken) if has_system else spoken
    kept = fitted(conversation, budget)
    assert sum(tokens(message) for message in kept) <= budget + 16
    assert kept[:1] == (SYSTEM,) or not has_system
    tail = kept[1:] if has_system else kept
    assert tail[:-1] == spoken[len(spoken) - len(tail) : -1] or len(tail) <= 1
    assert bool(tail) == bool(spoken)
