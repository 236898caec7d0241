"""The bounds of a session's options: strict types, and no value within them at which an answer is no words or has no end."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from duplex_core.commands import SessionUpdate
from duplex_core.events import ErrorEvent
from duplex_core.patch import SessionPatch
from duplex_core.testing.driver import ConversationDriver
from model_minicpmo.options import SessionOptions, for_stages
from model_minicpmo.payloads import Options, at_temperature
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.paper import PaperHost

(SPEC,) = duplex_register_models()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", "3"),
        ("top_k", 3.0),
        ("top_k", True),
        ("greedy", "yes"),
        ("greedy", 1),
        ("temperature", "0.5"),
        ("temperature", True),
        ("patience_ms", "100"),
        ("seed", 1.0),
        ("char_limit", False),
        ("system_prompt", 7),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(pydantic.ValidationError, match=name):
        SessionOptions.model_validate({name: value})


def test_a_whole_number_is_a_number() -> None:
    assert SessionOptions.model_validate({"temperature": 1, "patience_ms": 500}).patience_ms == 500.0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", (1e-46, 1e-40, 0, 0.009, 2.1, float("nan"))),
        ("tts_temperature", (1e-40, 0, 2.1)),
        ("length_penalty", (1e-320, 0.49, 2.1, 5.0)),
        ("repetition_penalty", (0.9, 1.6)),
        ("tts_repetition_penalty", (0.9, 1.6)),
        ("listen_scale", (1e-320, 101.0)),
        ("top_p", (1e-320, 0.0, 1.1)),
        ("char_limit", (-1, 1, 7, 1001)),
        ("high_tokens", (63, 10**30)),
    ],
)
def test_a_value_at_which_answers_would_be_no_words_or_have_no_end_is_refused(
    name: str, values: tuple[float, ...]
) -> None:
    for value in values:
        with pytest.raises(pydantic.ValidationError, match=name):
            SessionOptions.model_validate({name: value})


def test_the_vendor_s_numbers_and_the_bounds_themselves_are_taken() -> None:
    for char_limit in (0, 8, 28, 1000):
        SessionOptions.model_validate({"char_limit": char_limit})
    SessionOptions.model_validate({"temperature": 0.01, "length_penalty": 0.5, "tts_temperature": 2.0})
    assert for_stages(SessionOptions(), seed=0) == Options()


def test_a_temperature_of_a_response_that_nothing_can_be_divided_by_is_greedy() -> None:
    assert at_temperature(Options(), 1e-46).greedy
    assert not at_temperature(Options(), 0.01).greedy


def test_a_value_that_equals_what_is_there_is_held_to_its_type_too() -> None:
    """Over the session: 1 equals true and 20.0 equals 20, and neither is what the option is."""
    config = msgspec.structs.replace(SPEC.session_config(MiniCPMOSettings()), turn_detection=None)
    driver = ConversationDriver(SPEC, config=config, host=PaperHost())
    driver.send(SessionUpdate(session=SessionPatch(options={"greedy": True})))
    for name, value in (("greedy", 1), ("top_k", 20.0)):
        driver.send(SessionUpdate(session=SessionPatch(options={name: value})))
        assert driver.all_of(ErrorEvent)[-1].error.param == f"session.options.{name}"
    assert len(driver.all_of(ErrorEvent)) == 2
