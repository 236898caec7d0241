"""A server in the test's own process: an engine around a small model, listening on a free port, and a client of the wire.

Owns no expectation. Used by the tests of the server and by those that span packages. The models are the conformance kit's
``echo`` and variants of it; sockets are real.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

from duplex_core.authentication import Authenticator
from duplex_core.hookspecs import hookimpl
from duplex_core.plugins import PluginHost, load_plugins
from duplex_core.spec import ModelSpec
from duplex_core.testing.echo import ECHO
from duplex_server import builtins
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.engine.served import prepare
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, listen

PARROT = dataclasses.replace(ECHO, id="parrot", claims=lambda checkpoint: False)
"""Echo under a name that no installed package has."""


class Offer:
    """A plugin that offers the models given to it."""

    def __init__(self, *specs: ModelSpec) -> None:
        self.specs = list(specs)

    @hookimpl
    def duplex_register_models(self) -> list[ModelSpec]:
        return self.specs


def plugins_with(*specs: ModelSpec, extra: tuple[object, ...] = ()) -> PluginHost:
    return load_plugins([builtins, Offer(*specs), *extra])


class Caller:
    """A client of the wire that keeps what it has seen."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def say(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def append(self, pcm: bytes, **fields: Any) -> None:
        await self.say("input_audio_buffer.append", audio=base64.b64encode(pcm).decode(), **fields)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            event: dict[str, Any] = json.loads(await self.socket.recv())
        self.seen.append(event)
        return event

    async def until(self, *types: str, where: Callable[[dict[str, Any]], bool] = lambda event: True) -> dict[str, Any]:
        """Read on to the next event of one of these types."""
        while True:
            event = await self.next()
            if event["type"] in types and where(event):
                return event

    async def by_hand(self, **session: Any) -> None:
        """Turn the detector off, and set what else is given."""
        audio = session.pop("audio", {})
        audio.setdefault("input", {})["turn_detection"] = None
        await self.say("session.update", session={"type": "realtime", "audio": audio, **session})
        await self.until("session.updated")

    async def rest(self) -> list[dict[str, Any]]:
        """What comes until the server closes the socket."""
        events = []
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                events.append(await self.next())
        return events

    def types(self) -> list[str]:
        return [event["type"] for event in self.seen]


@dataclasses.dataclass
class Served:
    """A server that listens, and the engine behind it."""

    engine: DuplexOmni
    port: int
    key: str | None
    server: Server

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def call(self, path: str = "/v1/realtime", **options: Any) -> AsyncIterator[Caller]:
        limits: Any = {"max_size": None, "max_queue": None, **options}
        async with websockets.connect(f"ws://127.0.0.1:{self.port}{path}", **limits) as socket:
            yield Caller(socket)

    @contextlib.asynccontextmanager
    async def session(self, path: str = "/v1/realtime", **options: Any) -> AsyncIterator[Caller]:
        """A call whose session is open."""
        async with self.call(path, **options) as caller:
            assert (await caller.next())["type"] == "session.created"
            yield caller


@contextlib.asynccontextmanager
async def engine_of(
    spec: ModelSpec = PARROT, *, extra: tuple[object, ...] = (), aliases: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[DuplexOmni]:
    chosen = EngineSettings(**{"detector": "energy", **settings})
    plugins = plugins_with(spec, extra=extra)
    model = prepare(plugins, spec.id, lambda spec: spec.deploy_model(), aliases=aliases)
    async with DuplexOmni.start(model, plugins=plugins, settings=chosen) as engine:
        yield engine


@contextlib.asynccontextmanager
async def serving(
    spec: ModelSpec = PARROT,
    *,
    key: str | None = None,
    authenticator: Authenticator | None = None,
    allow_origins: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Served]:
    async with engine_of(spec, **settings) as engine:
        ready = asyncio.Event()
        app = create_app(engine, api_key=key, authenticator=authenticator, allow_origins=allow_origins)
        with listen("127.0.0.1", 0) as listener:
            server = Server(app, ready.set)
            task = asyncio.create_task(server.serve([listener]))
            try:
                await ready.wait()
                yield Served(engine, listener.getsockname()[1], key, server)
            finally:
                server.should_exit = True
                await task
