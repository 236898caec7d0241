"""The command line as a user meets it: in a process of its own, with packages found through entry points."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

PLUGIN = """
import dataclasses
import pydantic
from duplex_core.authentication import AuthenticatorSpec, Principal
from duplex_core.hookspecs import hookimpl
from duplex_core.spec import ModelSpec
from duplex_core.stages import StagePlan, StageSpec
from duplex_core.subcommands import SubcommandSpec
from duplex_core.testing.echo import ECHO

class Needy(pydantic.BaseModel):
    size: int

def broken_weights(**options):
    raise OSError("weights.bin: checksum differs")

def plan(checkpoint, deploy):
    return StagePlan(stages=(StageSpec(name="brain", factory="zoo_plugin:broken_weights"),))

def greet(arguments):
    print("hello", *arguments)
    return 7

@hookimpl
def duplex_register_models():
    return [
        dataclasses.replace(ECHO, id="parrot", claims_text="feathers [any]"),
        dataclasses.replace(ECHO, id="dodo", stage_plan=plan),
        dataclasses.replace(ECHO, id="emu", deploy_model=Needy),
    ]

class Bouncer:
    async def authenticate(self, credentials):
        return Principal(id="ada") if credentials.key == "ada" else None

def closed():
    raise FileNotFoundError("no such list")

@hookimpl
def duplex_register_authenticators():
    return [
        AuthenticatorSpec(id="bouncer", summary="knows Ada", create=Bouncer),
        AuthenticatorSpec(id="closed", summary="has lost its list", create=closed),
    ]

@hookimpl
def duplex_register_commands():
    return [SubcommandSpec(id="greet", summary="greet somebody", run=greet)]
"""


@pytest.fixture
def zoo(tmp_path: Path) -> dict[str, str]:
    """An environment in which two packages are installed: ``zoo`` with two models, and ``ruin``, which is broken."""
    site = tmp_path / "site"
    for name, module in (("zoo", "zoo_plugin"), ("ruin", "ruin_plugin")):
        info = site / f"{name}-1.2.3.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[duplex]\n{name} = {module}\n")
    (site / "zoo_plugin.py").write_text(PLUGIN)
    (site / "ruin_plugin.py").write_text("import a_library_that_nobody_has\n")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUPLEX_")}
    return {**kept, "PYTHONPATH": path, "COLUMNS": "260", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


EVERYWHERE = "0.0.0.0"  # noqa: S104 - what must be refused without a key
COMMAND = [sys.executable, "-c", "from duplex_server.entry import main; main()"]


def run(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], env=env, capture_output=True, text=True, timeout=60, check=False)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a start that failed, after the warnings about broken plugins."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "WARNING" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("duplex-server: ")
    return lines[0]


@contextlib.asynccontextmanager
async def up(env: dict[str, str], *args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A server of its own, once it says that it listens; its port."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "serve", "parrot", "--port", "0", "--detector", "energy", *args,
        env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"Listening on http://127\.0\.0\.1:(\d+) \(model parrot\)\n", line)
        assert found, line
        yield process, int(found[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def receive(websocket: Any) -> dict[str, Any]:
    async with asyncio.timeout(20):
        event: dict[str, Any] = json.loads(await websocket.recv())
    return event


async def ask_for_a_long_answer(websocket: Any) -> None:
    """Ask for ten minutes of speech, and return when they have begun."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 3000}]}
    await websocket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await websocket.send(json.dumps({"type": "response.create"}))
    while (await receive(websocket))["type"] != "response.output_audio.delta":
        pass


async def farewell(websocket: Any) -> list[dict[str, Any]]:
    """What comes until the server closes the socket in good order."""
    seen = []
    with contextlib.suppress(websockets.ConnectionClosedOK):
        while True:
            seen.append(await receive(websocket))
    assert websocket.close_code == 1000
    return seen


