"""Who may use the server: origins of web pages, authenticators, further names of the model, and what a refusal logs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
import websockets

from duplex_core.authentication import Credentials, Principal
from duplex_core.events import CloseReason, Event
from duplex_core.hookspecs import hookimpl
from duplex_core.observers import ObservedSession, SessionObserverSpec
from duplex_core.patch import SessionPatch
from duplex_server.serving import keys as keys_module
from duplex_server.serving.keys import shown_keys
from duplex_server.serving.origins import is_loopback

PAGES_OF_THIS_MACHINE = (
    "http://localhost:3000",
    "https://localhost",
    "http://127.0.0.1:8080",
    "http://127.9.9.9",
    "http://[::1]:5173",
    "http://app.localhost:3000",
    "capacitor://localhost",
)
OTHER_PAGES = (
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://evil.example:8000",
    "null",
    "file://",
    "http://10.0.0.7",
    "http://[::1",
    "",
)


async def handshake(served: Any, **options: Any) -> int:
    """The status of a handshake: 101 when the socket opens."""
    try:
        async with served.session(**options):
            return 101
    except websockets.InvalidStatus as exc:
        return exc.response.status_code


async def test_pages_of_this_machine_may_in_and_others_may_not(served: Any) -> None:
    for origin in PAGES_OF_THIS_MACHINE:
        assert await handshake(served, additional_headers={"Origin": origin}) == 101, origin
    for origin in OTHER_PAGES:
        assert await handshake(served, additional_headers={"Origin": origin}) == 403, origin
    assert await handshake(served) == 101


async def test_listed_origins_may_in_and_browsers_are_told_so(serving: Any) -> None:
    listed = ("https://talk.example.com", "https://Other.example.com/")
    async with serving(allow_origins=listed) as served, httpx.AsyncClient(base_url=served.http) as client:
        for origin in (*listed, "https://other.example.com", "http://localhost:1"):
            assert await handshake(served, additional_headers={"Origin": origin.rstrip("/")}) == 101, origin
            answer = await client.get("/v1/models", headers={"Origin": origin})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin
        for origin in ("https://talk.example.com.evil", "http://talk.example.com", "https://example.com"):
            assert await handshake(served, additional_headers={"Origin": origin}) == 403, origin
            refused = await client.post("/v1/chat/completions", headers={"Origin": origin}, json={})
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "origin_not_allowed"
            assert f"--allow-origin {origin}" in refused.json()["error"]["message"]
            assert "access-control-allow-origin" not in refused.headers


async def test_a_star_lets_every_page_in(serving: Any) -> None:
    async with serving(allow_origins=("*",)) as served:
        for origin in ("https://evil.example", "null"):
            assert await handshake(served, additional_headers={"Origin": origin}) == 101


async def test_a_browser_asks_before_it_sends_a_key_and_needs_none_to_ask(serving: Any) -> None:
    async with serving(key="s3cret") as served, httpx.AsyncClient(base_url=served.http) as client:
        asking = {
            "Origin": "http://localhost:3000",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        told = await client.options("/v1/realtime/client_secrets", headers=asking)
        assert told.status_code == 200
        assert told.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "authorization" in told.headers["access-control-allow-headers"]
        foreign = await client.options("/v1/models", headers={**asking, "Origin": "https://evil.example"})
        assert foreign.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_only_this_machine_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com", "localhost.example.com", ""])  # noqa: S104
def test_other_machines_reach_everything_else(host: str) -> None:
    assert not is_loopback(host)


async def test_a_refusal_is_told_and_not_logged_as_a_fault(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(key="s3cret") as served:
        with caplog.at_level(logging.INFO):
            assert await handshake(served) == 401
            assert await handshake(served, path="/elsewhere") == 404
            assert await handshake(served, additional_headers={"Origin": "https://evil.example"}) == 403
            await asyncio.sleep(0)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
        assert "s3cret" not in caplog.text


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that is shown is compared whole, by the one function that is made for it, and by no other."""
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("duplex_server.serving.keys.secrets.compare_digest", compare)
    assert not keys_module._same("s3cre", b"s3cret")
    assert keys_module._same("s3cret", b"s3cret")
    assert compared == [b"s3cre", b"s3cret"]


@pytest.mark.parametrize(
    ("authorization", "protocols", "shown"),
    [
        (None, (), []),
        ("Bearer abc", (), ["abc"]),
        ("bearer  abc ", (), ["abc"]),
        ("Bearer ", (), []),
        ("Basic abc", (), []),
        (None, ("realtime", "openai-insecure-api-key.xyz"), ["xyz"]),
        ("Bearer abc", ("openai-insecure-api-key.xyz",), ["abc", "xyz"]),
    ],
)
def test_where_a_key_may_stand(authorization: str | None, protocols: tuple[str, ...], shown: list[str]) -> None:
    assert shown_keys(authorization, protocols) == shown


# -- an authenticator --------------------------------------------------------------------------------------------------


