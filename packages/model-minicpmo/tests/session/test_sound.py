"""Sound on its way from the session and the chat to the senses."""

from __future__ import annotations

import sys
from array import array

import pytest

from duplex_core import model as m
from duplex_core.errors import ErrorCode
from duplex_core.fence import Fence
from duplex_core.items import InputAudio, MessageItem, Role
from duplex_core.spec import Checkpoint, SessionContext
from model_minicpmo.chat import ChatAnswer
from model_minicpmo.payloads import Chat
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.sound import float32

(SPEC,) = duplex_register_models()


def test_samples_become_the_floats_that_they_stand_for() -> None:
    integers = array("h", range(-32768, 32768))
    if sys.byteorder == "big":
        integers.byteswap()
    floats = array("f", float32(integers.tobytes()))
    if sys.byteorder == "big":
        floats.byteswap()
    assert floats.tolist() == [value / 32768 for value in range(-32768, 32768)]
    assert float32(b"") == b""


def ask(*recordings: bytes) -> m.ModelOutput:
    """What a chat of so many messages, each with a recording, makes of the request, in a context of 1024 positions."""
    deploy = MiniCPMOSettings.model_validate({"thinker": {"max_model_len": 1024}})
    config = SPEC.session_config(deploy)
    context = SessionContext(
        session_id="c", config=config, deploy=deploy, checkpoint=Checkpoint(name="minicpmo"), chat=True
    )
    history = tuple(MessageItem(role=Role.USER, content=(InputAudio(audio=pcm),)) for pcm in recordings)
    fence = Fence(session_id="c")
    (output,) = ChatAnswer(context).handle(
        m.Respond(response_id="r", fence=fence, config=config, history=history, cause=m.ResponseCause.CLIENT), 0.0
    )
    return output


def test_a_chat_passes_its_sound_on_as_it_came() -> None:
    pcm = bytes(range(256)) * 125
    output = ask(pcm, pcm)
    assert isinstance(output, m.Submit)
    chat = output.request.payload
    assert isinstance(chat, Chat)
    for message in chat.messages[-2:]:
        (part,) = message.parts
        assert part.samples is not None
        assert (part.samples.dtype, part.samples.shape) == ("int16", (16_000,))
        assert bytes(part.samples.data) == pcm


@pytest.mark.parametrize(("each", "fits"), [(51.2, True), (51.3, False), (30 * 60.0, False)])
def test_a_chat_whose_sound_fills_the_context_is_refused_by_its_length(each: float, fits: bool) -> None:
    pcm = bytes(2 * int(16_000 * each))
    output = ask(pcm, pcm)
    if fits:
        assert isinstance(output, m.Submit)
        return
    assert isinstance(output, m.Failed)
    assert (output.error.code, output.error.retryable) == (ErrorCode.CONTEXT_FULL, False)
    assert "positions of a context of 1024" in output.error.message