async def ended(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(20):
        return await process.wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_tells_running_sessions_and_ends_with_status_0(zoo: dict[str, str], how: signal.Signals) -> None:
    async with up(zoo) as (process, port), websockets.connect(f"ws://127.0.0.1:{port}/v1/realtime") as caller:
        assert (await receive(caller))["type"] == "session.created"
        process.send_signal(how)
        seen = await farewell(caller)
        assert seen[-1]["type"] == "session.closed"
        assert seen[-1]["reason"] == "shutdown"
        assert await ended(process) == 0
        assert process.stderr is not None
        assert "Traceback" not in (await process.stderr.read()).decode()


async def test_the_drain_time_bounds_an_answer_that_goes_on(zoo: dict[str, str]) -> None:
    """An answer of ten minutes is given half a second."""
    async with up(zoo, "--drain-seconds", "0.5") as (process, port):
        async with websockets.connect(f"ws://127.0.0.1:{port}/v1/realtime") as caller:
            await receive(caller)
            await ask_for_a_long_answer(caller)
            began = asyncio.get_running_loop().time()
            process.send_signal(signal.SIGTERM)
            seen = await farewell(caller)
            statuses = [event["response"]["status"] for event in seen if event["type"] == "response.done"]
            assert statuses == ["failed"]
            assert asyncio.get_running_loop().time() - began >= 0.5
        assert await ended(process) == 0


async def test_while_it_drains_nobody_gets_in_and_a_second_signal_ends_it_at_once(zoo: dict[str, str]) -> None:
    async with (
        up(zoo, "--drain-seconds", "3600") as (process, port),
        websockets.connect(f"ws://127.0.0.1:{port}/v1/realtime") as caller,
        httpx.AsyncClient() as client,
    ):
        await receive(caller)
        await ask_for_a_long_answer(caller)
        process.send_signal(signal.SIGTERM)
        while (await client.get(f"http://127.0.0.1:{port}/health")).status_code != 503:
            pass
        async with websockets.connect(f"ws://127.0.0.1:{port}/v1/realtime") as late:
            assert (await receive(late))["error"]["code"] == "shutdown"
        process.send_signal(signal.SIGTERM)
        await ended(process)


INTERRUPT = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"


@pytest.mark.parametrize("module", ["uvicorn", "ruin_plugin"])
def test_ctrl_c_while_it_is_still_importing_is_no_traceback(zoo: dict[str, str], tmp_path: Path, module: str) -> None:
    """While a library is imported, and while a plugin is."""
    (tmp_path / "site" / f"{module}.py").write_text(INTERRUPT)
    done = run(zoo, "serve", "parrot", "--port", "0")
    assert (done.returncode, done.stderr) == (130, "duplex-server: interrupted\n")


def test_a_port_that_is_taken_is_named(zoo: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = sentence(run(zoo, "serve", "parrot", "--port", str(port)))
    assert f"port {port} of 127.0.0.1 is taken" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["griffin"], "no installed model serves griffin; installed are: .*parrot"),
        (["/no/such/folder"], "there is no folder /no/such/folder; name one with a checkpoint"),
        (["./weights"], "there is no folder ./weights"),
        ([__file__], "test_cli.py is no folder; name the folder"),
        (
            [str(Path(__file__).parent)],
            "tests holds no checkpoint that an installed model knows: it has no config.json",
        ),
        (["ruin"], "ruin is provided by ruin 1.2.3, which is broken: ModuleNotFoundError"),
        (["dodo"], "^duplex-server: model dodo: stage brain did not start: OSError: weights.bin: checksum differs$"),
        (["parrot", "--set", "volume=11"], "there is no deploy setting volume"),
        (["parrot", "--set", "volume"], "write it as key=value"),
        (["parrot", "--deploy", "nowhere.yaml"], "the deploy file nowhere.yaml cannot be read"),
        (["parrot", "--detector", "ouija"], "there is no speech detector 'ouija'; installed are: energy, silero"),
        (["parrot", "--host", EVERYWHERE], "can be reached from other machines: set --api-key"),
        (["parrot", "--host", "no.such.host.invalid", "--api-key", "k"], "no address 'no.such.host.invalid'"),
        (["parrot", "--log-level", "loud"], "there is no log level 'loud'"),
        (["parrot", "--authenticator", "ouija"], "there is no authenticator 'ouija'; installed are: bouncer, closed"),
        (["parrot", "--authenticator", "closed"], "the authenticator closed did not start: .*no such list"),
        (["parrot", "--api-key", " "], "the key is empty"),
    ],
)
def test_a_start_that_cannot_succeed_is_one_sentence_and_status_1(
    zoo: dict[str, str], args: list[str], said: str
) -> None:
    assert re.search(said, sentence(run(zoo, "serve", *args, "--port", "0")))


