"""Nothing that a client can send does anything but decode or be refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_core.commands import COMMAND_TYPES
from duplex_core.errors import ErrorCode, ErrorInfo
from duplex_core.events import ErrorEvent
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import MAX_EVENT_BYTES, WireError, decode_command, decode_event, encode_command, encode_event

GOOD = {name: encode_command(command) for name, command in COMMAND_EXAMPLES.items()}
FILLINGS = {
    "<deep>": "[" * 100_000 + "]" * 100_000,
    "<nested>": "[" * 99 + "]" * 99,
    "<big>": "9" * 30,
    "<long>": "x" * 513,
    "<many>": "[" + "0," * 30_000 + "0]",
    "<commas>": "," * 100_001,
}
"""What the table of bad texts writes short."""


def refusal(text: str | bytes) -> ErrorInfo:
    with pytest.raises(WireError) as caught:
        decode_command(text)
    return caught.value.info


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", "invalid_json", None),
        ("   ", "invalid_json", None),
        ("{", "invalid_json", None),
        ('{"type":"barge_in"} x', "invalid_json", None),
        ('{"type":"barge_in"}\x00', "invalid_json", None),
        ('\ufeff{"type":"barge_in"}', "invalid_json", None),
        ('{"type":"barge_in","event_id":"\x00"}', "invalid_json", None),
        ('{"type":"barge_in","event_id":"\\ud800"}', "invalid_json", None),
        ('{"type":"barge_in","event_id":"\ud800"}', "invalid_json", None),
        (b'{"type":"barge_in","event_id":"\xff"}', "invalid_json", None),
        ('{"type":"barge_in","played_ms":NaN}', "invalid_json", None),
        ('{"type":"barge_in","played_ms":-Infinity}', "invalid_json", None),
        ('{"type":"session.update","session":{"options":{"x":<deep>}}}', "invalid_json", None),
        ("<deep>", "invalid_event", None),
        ("null", "invalid_event", None),
        ("[]", "invalid_event", None),
        ('"session.close"', "invalid_event", None),
        ("{}", "invalid_event", "type"),
        ('{"type":null}', "invalid_event", "type"),
        ('{"type":["barge_in"]}', "invalid_event", "type"),
        ('{"type":"barge_in","type":"session.close"}', "invalid_event", "type"),
        ('{"type":"response.created"}', "invalid_event", "type"),
        ('{"type":"session.updaet"}', "unknown_event_type", "type"),
        ('{"type":"transcription_session.update","session":{}}', "unsupported_event", "type"),
        ('{"type":"session.input_audio_buffer.append","audio":"AAA="}', "unsupported_event", "type"),
        ('{"type":"session.update","session":{"type":"transcription"}}', "unsupported_parameter", "session.type"),
        ('{"type":"session.update"}', "invalid_value", "session"),
        ('{"type":"session.update","session":{"voicee":"x"}}', "unknown_parameter", "session.voicee"),
        ('{"type":"session.update","session":{"audio":{"x":1}}}', "unknown_parameter", "session.audio.x"),
        (
            '{"type":"session.update","session":{"audio":{"input":{"format":{"type":"audio/ogg"}}}}}',
            "invalid_value",
            "session.audio.input.format.type",
        ),
        (
            '{"type":"session.update","session":{"turn_detection":{"type":"vad"}}}',
            "invalid_value",
            "session.turn_detection.type",
        ),
        ('{"type":"session.update","session":{"tools":[{"type":"mcp"}]}}', "invalid_value", "session.tools[0].type"),
        ('{"type":"session.update","session":{"options":{"x":<big>}}}', "invalid_value", "session.options"),
        (
            '{"type":"session.update","session":{"options":{"x":<nested>}}}',
            "invalid_value",
            "session.options",
        ),
        (
            '{"type":"session.update","session":{"tools":[{"name":"f","parameters":{"x":<big>}}]}}',
            "invalid_value",
            "session.tools[0].parameters",
        ),
        (
            '{"type":"session.update","session":{"tools":[{"name":"f","parameters":{"x":<many>}},'
            '{"name":"g","parameters":{"x":<many>}}]}}',
            "invalid_value",
            "session.tools[1].parameters",
        ),
        (
            '{"type":"session.update","session":{"options":{"x":[<many>,<many>,<many>,<many>]}}}',
            "event_too_large",
            None,
        ),
        ('{"type":"conversation.item.delete","item_id":"<commas>"}', "event_too_large", None),
        ('{"type":"input_audio_buffer.append"}', "invalid_value", "audio"),
        ('{"type":"input_audio_buffer.append","audio":null}', "invalid_value", "audio"),
        ('{"type":"input_audio_buffer.append","audio":"AAA"}', "invalid_audio", "audio"),
        ('{"type":"input_audio_buffer.append","audio":"A A="}', "invalid_audio", "audio"),
        ('{"type":"input_audio_buffer.append","audio":"_-8="}', "invalid_audio", "audio"),
        (
            '{"type":"input_audio_buffer.append","audio":"","video_frames":[{"data":"?"}]}',
            "invalid_value",
            "video_frames[0].data",
        ),
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user",'
            '"content":[{"type":"input_audio","audio":"?"}]}}',
            "invalid_audio",
            "item.content[0].audio",
        ),
        ('{"type":"conversation.item.create","item":{"type":"mcp_call"}}', "invalid_value", "item.type"),
        (
            '{"type":"conversation.item.create","item":{"type":"message","role":"user","content":[{"type":"text"}]}}',
            "invalid_value",
            "item.content[0].text",
        ),
        (
            '{"type":"conversation.item.truncate","item_id":"a","content_index":-1,"audio_end_ms":0}',
            "invalid_value",
            "content_index",
        ),
        (
            '{"type":"conversation.item.truncate","item_id":"a","content_index":0,"audio_end_ms":<big>}',
            "invalid_value",
            "audio_end_ms",
        ),
        ('{"type":"playback.ack","played_ms":"5"}', "invalid_value", "played_ms"),
        ('{"type":"playback.ack","played_ms":true}', "invalid_value", "played_ms"),
        ('{"type":"playback.ack","played_ms":1e999}', "invalid_value", "played_ms"),
        ('{"type":"playback.ack","played_ms":-1}', "invalid_value", "played_ms"),
        ('{"type":"turn.signal","signal":"pause"}', "invalid_value", "signal"),
        ('{"type":"barge_in","event_id":5}', "invalid_value", "event_id"),
        ('{"type":"barge_in","event_id":"<long>"}', "invalid_value", "event_id"),
        ('{"type":"barge_in","event_id":"a","extra":1}', "unknown_parameter", "extra"),
    ],
)
def test_a_bad_text_is_refused_with_its_reason(text: str | bytes, code: str, param: str | None) -> None:
    for short, filling in FILLINGS.items():
        text = text.replace(short, filling) if isinstance(text, str) else text
    info = refusal(text)
    assert (info.code.value, info.param) == (code, param), info.message
    assert 0 < len(info.message) < 2000
    assert encode_event(ErrorEvent(error=info), event_id="e", seq=1)


@pytest.mark.parametrize(
    "body",
    [
        '"type":"nonsense"',
        '"type":"barge_in","x":1',
        '"type":"session.update"',
        '"type":"playback.ack","played_ms":1e999',
    ],
)
def test_the_event_id_of_a_bad_event_comes_back(body: str) -> None:
    assert refusal('{"event_id":"evt_7",' + body + "}").event_id == "evt_7"
    assert refusal("{" + body + ',"event_id":"evt_7"}').event_id == "evt_7"


def test_an_error_says_what_would_be_right() -> None:
    assert "session.update" in refusal('{"type":"session.updaet"}').message
    assert "did you mean voice" in refusal('{"type":"session.update","session":{"voicee":"x"}}').message
    assert (
        "server_vad, semantic_vad"
        in refusal('{"type":"session.update","session":{"turn_detection":{"type":"vad"}}}').message
    )
    assert "an integer, inf" in refusal('{"type":"session.update","session":{"max_output_tokens":"x"}}').message


def test_15_mib_bound_one_event_and_more_is_refused() -> None:
    frame = '{"type":"input_audio_buffer.append","audio":"%s"}'
    room = MAX_EVENT_BYTES - len(frame % "")
    fits = frame % ("A" * (room - room % 4))
    assert len(decode_command(fits).audio) == (room - room % 4) // 4 * 3  # type: ignore[union-attr]
    assert refusal(frame % ("A" * (room + 4))).code is ErrorCode.EVENT_TOO_LARGE
    wide = '{"type":"input.text.append","text":"%s"}' % ("é" * (MAX_EVENT_BYTES // 2))
    assert refusal(wide).code is ErrorCode.EVENT_TOO_LARGE


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def altered_documents(draw: st.DrawFn) -> str:
    """A good event with one value somewhere in it replaced, removed or renamed."""
    document: Any = json.loads(GOOD[draw(st.sampled_from(sorted(GOOD)))])
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if not (isinstance(place[key], dict | list) and place[key] and draw(st.booleans())):
            break
        place = place[key]
    match draw(st.sampled_from(["replace", "remove", "rename"])):
        case "replace":
            place[key] = draw(JSON_VALUES)
        case "rename" if isinstance(place, dict):
            place[draw(st.text(max_size=8))] = place.pop(key)
        case _:
            del place[key]
    return json.dumps(document, ensure_ascii=draw(st.booleans()))


@st.composite
def altered_texts(draw: st.DrawFn) -> str:
    """A good event with some of its characters replaced, doubled or cut."""
    text = GOOD[draw(st.sampled_from(sorted(GOOD)))]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + draw(st.text(max_size=4) | st.just(text[start:end] * 2)) + text[end:]
    return text


def decodes_or_is_refused(text: str | bytes) -> None:
    try:
        command = decode_command(text)
    except WireError as refused:
        info = refused.info
    else:
        assert decode_command(encode_command(command)) == command
        return
    assert info.message
    assert len(info.message) < 2000
    assert encode_event(ErrorEvent(error=info), event_id="e", seq=1)


@settings(max_examples=1500, deadline=None)
@given(altered_documents())
def test_an_altered_event_decodes_or_is_refused(text: str) -> None:
    decodes_or_is_refused(text)


@settings(max_examples=1500, deadline=None)
@given(altered_texts())
def test_an_altered_text_decodes_or_is_refused(text: str) -> None:
    decodes_or_is_refused(text)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=50) | st.binary(max_size=50) | JSON_VALUES.map(json.dumps))
def test_any_text_decodes_or_is_refused(text: str | bytes) -> None:
    decodes_or_is_refused(text)


# -- the client's end ----------------------------------------------------------------------------------------------------

EVENTS = {name: encode_event(event, event_id="event_1", seq=1) for name, event in EVENT_EXAMPLES.items()}


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(EVENTS)), st.integers(0, 2000), st.text(max_size=4))
def test_an_altered_server_event_decodes_or_is_refused(name: str, place: int, put: str) -> None:
    text = EVENTS[name]
    place = min(place, len(text))
    try:
        event = decode_event(text[:place] + put + text[place + 1 :])
    except WireError as refused:
        event, message = None, refused.info.message
        assert message
    assert event is None or event.__struct_config__.tag in EVENTS


def test_an_event_of_an_unknown_type_can_be_told_apart() -> None:
    with pytest.raises(WireError) as caught:
        decode_event('{"type":"response.hummed","event_id":"event_1"}')
    assert caught.value.info.code is ErrorCode.UNKNOWN_EVENT_TYPE


@pytest.mark.parametrize("name", EVENTS)
def test_fields_of_a_newer_server_are_passed_over(name: str) -> None:
    def with_more(value: Any) -> Any:
        if isinstance(value, dict):
            return {"newer": {"x": [1]}} | {key: with_more(below) for key, below in value.items()}
        return [with_more(below) for below in value] if isinstance(value, list) else value

    document = json.loads(EVENTS[name])
    more = with_more(document)
    for tool in more.get("session", {}).get("tools", []):
        tool["parameters"] = document["session"]["tools"][0]["parameters"]  # open: whatever is in it is kept
    if "options" in more.get("session", {}):
        more["session"]["options"] = document["session"]["options"]
    assert decode_event(json.dumps(more)) == decode_event(EVENTS[name])


def test_the_examples_cover_every_command() -> None:
    assert set(GOOD) == set(COMMAND_TYPES)
