"""The measured process: the engine with the free model, or the bare echo, on one core.

Owns its own start: pinned first, then set up as ``duplex-server serve`` sets itself up, with its listener, its server class and
its event loop. Started by :mod:`benchmarks.engine.child` as ``python -m benchmarks.engine.server KIND``; prints one line when it
listens and runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

from benchmarks.engine import echo, model
from duplex_core.plugins import load_plugins
from duplex_server import builtins
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.engine.served import prepare
from duplex_server.process import run, settle_memory
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, address_of, listen, serve


def announce(address: str) -> None:
    """Tell the parent where to connect, in the state in which the server would begin to serve."""
    settle_memory()
    print(address, flush=True)


async def serve_engine(sessions: int) -> None:
    """The server with the free model."""
    plugins = load_plugins([builtins, model])
    served = prepare(plugins, model.FREE.id, lambda spec: spec.deploy_model())
    settings = EngineSettings(max_sessions=sessions)
    with listen("127.0.0.1", 0) as listener:
        async with DuplexOmni.start(served, plugins=plugins, settings=settings) as engine:
            app = create_app(engine)
            await serve(engine, app, listener, drain_s=0.0, on_ready=lambda: announce(address_of(listener)))


async def serve_echo() -> None:
    """The echo, in the same server."""
    with listen("127.0.0.1", 0) as listener:
        server = Server(echo.create_app(), lambda: announce(address_of(listener)))
        stop = asyncio.create_task(_until_told(server))
        await server.serve([listener])
        await stop


async def _until_told(server: Server) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    server.should_exit = True


def main() -> None:
    """Run one kind of server until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("engine", "echo"))
    parser.add_argument("--core", type=int, help="the processor core to stay on")
    parser.add_argument("--sessions", type=int, default=1000, help="most sessions at a time")
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    run(serve_engine(chosen.sessions) if chosen.kind == "engine" else serve_echo())


if __name__ == "__main__":
    main()