def test_an_empty_folder_is_called_so(zoo: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty is empty; name one with a checkpoint" in sentence(run(zoo, "serve", str(tmp_path / "empty")))


async def test_an_authenticator_further_names_and_origins_of_the_command_line_hold(zoo: dict[str, str]) -> None:
    options = ["--authenticator", "bouncer", "--served-model-name", "gpt-realtime", "--served-model-name", "voice"]
    options += ["--allow-origin", "https://talk.example.com", "--host", "127.0.0.1"]
    async with up(zoo, *options) as (_, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        ada = {"Authorization": "Bearer ada"}
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer alan"})).status_code == 401
        names = [card["id"] for card in (await client.get("/v1/models", headers=ada)).json()["data"]]
        assert names == ["parrot", "gpt-realtime", "voice"]
        for origin, status in (("https://talk.example.com", 200), ("https://evil.example", 403)):
            assert (await client.get("/v1/models", headers={**ada, "Origin": origin})).status_code == status


async def test_a_session_waits_for_its_client_as_long_as_the_command_line_says(zoo: dict[str, str]) -> None:
    async with up(zoo, "--disconnect-grace-seconds", "0.2") as (_, port), httpx.AsyncClient() as client:
        async with websockets.connect(f"ws://127.0.0.1:{port}/v1/realtime") as caller:
            await receive(caller)
            caller.transport.abort()
        async with asyncio.timeout(20):
            while (await client.get(f"http://127.0.0.1:{port}/health")).json()["sessions"]:
                pass
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'duplex_sessions_closed_total{reason="expired"} 1.0' in text


async def test_a_key_from_the_environment_is_asked_for(zoo: dict[str, str]) -> None:
    async with up({**zoo, "DUPLEX_API_KEY": "s3cret"}) as (_, port), httpx.AsyncClient() as client:
        address = f"http://127.0.0.1:{port}/v1/models"
        assert (await client.get(address)).status_code == 401
        assert (await client.get(address, headers={"Authorization": "Bearer s3cret"})).status_code == 200


async def test_the_number_of_sessions_is_the_operators(zoo: dict[str, str]) -> None:
    async with up(zoo, "--max-sessions", "1") as (_, port):
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        async with websockets.connect(url) as first, websockets.connect(url) as second:
            assert (await receive(first))["type"] == "session.created"
            assert (await receive(second))["error"]["code"] == "resource_exhausted"


def test_models_lists_what_is_installed_and_what_is_broken(zoo: dict[str, str]) -> None:
    done = run(zoo, "models")
    assert done.returncode == 0
    row = next(line for line in done.stdout.splitlines() if "parrot" in line)
    assert "zoo 1.2.3" in row
    assert "feathers [any]" in row
    assert "says audio or text; takes text; transcribes; tools; chat completions" in " ".join(done.stdout.split())
    assert "depends on its deploy settings" in next(line for line in done.stdout.splitlines() if "emu" in line)
    assert "plugin ruin of ruin 1.2.3: ModuleNotFoundError" in done.stdout.replace("\n", " ")


def test_a_plugins_sub_command_gets_its_words_and_gives_its_status(zoo: dict[str, str]) -> None:
    done = run(zoo, "greet", "--loud", "you")
    assert (done.returncode, done.stdout) == (7, "hello --loud you\n")
    assert "greet somebody" in run(zoo, "--help").stdout


def test_the_version_is_the_packages(zoo: dict[str, str]) -> None:
    import duplex_server

    assert run(zoo, "--version").stdout.strip() == duplex_server.__version__
