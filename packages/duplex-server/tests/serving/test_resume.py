"""Sessions that outlive their sockets: resumed without loss or repeat, taken over, refused, expired. Over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

RESUME = "/v1/realtime?autostart=0"


def break_off(caller: Any) -> None:
    """Lose the connection, without a word."""
    caller.socket.transport.abort()


def token_of(caller: Any) -> tuple[str, str]:
    """The session's id and the token that was told last."""
    told = [e["session"] for e in caller.seen if e["type"] in {"session.created", "session.resumed"}][-1]
    return told["id"], told["resume_token"]


def numbered(caller: Any) -> list[dict[str, Any]]:
    """The session's own events, without those about the socket."""
    about_socket = {"session.resumed", "session.replaced", "session.resync_required"}
    return [e for e in caller.seen if e["type"] not in about_socket]


@contextlib.asynccontextmanager
async def resumed(served: Any, session_id: str, token: str, last: int) -> AsyncIterator[Any]:
    async with served.call(RESUME) as caller:
        await caller.say("session.resume", session_id=session_id, resume_token=token, last_server_event_seq=last)
        yield caller


async def test_resume_without_loss_or_repeat_wherever_an_answer_is_cut(served: Any, speech: bytes) -> None:
    """Lose the socket after the first event of an answer, after the second, and so on to the last."""
    cut_after = 0
    finished = False
    while not finished:
        cut_after += 1
        async with served.session() as first:
            await first.by_hand(options={"pace": 0.02})
            await first.append(speech)
            await first.say("input_audio_buffer.commit", response_create=True)
            before = len(first.seen)
            while len(first.seen) - before < cut_after and not finished:
                finished = (await first.next())["type"] == "response.done"
            break_off(first)
        seen = list(first.seen)
        async with resumed(served, *token_of(first), seen[-1]["server_event_seq"]) as second:
            told = await second.next()
            assert told["type"] == "session.resumed"
            assert told["server_event_seq"] == seen[-1]["server_event_seq"]
            assert told["session"]["attachment_generation"] == 2
            if not finished:
                await second.until("response.done")
            await second.say("session.close")
            await second.rest()
        whole = seen + numbered(second)
        assert [e["server_event_seq"] for e in whole] == list(range(1, len(whole) + 1)), cut_after
        assert len({e["event_id"] for e in whole}) == len(whole)
        assert [e["type"] for e in whole].count("response.done") == 1
        assert whole[-1]["type"] == "session.closed"
        assert served.engine.sessions.taken == 0
    assert cut_after > 15
