"""The short way of sound through the wire: never another value, text or refusal than msgspec's own base64 leads to."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pybase64
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duplex_core.commands import Command, InputAudioBufferAppend
from duplex_core.events import Event, OutputAudioDelta
from duplex_core.testing.examples import COMMAND_EXAMPLES, EVENT_EXAMPLES
from duplex_core.wire import WireError, codec, decode_command, decode_event, encode_command, encode_event, sound

DELTA = EVENT_EXAMPLES["response.output_audio.delta"]
ENDS: dict[str, tuple[str, Callable[[str | bytes], Any], str, Any, dict[str, Any]]] = {
    "append": (
        "audio",
        decode_command,
        "_COMMANDS",
        msgspec.json.Decoder(Command),
        {"type": "input_audio_buffer.append"},
    ),
    "delta": (
        "delta",
        decode_event,
        "_EVENTS",
        msgspec.json.Decoder(Event),
        {key: value for key, value in json.loads(msgspec.json.encode(DELTA)).items() if key != "delta"},
    ),
}
"""For each of the two messages: its field of sound, its decoder, where the codec has msgspec's, such a one, its other fields."""


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short messages take the short way too, which else only long ones do."""
    monkeypatch.setattr(sound, "_LEAST_READ", 0)
    monkeypatch.setattr(sound, "_LEAST_WRITTEN", 0)


def outcome(decode: Callable[[str | bytes], Any], text: str | bytes) -> Any:
    """The value with its type, or code, param and the rest of the refusal."""
    try:
        value = decode(text)
    except WireError as refused:
        return refused.info
    assert isinstance(value, msgspec.Struct)
    return type(value), msgspec.structs.asdict(value)


def reads_as_msgspec_does(end: str, text: str | bytes) -> Any:
    _, decode, place, plain, _ = ENDS[end]
    with mock.patch.object(codec, place, plain):
        wanted = outcome(decode, text)
    assert outcome(decode, text) == wanted
    return wanted


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
WRITTEN = st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
ODD = st.sampled_from(
    ["=", "-", "_", " ", "\\/", "\\u002b", "\\u0041", "\\n", "\\x", "\\", "é", "\ud800", "\x00", "\n", '"']
)


@st.composite
def altered(draw: st.DrawFn) -> str:
    """Base64 with a few of its characters replaced, put in or cut."""
    text = draw(WRITTEN)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        put = draw(ODD | st.sampled_from(ALPHABET) | st.just(""))
        text = text[:at] + put + text[at + draw(st.integers(0, 2)) :]
    return text


SOUNDS = st.one_of(
    WRITTEN.map(json.dumps),
    WRITTEN.map(lambda text: json.dumps(text).replace("/", "\\/").replace("+", "\\u002b")),
    altered().map(lambda text: f'"{text}"'),
    st.text(ALPHABET + "=", max_size=12).map(json.dumps),
    st.sampled_from(["null", "7", "-1.5", "true", "[]", '["AAAA"]', '{"audio":"AAAA"}', '""', '"', "nul", "", "NaN"]),
)
"""What may stand for the sound."""
SPACE = st.sampled_from(["", "", "", " ", "\n\t ", "\r\n", "\x0b", "\ufeff"])
OTHERS = {
    "append": [
        '"event_id":"mine"',
        '"event_id":"é \\u0022audio\\u0022:\\u0022\\u0022"',
        '"event_id":"\ud800"',
        '"event_id":7',
        '"is_speech":true',
        '"is_speech":"yes"',
        '"duration_ms":20.5',
        '"video_frames":[{"data":"AAAA"}]',
        '"video_frames":[{"data":"?"}]',
        '"format":{"type":"audio/pcm","rate":8000}',
        '"sample_rate_hz":16000',
        '"sample_rate_hz":-1',
        '"loud":{"audio":"?"}',
        '"type":"input_audio_buffer.clear"',
        "oops",
    ],
    "delta": [
        '"event_id":"\\"delta\\":\\"\\""',
        '"server_event_seq":7',
        '"server_event_seq":"7"',
        '"content_index":2',
        '"newer":{"delta":"?"}',
        '"metadata":null',
        "oops",
    ],
}


@st.composite
def texts(draw: st.DrawFn, end: str) -> str:
    """A message with its sound in any place, among other fields that may be wrong as well."""
    field, _, _, _, others = ENDS[end]
    key = draw(st.sampled_from([f'"{field}"'] * 5 + [f'"\\u006{"1" if field == "audio" else "4"}{field[1:]}"']))
    members = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in others.items()]
    members += draw(st.lists(st.sampled_from(OTHERS[end]), max_size=2, unique=True))
    members.append(f"{key}{draw(SPACE)}:{draw(SPACE)}{draw(SOUNDS)}")
    members = draw(st.permutations(members)) if draw(st.booleans()) else members
    space = draw(SPACE)
    text = "{" + ",".join(f"{space}{member}{space}" for member in members) + "}"
    return text + draw(st.sampled_from([""] * 6 + [" ", "}", " x", "\x00"]))


def in_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("end", ENDS)
@settings(
    max_examples=1200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_sound_is_read_or_refused_as_msgspec_would(end: str, data: st.DataObject) -> None:
    text = data.draw(texts(end))
    reads_as_msgspec_does(end, text)
    reads_as_msgspec_does(end, in_utf8(text))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "told",
    [
        *(
            '"AA\\/+"',
            '"AA\\u002bA"',
            '"\\u0041AAA"',
            '"AAA"',
            '"AA"',
            '"A"',
            '"AAA=="',
            '"AA=A"',
            '"===="',
            '"AAAA===="',
        ),
        *(
            '"AB=="',
            '"AAB="',
            '"A_-A"',
            '"A AA"',
            '"AAA\\n"',
            '"AAAA\\n"',
            '" AAAA"',
            '"AAAé"',
            '"\ud800"',
            '"AAA\x00"',
        ),
        *("null", "0", "[]", "{}", "true", '""', '"'),
    ],
)
def test_each_oddity_is_read_or_refused_as_msgspec_would(end: str, told: str) -> None:
    field, *_, others = ENDS[end]
    text = json.dumps(others)[:-1] + f', "{field}": {told}}}'
    reads_as_msgspec_does(end, text)
    reads_as_msgspec_does(end, in_utf8(text))


@pytest.mark.parametrize("end", ENDS)
def test_sound_that_is_given_twice_counts_by_its_last(end: str) -> None:
    field, *_, others = ENDS[end]
    start = json.dumps(others)[:-1]
    for first in ('"AAAA"', '"AA\\/\\/"', '""'):
        found, values = reads_as_msgspec_does(end, f'{start},"{field}":{first},"{field}":"//8="}}')
        assert values[field] == b"\xff\xff", found
    for first, last in (("AAAA", "?"), ("?", "//8="), ("AAAA", "\\u0041"), ("AAAA", "")):
        reads_as_msgspec_does(end, f'{start},"{field}":"{first}","{field}":"{last}"}}')


@pytest.mark.parametrize("end", ENDS)
def test_the_mark_alone_is_sound_like_any_other(end: str) -> None:
    field, decode, *_, others = ENDS[end]
    start, mark = json.dumps(others)[:-1], base64.b64encode(sound._MARK).decode()
    assert reads_as_msgspec_does(end, f'{start},"{field}":"{mark}"}}')[1][field] == sound._MARK
    reads_as_msgspec_does(end, f'{start},"{field}":"{mark}","{field}":"AAAA"}}')
    # The one message that is read another way: a client that does this gets its first sound.
    assert getattr(decode(f'{start},"{field}":"AAAA","{field}":"{mark}"}}'), field) == bytes(3)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("left", ["", ",", ',"event_id', ',"event_id":7', ',"event_id":7}'])
def test_of_two_faults_the_first_is_told(end: str, left: str) -> None:
    """The sound's, also when the text ends too soon after it."""
    field, *_, others = ENDS[end]
    text = json.dumps({key: value for key, value in others.items() if key != "event_id"})[:-1]
    assert "is not valid base64" in reads_as_msgspec_does(end, f'{text},"{field}":"AAA?"{left}').message


