"""What the HTTP routes take and answer, as OpenAPI 3.1 describes it, for ``GET /openapi.json``.

Owns the document; what stands in it of requests comes from the very types that read them. Made by
:mod:`duplex_server.serving.app`. A WebSocket has no place in OpenAPI, so the document only says where it is. Serves nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from duplex_core.capabilities import Capabilities
from duplex_core.patch import SessionPatch
from duplex_server.serving.chat_schema import ChatCompletionRequest
from duplex_server.serving.client_secrets import ExpiresAfter

Json = dict[str, Any]

_REF = "#/components/schemas/"
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean"}


def _object(**fields: Any) -> Json:
    """An object that has all of ``fields``."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _ref(name: str) -> Json:
    return {"$ref": f"{_REF}{name}"}


SCHEMAS: Json = {
    "Error": _object(
        error=_object(message=_TEXT, type=_TEXT, param={"type": ["string", "null"]}, code=_TEXT),
    ),
    "Index": _object(
        name=_TEXT, version=_TEXT, model=_TEXT, about=_TEXT, routes={"type": "object"}, documentation=_TEXT
    ),
    "Health": _object(
        alive=_FLAG,
        ready=_FLAG,
        draining=_FLAG,
        stages_down=_list(_TEXT),
        model=_TEXT,
        sessions=_COUNT,
        detached=_COUNT,
        max_sessions=_COUNT,
    ),
    "Model": _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT),
    "Models": _object(object={"const": "list"}, data=_list(_ref("Model"))),
    "RealtimeCapabilities": _object(
        object={"const": "realtime.capabilities"},
        model=_TEXT,
        capabilities=_ref("Capabilities"),
        audio_formats=_list(_object(type=_TEXT, rates=_list(_COUNT))),
        max_sessions=_COUNT,
    ),
    "ChatCompletion": _object(
        id=_TEXT,
        object={"const": "chat.completion"},
        created=_COUNT,
        model=_TEXT,
        choices=_list(_object(index=_COUNT, message={"type": "object"}, finish_reason=_TEXT)),
        usage=_object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "ClientSecret": _object(value=_TEXT, expires_at=_COUNT, session={"type": "object"}),
}
"""What is answered."""

_ANSWERS: dict[str, dict[str, Json]] = {
    "/": {"application/json": _ref("Index")},
    "/openapi.json": {"application/json": {"type": "object"}},
    "/health": {"application/json": _ref("Health")},
    "/metrics": {"text/plain": _TEXT},
    "/v1/models": {"application/json": _ref("Models")},
    "/v1/models/{name}": {"application/json": _ref("Model")},
    "/v1/realtime/capabilities": {"application/json": _ref("RealtimeCapabilities")},
    "/v1/chat/completions": {"application/json": _ref("ChatCompletion"), "text/event-stream": _TEXT},
    "/v1/realtime/client_secrets": {"application/json": _ref("ClientSecret")},
}
_REQUESTS: dict[str, str] = {
    "/v1/chat/completions": "ChatCompletionRequest",
    "/v1/realtime/client_secrets": "ClientSecretRequest",
}
_OPTIONAL_BODY = frozenset({"/v1/realtime/client_secrets"})
_GUARDED = "/v1/"
_FAULTS_OF_ALL = {401: "The key is missing or wrong.", 403: "A page of another origin asks.", 500: "The server failed."}
_FAULTS_OF_BODIES = {
    400: "The request is not what it must be; `param` names the field.",
    404: "There is no such model.",
    413: "The body is too large.",
    429: "Too much is going on; try again soon.",
    503: "The server stops, or a part of the model is down.",
}


def document(routes: Sequence[BaseRoute], *, version: str) -> Json:
    """The whole of it, for an application with these ``routes``."""
    paths: dict[str, Json] = {}
    for route in routes:
        if isinstance(route, Route):
            paths.setdefault(route.path_format, {}).update(_operations(route, route.path_format))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duplex-server",
            "version": version,
            "description": "Conversations are held at the WebSocket `/v1/realtime`, which OpenAPI cannot describe; see the "
            "wire protocol in the documentation.",
        },
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, **_request_schemas()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operations(route: Route, path: str) -> Json:
    about = (inspect.getdoc(route.endpoint) or "").partition("\n")[0]
    return {method.lower(): _operation(method, path, about) for method in sorted(route.methods or ())}


def _operation(method: str, path: str, about: str) -> Json:
    contents = {} if method == "HEAD" else {kind: {"schema": schema} for kind, schema in _ANSWERS.get(path, {}).items()}
    answers: Json = {"200": {"description": "As it should be.", **({"content": contents} if contents else {})}}
    if path == "/health":
        answers["503"] = {**answers["200"], "description": "Alive, and takes no requests."}
    told: Json = {"summary": about, "operationId": f"{method.lower()} {path}", "responses": answers}
    if "{name}" in path:
        told["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
    if path.startswith(_GUARDED):
        told["security"] = [{"key": []}, {}]
        faults = {**_FAULTS_OF_ALL, **_faults(path)}
        answers.update({str(status): _fault(method, why) for status, why in sorted(faults.items())})
    if path in _REQUESTS:
        told["requestBody"] = {
            "required": path not in _OPTIONAL_BODY,
            "content": {"application/json": {"schema": _ref(_REQUESTS[path])}},
        }
    return told


def _faults(path: str) -> dict[int, str]:
    if path in _REQUESTS:
        return _FAULTS_OF_BODIES
    return {404: _FAULTS_OF_BODIES[404]} if "{name}" in path else {}


def _fault(method: str, why: str) -> Json:
    if method == "HEAD":
        return {"description": why}
    return {"description": why, "content": {"application/json": {"schema": _ref("Error")}}}


@functools.cache
def _request_schemas() -> Json:
    """The schemas of what requests are read as, and of all that stands in it."""
    chat = ChatCompletionRequest.model_json_schema(ref_template=f"{_REF}{{model}}")
    kinds = (ExpiresAfter, SessionPatch, Capabilities)
    _, others = msgspec.json.schema_components(kinds, ref_template=f"{_REF}{{name}}")
    # by hand, since the session in it is read later, as session.update would read it
    secret = _object(
        expires_after={"anyOf": [_ref("ExpiresAfter"), {"type": "null"}]},
        session={"anyOf": [_ref("SessionPatch"), {"type": "null"}]},
    )
    secret.update(required=[], additionalProperties=False)
    return {**chat.pop("$defs"), "ChatCompletionRequest": chat, "ClientSecretRequest": secret, **others}
