"""The model's audio on its way out: every format, no sample lost, no answer's sound in another's."""

from __future__ import annotations

import pytest

from duplex_core.audio import PCM_RATES_HZ, AudioEncoding, AudioFormat
from duplex_core.fence import Fence
from duplex_core.ledger import TextMark
from duplex_core.model import Decision, EndTurn, Speak, ToolCall
from duplex_core.testing.speech import burst, silence
from duplex_server.engine.speaking import Speaking

RATE_HZ = 16_000
TURN = Fence(session_id="s", turn=1)
FORMATS = [
    *(
        AudioFormat(encoding=each, rate_hz=hz)
        for each in (AudioEncoding.PCM16, AudioEncoding.FLOAT32)
        for hz in PCM_RATES_HZ
    ),
    AudioFormat(encoding=AudioEncoding.PCMU, rate_hz=8000),
    AudioFormat(encoding=AudioEncoding.PCMA, rate_hz=8000),
]


def sound(decisions: tuple[Decision, ...]) -> bytes:
    return b"".join(each.pcm for each in decisions if isinstance(each, Speak))


@pytest.mark.parametrize("audio_format", FORMATS, ids=str)
def test_an_answer_keeps_its_length_in_every_format(audio_format: AudioFormat) -> None:
    speaking = Speaking(RATE_HZ)
    said = burst(500, RATE_HZ)
    out = b"".join(
        sound(speaking.convert(Speak(fence=TURN, pcm=said[at : at + 640]), audio_format))
        for at in range(0, len(said), 640)
    )
    out += sound(speaking.convert(EndTurn(fence=TURN), audio_format))
    assert audio_format.duration_ms(len(out)) == pytest.approx(500, abs=0.2)


def test_the_tail_comes_before_what_ends_the_speech() -> None:
    speaking = Speaking(RATE_HZ)
    for end in (EndTurn(fence=TURN), ToolCall(fence=TURN, call_id="c", name="n", arguments="{}")):
        speaking.convert(Speak(fence=TURN, pcm=burst(100, RATE_HZ)), FORMATS[2])
        tail, last = speaking.convert(end, FORMATS[2])
        assert isinstance(tail, Speak)
        assert tail.pcm
        assert last is end
        assert speaking.convert(end, FORMATS[2]) == (end,), "there is one tail"


def test_text_and_marks_pass_as_they_are() -> None:
    speaking = Speaking(RATE_HZ)
    piece = Speak(fence=TURN, pcm=burst(60, RATE_HZ), text="word ", marks=(TextMark(chars=4, ms=60.0),))
    (got,) = speaking.convert(piece, FORMATS[2])
    assert isinstance(got, Speak)
    assert (got.text, got.marks) == (piece.text, piece.marks)
    written = Speak(fence=TURN, text="word ")
    assert speaking.convert(written, FORMATS[2]) == (written,)


def test_sound_that_needs_no_conversion_is_not_touched() -> None:
    speaking = Speaking(RATE_HZ)
    as_it_is = AudioFormat(encoding=AudioEncoding.PCM16, rate_hz=RATE_HZ)
    piece = Speak(fence=TURN, pcm=burst(60, RATE_HZ), text="word ")
    assert speaking.convert(piece, as_it_is)[0] is piece
    end = EndTurn(fence=TURN)
    assert speaking.convert(end, as_it_is) == (end,), "nothing was held back"


@pytest.mark.parametrize("audio_format", FORMATS, ids=str)
def test_half_a_sample_is_the_models_fault(audio_format: AudioFormat) -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        Speaking(RATE_HZ).convert(Speak(fence=TURN, pcm=b"abc"), audio_format)


@pytest.mark.parametrize("reset", [True, False])
def test_an_interrupted_answer_leaves_nothing_in_the_next(reset: bool) -> None:
    speaking = Speaking(RATE_HZ)
    speaking.convert(Speak(fence=TURN, pcm=burst(100, RATE_HZ)), FORMATS[2])
    if reset:
        speaking.reset()
    after = TURN.next_epoch().next_turn()
    assert not any(sound(speaking.convert(EndTurn(fence=after), FORMATS[2])))
    out = sound(speaking.convert(Speak(fence=after, pcm=silence(100, RATE_HZ)), FORMATS[2]))
    out += sound(speaking.convert(EndTurn(fence=after), FORMATS[2]))
    assert not any(out), "the old answer rings on in the new one"
    assert FORMATS[2].duration_ms(len(out)) == pytest.approx(100, abs=0.2)