# -- the short way itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that msgspec reads."""
    seen: list[int] = []

    class Noted:
        def __init__(self, decoder: Any) -> None:
            self.decoder = decoder

        def decode(self, text: str | bytes) -> Any:
            seen.append(len(text))
            return self.decoder.decode(text)

    for place in ("_COMMANDS", "_EVENTS"):
        decoder = getattr(codec, place)
        monkeypatch.setattr(decoder, "_json", Noted(decoder._json))
    return seen


@pytest.mark.parametrize("end", ENDS)
def test_usual_sound_takes_the_short_way_and_long_sound_alone(
    end: str, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    field, decode, *_, others = ENDS[end]
    for size in (0, 1, 2, 3, 4800):
        data = bytes(range(256)) * 20
        text = json.dumps({**others, field: base64.b64encode(data[:size]).decode()})
        assert getattr(decode(text), field) == data[:size]
        assert getattr(decode(text.encode()), field) == data[:size]
        assert getattr(decode(text.replace(": ", ":")), field) == data[:size]
    assert len(read) == 15
    assert len(set(read)) == 2, "with a mark instead of the sound, however long it is"
    monkeypatch.undo()
    with mock.patch.object(pybase64, "b64decode", side_effect=AssertionError("the short way")):
        short = json.dumps({**others, field: "AAAA"})
        assert getattr(decode(short), field) == bytes(3)
        with pytest.raises(AssertionError, match="the short way"):
            decode(json.dumps({**others, field: "AAAA" * 1100}))


# -- writing -------------------------------------------------------------------------------------------------------------


def stamped(event: Event) -> str:
    return encode_event(event, event_id=event.event_id, seq=event.server_event_seq)


TRAPS = st.sampled_from(
    ['"audio":""', '"delta":""', ',"delta":"",', "delta", "audio", '\\"delta\\":\\"\\"', "é\x00", ""]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=100), names=st.lists(TRAPS, min_size=4, max_size=4))
