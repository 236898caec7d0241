"""Every hook says when, where and what, shows an example that works, and has a test of what the example registers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from duplex_core import hookspecs
from duplex_core.authentication import Credentials, Principal
from duplex_core.config import SessionConfig
from duplex_core.events import CloseReason
from duplex_core.fence import Fence
from duplex_core.model import EndTurn, Respond, ResponseCause, Speak
from duplex_core.observers import ObservedSession
from duplex_core.plugins import SPEC_TYPES, PluginHost, load_plugins
from duplex_core.spec import Checkpoint, NoOptions, SessionContext
from duplex_core.stages import Lane, StageNews, StageOutput, StageRequest, StageSpec
from duplex_core.testing.examples import EVENT_EXAMPLES
from duplex_core.testing.stages import make_worker
from duplex_core.transcribing import Recognize, Recognized

HOOKS = {
    name: hook for name, hook in vars(hookspecs).items() if inspect.isfunction(hook) and name.startswith("duplex_")
}
FENCE = Fence(session_id="s")


def example_of(hook: Callable[..., object]) -> str:
    """The code under ``Example:`` in a hook's docstring."""
    _, _, after = inspect.cleandoc(hook.__doc__ or "").partition("\nExample:\n")
    _, _, code = after.partition("::\n")
    return textwrap.dedent(code)


def host_with_example(name: str) -> PluginHost:
    module = types.ModuleType(f"example_of_{name}")
    exec(compile(example_of(HOOKS[name]), module.__name__, "exec"), module.__dict__)  # noqa: S102 - our own docstring
    host = load_plugins([module])
    assert host.reports[0].cause is None
    return host


def models_work(host: PluginHost, _folder: Path, _log: object) -> None:
    spec = host.select_model(Checkpoint(name="folder", config={"model_type": "greeter"}))
    config = spec.session_config(NoOptions())
    context = SessionContext(session_id="s", config=config, deploy=NoOptions(), checkpoint=Checkpoint(name="greeter"))
    session = spec.create_session(context)
    respond = Respond(response_id="r", fence=FENCE, config=config, history=(), cause=ResponseCause.CLIENT)
    assert list(session.handle(respond, 0.0)) == [Speak(fence=FENCE, text="Hello."), EndTurn(fence=FENCE)]


def detectors_work(host: PluginHost, _folder: Path, _log: object) -> None:
    detector = host.detectors["loudness"].create()
    quiet, loud = [0.0] * detector.frame_samples, [0.0, -0.5] * (detector.frame_samples // 2)
    states = [detector.new_state(), detector.new_state()]
    assert list(detector.probabilities([quiet, loud], states)) == [0.0, 1.0]


def end_of_turn_detectors_work(host: PluginHost, _folder: Path, _log: object) -> None:
    detector = host.end_of_turn_detectors["fading"].create()
    assert detector.probability([0.5, -0.4, 0.1, 0.0]) == 0.9
    assert detector.probability([0.5, -0.4, 0.4, -0.3]) == 0.1


def transcribers_work(host: PluginHost, folder: Path, _log: object) -> None:
    (folder / "stopwatch.py").write_text(example_of(HOOKS["duplex_register_transcribers"]))
    worker = make_worker(host.transcribers["stopwatch"].stage)
    heard: list[object] = []
    worker.run(Recognize(pcm=bytes(4800), rate_hz=24000), heard.append, lambda: False)
    worker.close()
    assert heard == [Recognized(text="100 milliseconds")]


def observers_work(host: PluginHost, _folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    observer = host.observers["answers"].create()
    observer.opened(ObservedSession(session_id="s", config=SessionConfig(model="m")))
    for name in ("session.created", "response.done", "response.done"):
        observer.event("s", EVENT_EXAMPLES[name])
    with caplog.at_level(logging.INFO):
        observer.closed("s", CloseReason.CLIENT)
    assert "s gave 2 answers" in caplog.text


def runtimes_work(host: PluginHost, folder: Path, _log: object) -> None:
    (folder / "worker_of_the_example.py").write_text("def make(by):\n    return lambda payload: payload * by\n")
    replies: list[StageNews] = []
    stage = StageSpec(name="scale", factory="worker_of_the_example:make", runtime="direct", options={"by": 3})
    request = StageRequest(stage="scale", request_id="q", fence=FENCE, lane=Lane.OUTPUT, payload=5)

    async def conversation() -> None:
        running = await host.runtimes["direct"].start(stage, replies.append)
        assert running.healthy()
        running.submit(request)
        running.abort("s")
        await running.aclose()

    asyncio.run(conversation())
    assert replies == [
        StageOutput(stage="scale", request_id="q", fence=FENCE, lane=Lane.OUTPUT, payload=15, final=True)
    ]


def commands_work(host: PluginHost, _folder: Path, _log: object) -> None:
    assert host.commands["greet"].run(["Ada"]) == 0
    assert host.commands["greet"].run([]) == 2


def authenticators_work(host: PluginHost, folder: Path, _log: object) -> None:
    (folder / "keys").write_text("ada 1815\nalan 1912\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_FILE", str(folder / "keys"))
        authenticator = host.authenticators["key-file"].create()

    async def ask(key: str | None) -> Principal | None:
        shown = Credentials(key=key, headers={}, client_host=None, path="/v1/realtime")
        return await authenticator.authenticate(shown)

    assert [asyncio.run(ask(key)) for key in ("1912", "1913", None)] == [Principal(id="alan"), None, None]


WORKING: dict[str, Callable[[PluginHost, Path, pytest.LogCaptureFixture], None]] = {
    "duplex_register_models": models_work,
    "duplex_register_turn_detectors": detectors_work,
    "duplex_register_end_of_turn_detectors": end_of_turn_detectors_work,
    "duplex_register_transcribers": transcribers_work,
    "duplex_register_session_observers": observers_work,
    "duplex_register_stage_runtimes": runtimes_work,
    "duplex_register_commands": commands_work,
    "duplex_register_authenticators": authenticators_work,
}
"""Hook name to the test of what its example registers."""


def test_every_hook_is_known_and_tested() -> None:
    assert HOOKS.keys() == SPEC_TYPES.keys() == WORKING.keys()


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented(name: str) -> None:
    text = inspect.cleandoc(HOOKS[name].__doc__ or "")
    for section in ("When:", "Where:", "Returns:", "Example:"):
        assert f"\n{section}" in text, f"{name} does not say {section}"
    assert f"def {name}() -> list[" in example_of(HOOKS[name])
    assert "@hookimpl" in example_of(HOOKS[name])
    assert not inspect.signature(HOOKS[name]).parameters


@pytest.mark.parametrize("name", HOOKS)
def test_a_hooks_example_works(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    WORKING[name](host_with_example(name), tmp_path, caplog)
    for module in ("worker_of_the_example", "stopwatch"):
        sys.modules.pop(module, None)
