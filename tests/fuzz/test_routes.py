"""The HTTP routes under odd requests: each is answered as the server's own OpenAPI document says, and nothing fails.

Bounded, and the same each time; the long run is schemathesis by hand, as the documentation of broken frames says.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import Any

import httpx
import jsonschema
import pytest

from benchmarks.fuzz.frames import ODD_VALUES, broken
from duplex_server.serving.client_secrets import ClientSecretRequest
from tests.support.serving import Served, serving

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "parrot",
        "messages": [
            {"role": "system", "content": "Aye."},
            {"role": "user", "content": [{"type": "text", "text": "one two"}]},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "clock", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "noon"},
        ],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "max_tokens": 5,
        "stream": False,
    },
    "/v1/realtime/client_secrets": {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "session": {
            "type": "realtime",
            "instructions": "Aye.",
            "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}, "turn_detection": None}},
            "tools": [{"type": "function", "name": "clock"}],
        },
    },
}
GETS = [
    "/",
    "/openapi.json",
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/parrot",
    "/v1/models/%00%0A",
    "/v1/realtime/capabilities",
]


class Described:
    """The document, and what it says of an answer."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def judge(self, answer: httpx.Response) -> None:
        """Fail unless ``answer`` is one that its route may give."""
        path = answer.request.url.path
        path = "/v1/models/{name}" if path.startswith("/v1/models/") else path
        described = self.document["paths"][path][answer.request.method.lower()]["responses"]
        assert str(answer.status_code) in described, (answer.status_code, answer.text[:500])
        content = described[str(answer.status_code)].get("content", {})
        if not content:
            assert not answer.content
            return
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content, (kind, list(content))
        if kind == "application/json":
            self.validator(content[kind]["schema"]).validate(answer.json())

    def validator(self, schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
        return jsonschema.Draft202012Validator({**schema, "components": self.document["components"]})


async def described(client: httpx.AsyncClient) -> Described:
    return Described((await client.get("/openapi.json")).json())


def client_of(served: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=served.http, timeout=20)


async def test_what_is_only_looked_at_is_as_described() -> None:
    async with serving() as served, client_of(served) as client:
        told = await described(client)
        for path in GETS:
            for method in ("GET", "HEAD"):
                told.judge(await client.request(method, path))


async def test_honest_requests_are_as_described_and_so_are_their_answers() -> None:
    async with serving() as served, client_of(served) as client:
        told = await described(client)
        for path, body in BODIES.items():
            schema = told.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            told.validator(schema).validate(body)
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            told.judge(answer)
        told.judge(await client.post("/v1/chat/completions", json={**BODIES["/v1/chat/completions"], "stream": True}))


@pytest.mark.parametrize("path", BODIES)
async def test_no_broken_request_is_answered_in_another_way_than_described(path: str) -> None:
    rng = random.Random(path)
    statuses: Counter[int] = Counter()
    async with serving() as served, client_of(served) as client:
        told = await described(client)
        odd = [json.dumps(each) for each in ODD_VALUES]
        texts = [json.dumps(broken(copy.deepcopy(BODIES[path]), rng)) for _ in range(300)]
        cut = [text[: rng.randrange(len(text))] for text in texts[:40]]
        for text in [*odd, *texts, *cut, "[" * 100_000, '{"a":' * 5000]:
            answer = await client.post(path, content=text.encode(), headers={"content-type": "application/json"})
            told.judge(answer)
            statuses[answer.status_code] += 1
        assert served.engine.chats == 0
        assert served.engine.sessions.taken == 0
    assert statuses[400] > 100
    assert statuses[200] > 10
    assert not statuses.keys() & {500, 503}


async def test_every_route_is_described_and_every_reference_leads_somewhere() -> None:
    async with serving() as served, client_of(served) as client:
        told = await described(client)
        routes = (await client.get("/")).json()["routes"]
    at = {route.partition(" ")[2] for route in routes if not route.startswith("WebSocket")}
    assert at == told.document["paths"].keys()
    for path, operations in told.document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            assert method == "head" or "content" in operation["responses"]["200"], (path, method)
    schemas = told.document["components"]["schemas"]
    assert schemas["ClientSecretRequest"]["properties"].keys() == set(ClientSecretRequest.__struct_fields__)
    for name in schemas:
        validator = told.validator({"$ref": f"#/components/schemas/{name}"})
        validator.check_schema(schemas[name])
        validator.is_valid({"any": "thing"})
