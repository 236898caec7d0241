"""The small values: audio formats, the playback ledger, items, fences, errors."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex_core.audio import AudioEncoding, AudioFormat, pcm16_bytes, pcm16_ms
from duplex_core.commands import COMMAND_TYPES
from duplex_core.errors import MAX_MESSAGE_CHARS, MAX_PARAM_CHARS, ErrorCode, ErrorType, error, refuse
from duplex_core.events import EVENT_TYPES
from duplex_core.fence import Fence
from duplex_core.items import (
    FunctionCallItem,
    InputAudio,
    InputImage,
    InputText,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    item_text,
    misplaced_part,
)
from duplex_core.ledger import PlaybackLedger
from duplex_core.workers import SlotResult


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        (AudioEncoding.PCM16, 44100),
        (AudioEncoding.PCM16, 0),
        (AudioEncoding.FLOAT32, -8000),
        (AudioEncoding.PCMU, 16000),
        (AudioEncoding.PCMA, 24000),
    ],
)
def test_a_format_has_the_rates_of_its_encoding(encoding: AudioEncoding, rate: int) -> None:
    with pytest.raises(ValueError, match=f"no rate of {rate} Hz; use one of"):
        AudioFormat(encoding=encoding, rate_hz=rate)


@pytest.mark.parametrize(
    ("encoding", "rate", "size", "ms"),
    [
        (AudioEncoding.PCM16, 24000, 4800, 100.0),
        (AudioEncoding.FLOAT32, 16000, 6400, 100.0),
        (AudioEncoding.PCMU, 8000, 800, 100.0),
        (AudioEncoding.PCM16, 48000, 0, 0.0),
    ],
)
def test_bytes_last_as_long_as_their_samples(encoding: AudioEncoding, rate: int, size: int, ms: float) -> None:
    assert AudioFormat(encoding=encoding, rate_hz=rate).duration_ms(size) == ms


@given(st.integers(0, 10**6), st.sampled_from([8000, 16000, 24000, 48000]))
def test_bytes_and_milliseconds_are_each_others_inverse(samples: int, rate: int) -> None:
    assert pcm16_bytes(pcm16_ms(samples * 2, rate), rate) == samples * 2


MS = st.floats(-1e6, 1e9)


@given(st.lists(st.tuples(st.sampled_from(["generate", "send", "play", "commit"]), MS), max_size=30))
def test_no_operation_breaks_the_ledgers_order(operations: list[tuple[str, float]]) -> None:
    ledger = PlaybackLedger()
    for name, ms in operations:
        before = ledger
        ledger = getattr(ledger, name)(abs(ms) if name in ("generate", "send") else ms)
        assert ledger.generated_ms >= ledger.sent_ms >= ledger.played_ms >= ledger.committed_ms >= 0.0
        assert ledger.played_ms >= before.played_ms
        assert ledger.committed_ms >= before.committed_ms


def test_a_ledger_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="out of order"):
        PlaybackLedger(generated_ms=1.0, sent_ms=2.0)


@pytest.mark.parametrize(
    ("role", "content", "index"),
    [
        (Role.USER, (InputText(text="a"), InputAudio(), InputImage(image_url="data:")), None),
        (Role.USER, (InputText(text="a"), OutputText(text="b")), 1),
        (Role.SYSTEM, (InputAudio(),), 0),
        (Role.ASSISTANT, (OutputAudio(), OutputText(text="a")), None),
        (Role.ASSISTANT, (InputText(text="a"),), 0),
    ],
)
def test_a_part_that_its_role_cannot_have_is_found(
    role: Role, content: tuple[InputText | InputAudio | InputImage | OutputText | OutputAudio, ...], index: int | None
) -> None:
    assert misplaced_part(MessageItem(role=role, content=content)) == index


def test_the_words_of_an_item() -> None:
    heard = MessageItem(role=Role.USER, content=(InputAudio(transcript="Hello"), InputText(text="there"), InputAudio()))
    assert item_text(heard) == "Hello there"
    assert item_text(FunctionCallItem(name="f", arguments="{}")) == "{}"
    assert misplaced_part(FunctionCallItem(name="f", arguments="{}")) is None


def test_a_fence_admits_its_own_epoch_only() -> None:
    fence = Fence(session_id="s")
    assert fence.admits(fence.next_turn())
    assert not fence.next_epoch().admits(fence)
    assert not fence.admits(Fence(session_id="other"))


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_class(code: ErrorCode) -> None:
    info = error(code, "why", param="p", event_id="e")
    assert info.type in ErrorType
    assert info.retryable in (True, False)
    assert refuse(code, "why").info.code is code


def test_what_is_retryable_is_not_the_clients_fault() -> None:
    for code in ErrorCode:
        info = error(code, "why")
        assert not (info.retryable and info.type is ErrorType.INVALID_REQUEST), code


@pytest.mark.parametrize("cls", [*COMMAND_TYPES.values(), *EVENT_TYPES.values()])
def test_every_command_and_event_is_frozen_and_keyword_only(cls: type[msgspec.Struct]) -> None:
    config = cls.__struct_config__
    assert config.frozen
    assert all(field.name for field in msgspec.structs.fields(cls))
    assert cls.__doc__
    with pytest.raises(TypeError):
        cls("positional")


def test_an_error_quotes_nobody_at_length() -> None:
    info = error(ErrorCode.ITEM_NOT_FOUND, f"there is no item {'x' * 100_000}; list them", param="p" * 100_000)
    assert len(info.message) == MAX_MESSAGE_CHARS
    assert info.message.startswith("there is no item xx")
    assert info.message.endswith("xx; list them")
    assert len(info.param or "") == MAX_PARAM_CHARS
    short = error(ErrorCode.ITEM_NOT_FOUND, "m" * MAX_MESSAGE_CHARS, param="p" * MAX_PARAM_CHARS)
    assert (short.message, short.param) == ("m" * MAX_MESSAGE_CHARS, "p" * MAX_PARAM_CHARS)


def test_a_sentence_is_a_fault_of_the_stage_and_a_code_says_whose_it_is() -> None:
    assert SlotResult(slot=0).refusal is None
    assert SlotResult(slot=0, failed="no words").refusal == error(ErrorCode.ENGINE_ERROR, "no words")
    theirs = error(ErrorCode.INVALID_VALUE, "no word", param="session.options.word")
    assert SlotResult(slot=0, failed=theirs).refusal == theirs
