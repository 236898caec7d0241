"""Where pictures and recordings stand in a chat's prompt, whatever is written beside them."""

from __future__ import annotations

import pytest
import torch

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.torch_tensors import of_torch
from duplex_core.workers import Append, Sampling
from model_minicpmo.gpu.chatting import _prompt
from model_minicpmo.gpu.layout import Layout
from model_minicpmo.payloads import Picture, SensedMessage, SensedPart
from model_minicpmo.testing.checkpoint import write_checkpoint
from model_minicpmo.testing.sizes import TINY

pytestmark = pytest.mark.engines

HEARD = SensedPart(audio=of_torch(torch.ones(10, 4)))
SEEN = SensedPart(picture=Picture(whole=of_torch(torch.full((64, 4), 2.0))))


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return Layout(write_checkpoint(tmp_path_factory.mktemp("checkpoint"), TINY))


def user(*parts: SensedPart | str) -> SensedMessage:
    made = (SensedPart(text=part) if isinstance(part, str) else part for part in parts)
    return SensedMessage(role="user", parts=tuple(made))


def prompt(layout: Layout, *messages: SensedMessage) -> Append:
    return _prompt(layout, messages).append(Sampling())


@pytest.mark.parametrize(
    "parts",
    [
        ("<audio>.", "/</audio>"),
        ("<image", ">./</im", "age>"),
        ("<audio>./</audio>",),
        ("<audio>.", "", "/</image>"),
    ],
)
def test_marks_that_a_user_writes_are_words(layout: Layout, parts: tuple[str, ...]) -> None:
    written = prompt(layout, user(*parts))
    assert written.embeds is None
    apart = "".join(parts).replace("./", ". /")
    assert written.ids == prompt(layout, user(apart)).ids
    beside = prompt(layout, user(*parts, HEARD, *parts, SEEN))
    assert beside.embeds is not None
    assert beside.embeds.shape == (74, 4)
    assert [beside.embed_at[10] - beside.embed_at[9] > 2, beside.ids[beside.embed_at[0] - 1]] == [
        True,
        layout.tokens.audio_start,
    ]


def test_a_template_that_leaves_a_recording_out_is_found(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the published one does with what stands before the end of the assistant's thoughts."""
    template = "{% for each in messages %}{{ each.content.split('</think>')[-1] }}{% endfor %}"
    monkeypatch.setattr(layout.tokenizer, "chat_template", template)
    with pytest.raises(DuplexError, match=r"2 pictures and recordings, but .* leaves places for 1") as refused:
        prompt(layout, user(HEARD, "</think>", SEEN))
    assert refused.value.info.code is ErrorCode.INVALID_VALUE
