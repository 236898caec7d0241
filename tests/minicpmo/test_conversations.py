"""Conversations with MiniCPM-o through the whole server: asked, talked over, interrupted, listened to, and hung up on.

What the caller says is recorded human speech, at the pace at which it sounds. The order of some tests' waits follows the
conversation's own time.
"""

from __future__ import annotations

import asyncio
import json
import wave
from pathlib import Path

import pytest

from duplex_core.testing.speech import is_loud
from tests.minicpmo.conftest import TURN
from tests.minicpmo.served import OUTPUT_HZ, Answer, Conversation, call, write_down
from tests.support.clips import Clip
from tests.support.serving import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.clips,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(400),
]
WHOLE = "".join(TURN)


def said(clips: list[Clip], name: str, ms: float | None = None) -> bytes:
    """A recording by the end of its name, from its first loud frame on, all or ``ms`` of it."""
    pcm = next(clip for clip in clips if clip.name.endswith(name)).pcm()
    frames = range(0, len(pcm), 640)
    pcm = pcm[next(at for at in frames if is_loud(pcm[at : at + 640])) :]
    return pcm if ms is None else pcm[: round(ms) * 32]


def whole(answer: Answer) -> None:
    """An answer from its first word to its last, with about a second of sound for each unit."""
    assert (answer.status, answer.text) == ("completed", WHOLE)
    assert answer.ms == pytest.approx(1000.0 * len(TURN), abs=500.0)
    assert any(answer.pcm)


async def test_a_caller_greets_asks_interrupts_and_hangs_up(served: Served, clips: list[Clip], tmp_path: Path) -> None:
    async with call(served) as caller:
        await caller.say(said(clips, "0880"))
        await caller.sounded(await caller.answered(1))
        await caller.say(said(clips, "0930"))
        await caller.first_audio(2)
        await asyncio.sleep(2.0)
        await caller.say(said(clips, "0880"))
        cut = await caller.answered(2)
        await caller.answered(3)
        await caller.close()
    summary = write_down(caller, tmp_path)

    first, cut, last = caller.answers()
    whole(first)
    assert (cut.status, cut.reason) == ("cancelled", "turn_detected")
    assert WHOLE.startswith(cut.text)
    assert cut.text != WHOLE
    assert cut.heard_ms is not None
    assert 1000.0 <= cut.heard_ms <= 5000.0
    whole(last)  # from its first word on: what was interrupted is over
    assert cut.epochs == first.epochs == {0}
    assert last.epochs == {1}
    assert caller.seen[-1][1]["type"] == "session.closed"
    nothing_after_its_end(caller, cut)

    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["overlaps"] == ["interruption"]
    assert [answer["status"] for answer in summary["answers"]] == ["completed", "cancelled", "completed"]
    for told, answer in zip(summary["answers"], caller.answers(), strict=True):
        with wave.open(str(tmp_path / told["wav"])) as file:
            assert file.getframerate() == OUTPUT_HZ
            assert file.getnframes() == len(answer.heard) // 2


def nothing_after_its_end(caller: Conversation, answer: Answer) -> None:
    done = next(
        index
        for index, (_, event) in enumerate(caller.seen)
        if event["type"] == "response.done" and event["response"]["id"] == answer.response_id
    )
    assert not [event for _, event in caller.seen[done + 1 :] if event.get("response_id") == answer.response_id]


async def test_a_short_remark_is_talked_through_and_a_long_one_cuts(served: Served, clips: list[Clip]) -> None:
    async with call(served) as caller:
        await caller.say(said(clips, "0880"))
        await caller.first_audio(1)
        await asyncio.sleep(0.5)
        await caller.say(said(clips, "0930", 450.0))
        verdict = await caller.until("overlap.decision")
        assert verdict["decision"] == "backchannel"
        first = await caller.answered(1)
        await caller.sounded(first)

        await caller.say(said(clips, "0930"))
        await caller.first_audio(2)
        await caller.say(said(clips, "0920", 3000.0))
        verdict = await caller.until("overlap.decision", count=2)
        assert verdict["decision"] == "interruption"
        second = await caller.answered(2)
        await caller.close()
    whole(first)
    assert second.status == "cancelled"
    assert second.text != WHOLE


async def test_a_session_that_is_only_listened_to_hears_nothing_back_and_harms_nobody(
    served: Served, clips: list[Clip]
) -> None:
    async with call(served, options={"forced_listen": 60}) as listened, call(served) as caller:
        await asyncio.gather(listened.say(said(clips, "0870")), caller.say(said(clips, "0880")))
        await caller.answered(1)
        await listened.until("response.listen", count=9)
        await listened.close()
        await caller.close()
    assert not listened.answers()
    assert not listened.of("error")
    (answer,) = caller.answers()
    whole(answer)
