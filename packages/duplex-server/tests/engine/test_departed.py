"""What is remembered of sessions that have ended: for whom, how many, and how long."""

from __future__ import annotations

import hashlib

import pytest

from duplex_core.errors import ErrorCode, error
from duplex_core.events import CloseReason, SessionClosed
from duplex_server.engine.attachment import Claim
from duplex_server.engine.departed import LEAST_S, Departed, Remains, SessionOver


def remains(name: str, token: str, spent: str | None = None) -> Remains:
    cause = error(ErrorCode.SHUTDOWN, "the server stops")
    closed = SessionClosed(session_id=name, reason=CloseReason.SHUTDOWN, error=cause, server_event_seq=7)
    old = None if spent is None else hashlib.sha256(spent.encode()).digest()
    return Remains(claim=Claim(current=hashlib.sha256(token.encode()).digest(), spent=old), closed=closed)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_has_a_token_is_told_the_end_and_its_cause() -> None:
    departed = Departed(grace_s=60.0, now=Clock())
    departed.add(remains("sess_1", "new", spent="old"))
    for token in ("new", "old"):
        over = departed.answer("sess_1", token)
        assert isinstance(over, SessionOver)
        assert over.closed.server_event_seq == 7
        assert over.info.code is ErrorCode.SESSION_CLOSED
        assert over.info.message == "session sess_1 has ended (shutdown): the server stops"


def test_who_has_none_learns_nothing() -> None:
    departed = Departed(grace_s=60.0, now=Clock())
    departed.add(remains("sess_1", "new"))
    wrong, unknown = departed.answer("sess_1", "other"), departed.answer("sess_2", "new")
    assert not isinstance(wrong, SessionOver)
    assert wrong.info == unknown.info
    assert wrong.info.code is ErrorCode.SESSION_NOT_FOUND


def test_all_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("duplex_server.engine.attachment.secrets.compare_digest", compare)
    claim = remains("sess_1", "new", spent="old").claim
    for token in ("new", "old", "other"):
        compared.clear()
        claim.opens(token)
        assert len(compared) == 2, token


def test_a_claim_before_the_first_token_opens_to_nobody() -> None:
    assert not Claim().opens("")


@pytest.mark.parametrize(("grace_s", "kept_s"), [(0.0, LEAST_S), (60.0, 60.0)])
def test_each_is_forgotten_when_its_time_is_over(grace_s: float, kept_s: float) -> None:
    clock = Clock()
    departed = Departed(grace_s=grace_s, now=clock)
    departed.add(remains("sess_1", "t"))
    clock.now += kept_s - 1.0
    departed.add(remains("sess_2", "t"))
    assert isinstance(departed.answer("sess_1", "t"), SessionOver)
    clock.now += 1.0
    assert not isinstance(departed.answer("sess_1", "t"), SessionOver)
    assert isinstance(departed.answer("sess_2", "t"), SessionOver)
    assert len(departed) == 1


def test_there_are_never_more_than_so_many() -> None:
    departed = Departed(grace_s=60.0, now=Clock(), most=3)
    for number in range(5):
        departed.add(remains(f"sess_{number}", "t"))
    assert len(departed) == 3
    assert not isinstance(departed.answer("sess_1", "t"), SessionOver)
    assert isinstance(departed.answer("sess_4", "t"), SessionOver)
