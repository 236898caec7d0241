"""Whatever the types admit survives the wire, and no patch that the wire admits does anything but apply or be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from duplex_core.capabilities import Capabilities
from duplex_core.commands import COMMAND_TYPES, Command
from duplex_core.config import Modality, ServerVad, SessionConfig
from duplex_core.errors import DuplexError, ErrorInfo
from duplex_core.events import EVENT_TYPES, Event, session_view
from duplex_core.events.session import SessionUpdated
from duplex_core.ledger import PlaybackLedger
from duplex_core.patch import ResponseParams, SessionPatch, apply_response_params, apply_session_patch
from duplex_core.wire import decode_command, decode_event, encode_command, encode_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)
OPEN_VALUES = st.recursive(
    st.none() | st.booleans() | WHOLE | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LEDGERS = st.lists(st.floats(0, 1e9), min_size=4, max_size=4).map(
    lambda ms: PlaybackLedger(**dict(zip(PlaybackLedger.__struct_fields__, sorted(ms, reverse=True), strict=True)))
)


def values_of(node: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of one of msgspec's types, by its own account of it."""
    match node:
        case inspect.UnionType():
            return st.one_of([values_of(each) for each in node.types])
        case inspect.StructType():
            return LEDGERS if node.cls is PlaybackLedger else structs_of(node)
        case inspect.EnumType():
            return st.sampled_from(node.cls)
        case inspect.LiteralType():
            return st.sampled_from(node.values)
        case inspect.ListType():
            return st.lists(values_of(node.item_type), max_size=3)
        case inspect.VarTupleType():
            return st.lists(values_of(node.item_type), max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(TEXT, values_of(node.value_type), max_size=3)
        case inspect.IntType():
            low, high = node.ge, node.le
            return WHOLE if low is None else st.integers(low, high)
        case inspect.FloatType():
            return NUMBERS if node.ge is None else NUMBERS.map(abs)
        case _:
            return {
                inspect.StrType: TEXT,
                inspect.BytesType: st.binary(max_size=24),
                inspect.BoolType: st.booleans(),
                inspect.NoneType: st.none(),
                inspect.AnyType: OPEN_VALUES,
            }[type(node)]


def structs_of(node: inspect.StructType) -> st.SearchStrategy[Any]:
    needed = {field.name: values_of(field.type) for field in node.fields if field.required}
    other = {field.name: values_of(field.type) for field in node.fields if not field.required}
    return st.fixed_dictionaries(needed, optional=other).map(lambda fields: node.cls(**fields))


def of_type(cls: type[Any]) -> st.SearchStrategy[Any]:
    return values_of(inspect.type_info(cls))


MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", COMMAND_TYPES)
@MANY
@given(data=st.data())
def test_a_command_survives_the_wire(name: str, data: st.DataObject) -> None:
    command: Command = data.draw(of_type(COMMAND_TYPES[name]))
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize("name", EVENT_TYPES)
@MANY
@given(data=st.data(), seq=st.integers(1, 2**53))
def test_an_event_survives_the_wire_and_is_stamped(name: str, data: st.DataObject, seq: int) -> None:
    event: Event = data.draw(of_type(EVENT_TYPES[name]))
    read = decode_event(encode_event(event, event_id="event_9", seq=seq))
    assert read == msgspec.structs.replace(event, event_id="event_9", server_event_seq=seq)


CAPABILITIES = [
    Capabilities(),
    Capabilities(
        tools=True, temperature=True, speed=True, input_transcription=True, semantic_vad=True, voices=("a", "b")
    ),
    Capabilities(instructions=False, output_modalities=(Modality.TEXT,)),
]
CONFIG = SessionConfig(model="m", turn_detection=ServerVad(), options={"kept": 1})


def few_fields_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values with at most three fields set: with more, one of them is nearly always refused and the rest go untried."""
    node = inspect.type_info(cls)
    assert isinstance(node, inspect.StructType)
    by_name = {field.name: values_of(field.type) for field in node.fields}
    chosen = st.lists(st.sampled_from(sorted(by_name)), max_size=3, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: by_name[name] for name in names})).map(
        lambda fields: cls(**fields)
    )


def outcome(change: Callable[[], SessionConfig]) -> SessionConfig | ErrorInfo:
    try:
        return change()
    except DuplexError as refusal:
        return refusal.info


@pytest.mark.parametrize("capabilities", CAPABILITIES)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(patch=few_fields_of(SessionPatch))
def test_a_patch_applies_or_is_refused_by_name(capabilities: Capabilities, patch: SessionPatch) -> None:
    after = outcome(lambda: apply_session_patch(CONFIG, patch, capabilities))
    if isinstance(after, ErrorInfo):
        assert after.param
        assert after.param.startswith("session.")
        assert after.message
        return
    view = session_view("s", after, capabilities, epoch=0, attachment_generation=1)
    event = SessionUpdated(session=view, event_id="e", server_event_seq=1)
    assert decode_event(encode_event(event, event_id="e", seq=1)) == event
    assert after.voice is None or after.voice in capabilities.voices
    assert after.modality is CONFIG.modality or after.modality in capabilities.output_modalities


@pytest.mark.parametrize("capabilities", CAPABILITIES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(params=few_fields_of(ResponseParams))
def test_overrides_apply_or_are_refused_by_name(capabilities: Capabilities, params: ResponseParams) -> None:
    after = outcome(lambda: apply_response_params(CONFIG, params, capabilities))
    if isinstance(after, ErrorInfo):
        assert after.param
        assert after.param.startswith("response.")
        return
    assert after.model == CONFIG.model
    assert after.input_format == CONFIG.input_format