def test_sound_is_written_byte_for_byte_as_msgspec_would(data: bytes, names: list[str]) -> None:
    given_id, response_id, item_id, format_ = names
    append = InputAudioBufferAppend(event_id=given_id, audio=data, format=format_)
    assert encode_command(append).encode() == msgspec.json.encode(append)
    assert isinstance(DELTA, OutputAudioDelta)
    fields = {"event_id": given_id, "response_id": response_id, "item_id": item_id, "format": format_, "delta": data}
    delta = msgspec.structs.replace(DELTA, **fields)
    assert stamped(delta).encode() == msgspec.json.encode(delta)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))[1:]])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4800])
def test_sound_may_be_any_bytes(kind: Callable[[bytes], Any], size: int) -> None:
    data = kind(bytes(range(256)) * 19)[:size]
    append, delta = InputAudioBufferAppend(audio=data), msgspec.structs.replace(DELTA, delta=data)
    assert encode_command(append).encode() == msgspec.json.encode(append)
    assert stamped(delta).encode() == msgspec.json.encode(delta)


def test_only_long_sound_is_written_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with mock.patch.object(pybase64, "b64encode", side_effect=AssertionError("the short way")):
        encode_command(InputAudioBufferAppend(audio=bytes(640)))
        with pytest.raises(AssertionError, match="the short way"):
            encode_command(InputAudioBufferAppend(audio=bytes(4800)))


@pytest.mark.parametrize("name", COMMAND_EXAMPLES)
def test_every_command_is_written_as_msgspec_would(name: str) -> None:
    assert encode_command(COMMAND_EXAMPLES[name]).encode() == msgspec.json.encode(COMMAND_EXAMPLES[name])


@pytest.mark.parametrize("name", EVENT_EXAMPLES)
def test_every_event_is_written_as_msgspec_would(name: str) -> None:
    assert stamped(EVENT_EXAMPLES[name]).encode() == msgspec.json.encode(EVENT_EXAMPLES[name])