class Guests:
    """Knows guests by their key, and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Credentials] = []

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        self.asked.append(credentials)
        await asyncio.sleep(0)
        if credentials.key == "broken":
            raise ConnectionError("the directory does not answer")
        if credentials.key == "slow":
            await asyncio.sleep(60)
        guest = Principal(id="guest", realtime_only=True, session=SessionPatch(instructions="Be brief."))
        return {"ada": Principal(id="ada"), "guest": guest}.get(credentials.key or "")


def bearer(key: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


async def test_an_authenticator_decides_who_may_in_and_with_which_session(serving: Any) -> None:
    guests = Guests()
    async with serving(authenticator=guests) as served, httpx.AsyncClient(base_url=served.http) as client:
        assert await handshake(served) == 401
        assert await handshake(served, **bearer("alan")) == 401
        async with served.session(**bearer("ada")) as caller:
            assert caller.seen[0]["session"]["instructions"] == ""
        async with served.session(subprotocols=["realtime", "openai-insecure-api-key.guest"]) as caller:
            assert caller.seen[0]["session"]["instructions"] == "Be brief."
        assert guests.asked[-1].path == "/v1/realtime"
        assert guests.asked[-1].client_host == "127.0.0.1"
        assert guests.asked[-1].headers["upgrade"] == "websocket"
        assert "guest" not in repr(guests.asked[-1])
        for key, status in (("ada", 200), ("guest", 401), ("alan", 401)):
            answer = await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == status


async def test_an_authenticator_is_asked_once_for_a_socket_and_never_for_a_frame(serving: Any) -> None:
    guests = Guests()
    async with serving(authenticator=guests) as served, served.session(**bearer("ada")) as caller:
        for _ in range(20):
            await caller.say("session.heartbeat")
            await caller.until("session.heartbeat_ack")
    assert len(guests.asked) == 1


async def test_the_servers_own_key_needs_no_authenticator(serving: Any) -> None:
    guests = Guests()
    async with serving(key="s3cret", authenticator=guests) as served:
        assert await handshake(served, **bearer("s3cret")) == 101
        assert guests.asked == []
        assert await handshake(served, **bearer("ada")) == 101


async def test_an_authenticator_that_fails_lets_nobody_in(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys_module, "AUTHENTICATOR_TIMEOUT_S", 0.05)
    async with serving(authenticator=Guests()) as served, httpx.AsyncClient(base_url=served.http) as client:
        for key in ("broken", "slow"):
            assert await handshake(served, **bearer(key)) == 500
            answer = await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 500
        assert served.engine.sessions.taken == 0
        assert "the directory does not answer" in caplog.text


# -- further names -----------------------------------------------------------------------------------------------------


async def test_a_model_answers_to_its_further_names_wherever_a_name_is_given(serving: Any) -> None:
    names = ("gpt-realtime", "team/voice")
    async with serving(aliases=names) as served, httpx.AsyncClient(base_url=served.http) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [card["id"] for card in listed] == ["parrot", *names]
        assert (await client.get("/v1/models/team/voice")).json()["id"] == "team/voice"
        missing = await client.get("/v1/models/gpt-x")
        assert missing.status_code == 404
        assert "parrot, gpt-realtime, team/voice" in missing.json()["error"]["message"]
        for name in ("parrot", *names):
            asked = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
            assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
            async with served.session(f"/v1/realtime?model={name}") as caller:
                await caller.say("session.update", session={"type": "realtime", "model": name, "instructions": "Aye."})
                updated = await caller.until("session.updated", "error")
                assert updated["type"] == "session.updated"
                assert updated["session"]["model"] == "parrot"
                await caller.say("session.update", session={"type": "realtime", "model": "gpt-x"})
                refused = await caller.until("error")
                assert refused["error"]["param"] == "session.model"


class Names:
    """A plugin whose observer writes down who has opened each session."""

    def __init__(self) -> None:
        self.opened_by: list[Principal | None] = []

    def opened(self, session: ObservedSession) -> None:
        self.opened_by.append(session.principal)

    def event(self, session_id: str, event: Event) -> None:
        pass

    def closed(self, session_id: str, reason: CloseReason) -> None:
        pass

    @hookimpl
    def duplex_register_session_observers(self) -> list[SessionObserverSpec]:
        return [SessionObserverSpec(id="names", summary="", create=lambda: self)]


async def test_observers_are_told_who_has_opened_a_session(serving: Any) -> None:
    names = Names()
    async with serving(key="s3cret", authenticator=Guests(), extra=(names,)) as served:
        await (await served.engine.open_session()).aclose()
        async with httpx.AsyncClient(base_url=served.http) as client:
            secret = (
                await client.post("/v1/realtime/client_secrets", headers={"Authorization": "Bearer s3cret"})
            ).json()["value"]
        for shown in ("s3cret", "ada", secret):
            async with served.session(**bearer(shown)):
                pass
    ids = [None if principal is None else principal.id for principal in names.opened_by]
    assert ids == [None, "api-key", "ada", "client-secret"]
    names = Names()
    async with serving(extra=(names,)) as served, served.session():
        assert [principal.id for principal in names.opened_by if principal] == ["anybody"]
