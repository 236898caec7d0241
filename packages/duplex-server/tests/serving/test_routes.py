"""The routes beside the socket and the chat: what is here, what is not, and who may ask."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import websockets


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/audio/speech"),
        ("POST", "/v1/responses"),
        ("GET", "/v1/anything/at/all"),
        ("DELETE", "/v1/files/1"),
    ],
)
async def test_every_other_v1_route_says_that_it_is_not_here(served: Any, method: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 501
    assert "not available on a duplex server" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/chat/completions", "POST"),
        ("GET", "/v1/realtime/client_secrets", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/models/parrot", "GET, HEAD"),
        ("POST", "/v1/realtime/capabilities", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("DELETE", "/metrics", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
    ],
)
async def test_a_known_address_says_how_it_is_asked(served: Any, method: str, path: str, allow: str) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.request(method, path)
    told = answer.json()["error"]
    assert (answer.status_code, answer.headers["allow"], told["code"]) == (405, allow, "method_not_allowed")
    assert method in told["message"]
    assert allow.partition(",")[0] in told["message"]


async def test_every_route_refuses_the_methods_that_it_does_not_have(served: Any) -> None:
    """Whatever is added later, too: taken from the list that the server itself gives."""
    async with httpx.AsyncClient(base_url=served.http) as client:
        routes = (await client.get("/")).json()["routes"]
        addresses = {each.split(" ")[1] for each in routes}
        for path in addresses:
            has = {each.split(" ")[0] for each in routes if each.endswith(f" {path}")}
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - has:
                answer = await client.request(method, path.replace("{name}", "parrot"))
                assert answer.status_code == (426 if has == {"WebSocket"} else 405), (method, path)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/duplex"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_plain_request_to_the_socket_is_told_to_upgrade(served: Any, method: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        answer = await client.request(method, f"{path}?model=parrot")
    told = answer.json()["error"]
    assert (answer.status_code, answer.headers["upgrade"], told["code"]) == (426, "websocket", "upgrade_required")
    assert f"{path} is a WebSocket" in told["message"]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/v1/chat/completions", 400, "is no WebSocket: ask it with POST"),
        ("/health", 400, "is no WebSocket: ask it with GET"),
        ("/v1/elsewhere", 404, "conversations are held at /v1/realtime"),
        ("/realtime", 404, "conversations are held at /v1/realtime"),
        ("/", 400, "is no WebSocket"),
    ],
)
async def test_a_socket_in_the_wrong_place_is_shown_the_right_one(
    served: Any, path: str, status: int, says: str
) -> None:
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with served.call(path):
            pass
    answer = caught.value.response
    assert answer.status_code == status
    assert says in json.loads(answer.body or b"")["error"]["message"]


async def test_the_address_alone_tells_what_the_server_is_and_has(served: Any) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        told = (await client.get("/")).json()
        lost = await client.get("/realtime")
        head = await client.head("/health")
    assert (told["name"], told["model"]) == ("duplex-server", "parrot")
    assert set(told["routes"]) == {
        "GET /",
        "GET /health",
        "GET /metrics",
        "GET /v1/models",
        "GET /openapi.json",
        "GET /v1/models/{name}",
        "GET /v1/realtime/capabilities",
        "POST /v1/chat/completions",
        "POST /v1/realtime/client_secrets",
        "WebSocket /v1/realtime",
        "WebSocket /v1/duplex",
    }
    assert all(told["routes"].values()), "each says what it is for"
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")
    assert "GET /" in lost.json()["error"]["message"]
    assert (head.status_code, head.content) == (200, b"")


async def test_a_slash_too_many_leads_to_the_route(served: Any) -> None:
    body = {"model": "parrot", "messages": [{"role": "user", "content": "one"}]}
    async with httpx.AsyncClient(base_url=served.http, follow_redirects=True) as client:
        answer = await client.post("/v1/chat/completions/", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "one"


async def test_models_and_capabilities_name_what_is_served(served: Any) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        models = (await client.get("/v1/models")).json()
        card = (await client.get("/v1/models/parrot")).json()
        missing = await client.get("/v1/models/gpt-x")
        broken = await client.get("/v1/models/gpt%0Ax")
        told = (await client.get("/v1/realtime/capabilities")).json()
    assert [each["id"] for each in models["data"]] == ["parrot"]
    assert card == models["data"][0]
    assert (missing.status_code, broken.status_code) == (404, 404)
    assert {each.json()["error"]["code"] for each in (missing, broken)} == {"model_not_found"}
    assert told["model"] == "parrot"
    assert told["capabilities"]["input_rate_hz"] == 16000
    assert told["capabilities"]["tools"] is True
    assert {each["type"] for each in told["audio_formats"]} == {
        "audio/pcm",
        "audio/pcmu",
        "audio/pcma",
        "audio/float32",
    }


async def test_health_tells_ready_from_alive(served: Any) -> None:
    async with httpx.AsyncClient(base_url=served.http) as client:
        ready = await client.get("/health")
        async with served.session():
            busy = (await client.get("/health")).json()
        await served.engine.shutdown(0.0)
        draining = await client.get("/health")
        async with served.call() as refused:
            told = await refused.next()
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert busy["sessions"] == 1
    assert draining.status_code == 503
    assert draining.json() | {"alive": True, "ready": False, "draining": True} == draining.json()
    assert told["error"]["code"] == "shutdown"
    assert told["error"]["retryable"] is True


async def test_metrics_count_what_happened(served: Any, speech: bytes) -> None:
    async with served.session() as caller:
        await caller.by_hand()
        await caller.append(speech)
        await caller.say("input_audio_buffer.commit", response_create=True)
        await caller.until("response.output_audio.delta")
        await caller.say("response.cancel")
        await caller.until("response.done")
        async with httpx.AsyncClient(base_url=served.http) as client:
            text = (await client.get("/metrics")).text
        assert "duplex_sessions 1.0" in text
        assert 'duplex_admissions_total{outcome="admitted"} 1.0' in text
        assert "duplex_interruptions_total 1.0" in text
        assert 'duplex_responses_total{status="cancelled"} 1.0' in text
        assert 'duplex_stage_seconds_count{stage="cut"} 1.0' in text
        assert value_of("duplex_received_bytes_total", text) > len(speech), "speech is longer in base64"
        assert value_of("duplex_sent_bytes_total", text) > 0
        assert value_of("duplex_sent_bytes_created", text) > 0
        assert 'duplex_waiting{queue="commands"} 0.0' in text
        assert 'duplex_waiting{queue="events"} 0.0' in text
        await caller.say("session.close")
        await caller.rest()
    async with httpx.AsyncClient(base_url=served.http) as client:
        text = (await client.get("/metrics")).text
    assert "duplex_sessions 0.0" in text
    assert 'duplex_sessions_closed_total{reason="client_closed"} 1.0' in text
    assert "duplex_interruptions_total 1.0" in text, "closing is no interruption"


def value_of(series: str, text: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(line.split()[1])


async def test_a_key_is_asked_for_everywhere_under_v1(serving: Any) -> None:
    async with serving(key="sésame") as served:
        right = {b"Authorization": "Bearer sésame".encode()}
        wrong: list[Any] = [{}, {"Authorization": "Bearer sesame"}, {b"Authorization": "sésame".encode()}]
        async with httpx.AsyncClient(base_url=served.http) as client:
            for path in ("/v1/models", "/v1/realtime/capabilities", "/v1/elsewhere"):
                for headers in wrong:
                    refused = await client.get(path, headers=headers)
                    assert refused.status_code == 401, (path, headers)
                    assert refused.json()["error"]["code"] == "invalid_api_key"
            assert (await client.post("/v1/chat/completions", json={})).status_code == 401
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/v1/models", headers=right)).status_code == 200


async def test_a_key_opens_the_socket_by_header_or_by_subprotocol(serving: Any) -> None:
    async with serving(key="s3cret") as served:
        async with httpx.AsyncClient(base_url=served.http) as client:
            assert (await client.get("/v1/models", headers={"Authorization": "Bearer s3cret"})).status_code == 200
        async with served.session(additional_headers={"Authorization": "Bearer s3cret"}):
            pass
        protocols = ["realtime", "openai-insecure-api-key.s3cret", "openai-beta.realtime-v1"]
        async with served.session(subprotocols=protocols) as caller:
            assert caller.socket.subprotocol == "realtime"
        for wrong in ({}, {"subprotocols": ["realtime", "openai-insecure-api-key.s3cre"]}):
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with served.call(**wrong):
                    pass
            assert caught.value.response.status_code == 401
        assert served.engine.sessions.taken == 0
