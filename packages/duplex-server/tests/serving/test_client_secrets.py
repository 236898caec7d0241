"""Short-lived keys for browsers: made by OpenAI's own client, good for realtime sessions alone, and not for long."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
import websockets

from duplex_core.errors import DuplexError, ErrorCode
from duplex_core.patch import SessionPatch
from duplex_server.serving import client_secrets
from duplex_server.serving.client_secrets import PREFIX, RESUME_S, ClientSecrets

PATH = "/v1/realtime/client_secrets"
OWNER = {"Authorization": "Bearer s3cret"}


def browser(secret: str) -> dict[str, Any]:
    """How a page shows a key."""
    return {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}


async def status_of(call: Any) -> int:
    try:
        async with call:
            return 101
    except websockets.InvalidStatus as exc:
        return exc.response.status_code


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_openais_client_makes_a_secret_with_which_its_realtime_client_connects(serving: Any) -> None:
    async with serving(key="s3cret", aliases=("gpt-realtime",)) as served:
        base: dict[str, Any] = {
            "base_url": f"{served.http}/v1",
            "websocket_base_url": f"ws://127.0.0.1:{served.port}/v1",
        }
        backend = openai.AsyncOpenAI(api_key="s3cret", _strict_response_validation=True, **base)
        async with backend:
            made = await backend.realtime.client_secrets.create(
                expires_after={"anchor": "created_at", "seconds": 60},
                session={
                    "type": "realtime",
                    "model": "gpt-realtime",
                    "instructions": "Speak like a pirate.",
                    "audio": {"output": {"voice": "marin"}, "input": {"turn_detection": None}},
                },
            )
        assert made.value.startswith(PREFIX)
        assert made.session.type == "realtime"
        assert made.session.instructions == "Speak like a pirate."
        page = openai.AsyncOpenAI(api_key=made.value, **base)
        async with page, page.realtime.connect(model="gpt-realtime") as connection, asyncio.timeout(20):
            event = await connection.recv()
            assert event.type == "session.created"
            assert event.session.type == "realtime"
            assert event.session.instructions == "Speak like a pirate."
            assert event.session.audio is not None
            assert event.session.audio.input is not None
            assert event.session.audio.input.turn_detection is None


async def test_a_secret_opens_realtime_sessions_and_nothing_else(serving: Any) -> None:
    async with serving(key="s3cret") as served, httpx.AsyncClient(base_url=served.http) as client:
        made = (await client.post(PATH, headers=OWNER, json={})).json()
        assert set(made) == {"value", "expires_at", "session"}
        for _ in range(2):
            assert await status_of(served.session(**browser(made["value"]))) == 101
        shown = {"Authorization": f"Bearer {made['value']}"}
        chat = {"model": "parrot", "messages": [{"role": "user", "content": "hello"}]}
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("GET", "/v1/realtime/capabilities", None),
            ("POST", "/v1/chat/completions", chat),
            ("POST", PATH, {}),
            ("GET", "/v1/elsewhere", None),
        ):
            refused = await client.request(method, path, headers=shown, json=body)
            assert refused.status_code == 401, path
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await client.post(PATH, json={})).status_code == 401, "making one needs the server's own key"
        for wrong in (made["value"][:-1], made["value"] + "x", PREFIX, "ek_unknown"):
            assert await status_of(served.session(**browser(wrong))) == 401


async def test_a_secret_ends_when_it_was_said_to_and_its_sessions_go_on(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(ClientSecrets.__init__, "__kwdefaults__", {"now": clock})
    async with serving(key="s3cret") as served, httpx.AsyncClient(base_url=served.http) as client:
        by_default = (await client.post(PATH, headers=OWNER)).json()
        assert by_default["expires_at"] == clock.now + 600
        made = (await client.post(PATH, headers=OWNER, json={"expires_after": {"seconds": 10}})).json()
        assert made["expires_at"] == clock.now + 10
        clock.now += 9.9
        async with served.session(**browser(made["value"])) as caller:
            clock.now += 0.1
            assert await status_of(served.session(**browser(made["value"]))) == 401
            await caller.say("session.heartbeat")
            await caller.until("session.heartbeat_ack")
            session = caller.seen[0]["session"]
            caller.socket.transport.abort()
        async with served.call("/v1/realtime?autostart=0", **browser(made["value"])) as again:
            await again.say(
                "session.resume",
                session_id=session["id"],
                resume_token=session["resume_token"],
                last_server_event_seq=2,
            )
            assert (await again.next())["type"] == "session.resumed"
        clock.now += RESUME_S
        assert await status_of(served.call("/v1/realtime?autostart=0", **browser(made["value"]))) == 401


async def test_a_session_begins_as_its_secret_says_and_can_be_changed_again(serving: Any) -> None:
    async with serving() as served, httpx.AsyncClient(base_url=served.http) as client:
        wanted = {
            "type": "realtime",
            "instructions": "Aye.",
            "input_audio_format": "g711_ulaw",
            "options": {"pace": 0.5},
        }
        made = (await client.post(PATH, json={"session": wanted})).json()
        assert made["session"]["audio"]["input"]["format"] == {"type": "audio/pcmu"}
        async with served.session(**browser(made["value"])) as caller:
            begun = caller.seen[0]["session"]
            assert begun["instructions"] == "Aye."
            assert begun["audio"]["input"]["format"] == {"type": "audio/pcmu"}
            assert begun["options"]["pace"] == 0.5
            await caller.say("session.update", session={"type": "realtime", "instructions": "No."})
            assert (await caller.until("session.updated"))["session"]["instructions"] == "No."
        async with served.session() as caller:
            assert caller.seen[0]["session"]["instructions"] == ""


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b'"hello"', "invalid_value", None),
        (b"\xff", "invalid_json", None),
        (b'{"expires_after": {"seconds": 9}}', "invalid_value", "expires_after.seconds"),
        (b'{"expires_after": {"seconds": 7201}}', "invalid_value", "expires_after.seconds"),
        (b'{"expires_after": {"anchor": "now"}}', "invalid_value", "expires_after.anchor"),
        (b'{"expires": 5}', "unknown_parameter", "expires"),
        (b'{"expires_after": {"minutes": 5}}', "unknown_parameter", "expires_after.minutes"),
        (b'{"session": {"instructionz": "x"}}', "unknown_parameter", "session.instructionz"),
        (b'{"session": {"speed": "fast"}}', "invalid_value", "session.speed"),
        (b'{"session": {"type": "transcription"}}', "unsupported_parameter", "session.type"),
        (b'{"session": {"model": "gpt-x"}}', "model_not_found", "session.model"),
        (b'{"session": {"tracing": "auto"}}', "unsupported_parameter", "session.tracing"),
        (b'{"session": {"options": {"pace": "x"}}}', "invalid_value", "session.options.pace"),
        (b'{"session": [[[[]]]]}', "invalid_value", "session"),
        (b'{"session": {"instructions": "' + b"x" * 1024 * 1024 + b'"}}', "event_too_large", None),
    ],
)
async def test_what_cannot_be_is_refused_by_name(served: Any, body: bytes, code: str, param: str | None) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        refused = await client.post(PATH, content=body, headers={"content-type": "application/json"})
    told = refused.json()["error"]
    assert 400 <= refused.status_code < 500
    assert (told["code"], told["param"]) == (code, param), told


async def test_null_is_as_if_left_out(served: Any) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        for body in ({"session": None, "expires_after": None}, {"session": {"type": "realtime", "voice": None}}):
            assert (await client.post(PATH, json=body)).status_code == 200


def test_only_hashes_are_kept() -> None:
    store = ClientSecrets()
    value, _ = store.create(None, 60)
    assert store.find(value) is not None
    assert value not in repr(vars(store))
    assert value.removeprefix(PREFIX) not in repr(vars(store))


def test_the_store_is_bounded_and_forgets_what_has_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(client_secrets, "MAX_SECRETS", 3)
    store = ClientSecrets(now=clock)
    short, _ = store.create(None, 10)
    long = [store.create(None, 7200)[0] for _ in range(2)]
    with pytest.raises(DuplexError) as caught:
        store.create(None, 60)
    assert caught.value.info.code is ErrorCode.RESOURCE_EXHAUSTED
    assert caught.value.info.retryable
    clock.now += 11
    assert store.find(short) is None
    assert store.find(short, expired=True) is not None
    fresh, _ = store.create(None, 60)
    assert len(store) == 3
    assert store.find(short, expired=True) is None
    assert all(store.find(each) is not None for each in (*long, fresh))


def test_the_configurations_that_are_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(client_secrets, "MAX_TOTAL_BYTES", 1000)
    store = ClientSecrets(now=clock)
    patch = SessionPatch(instructions="x" * 600)
    store.create(patch, 10, size=600)
    with pytest.raises(DuplexError):
        store.create(patch, 10, size=600)
    clock.now += 11
    store.create(patch, 10, size=600)
