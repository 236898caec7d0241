"""The hooks that a plugin may implement, and nothing else.

A plugin is a module (or object) named by an entry point in the group ``duplex``. Its functions marked with
:data:`hookimpl` are called by :func:`duplex_core.plugins.load_plugins`, once, when a process starts; what they return is
typed and described here. Hooks register, they never run a conversation: nothing of pluggy is on the path of a frame.

Rules that hold for every hook:

- It is synchronous, cheap and without side effects: no weights, no sockets, no imports of torch, vllm or the like.
  ``duplex-server models`` calls it too, on machines that could not serve the model.
- It returns a list or tuple, which may be empty. Anything else, and any exception, makes the whole plugin broken: nothing
  of it is registered, the cause is in its report, and other plugins are not touched.
- Ids are unique over all installed packages for each kind. Two packages with one id are an error that names both.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from duplex_core.authentication import AuthenticatorSpec
from duplex_core.detection import EndOfTurnSpec, TurnDetectorSpec
from duplex_core.observers import SessionObserverSpec
from duplex_core.spec import ModelSpec
from duplex_core.stages import StageRuntimeSpec
from duplex_core.subcommands import SubcommandSpec
from duplex_core.transcribing import TranscriberSpec

PROJECT = "duplex"
"""The name under which pluggy knows this project."""
ENTRY_POINT_GROUP = "duplex"
"""The entry-point group in which packages name their plugin modules."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook that it is named after."""


@hookspec
def duplex_register_models() -> Sequence[ModelSpec]:
    """Offer models.

    When: once for each process that loads plugins, before a model is chosen.
    Where: the server's main process, also for ``duplex-server models``; never in a stage's worker process.
    Returns: one :class:`~duplex_core.spec.ModelSpec` for each model family. The server serves the one whose ``id`` was
    named, else the one that claims the checkpoint, else, when nothing was named, the installed ``embedded`` one.

    Example:
        A model whose answers its session makes without any stage::

            from collections.abc import Sequence

            from duplex_core.capabilities import Capabilities
            from duplex_core.config import SessionConfig
            from duplex_core.hookspecs import hookimpl
            from duplex_core.model import EndTurn, ModelInput, ModelOutput, Respond, Speak
            from duplex_core.spec import ModelSpec, SessionContext
            from duplex_core.stages import StagePlan


            class Greeter:
                def handle(self, event: ModelInput, now_ms: float) -> Sequence[ModelOutput]:
                    if not isinstance(event, Respond):
                        return ()
                    return (Speak(fence=event.fence, text="Hello."), EndTurn(fence=event.fence))


            def create(context: SessionContext) -> Greeter:
                return Greeter()


            @hookimpl
            def duplex_register_models() -> list[ModelSpec]:
                return [
                    ModelSpec(
                        id="greeter",
                        summary="says hello to everything",
                        claims=lambda checkpoint: checkpoint.config.get("model_type") == "greeter",
                        claims_text='config.json with model_type "greeter"',
                        capabilities=lambda deploy: Capabilities(),
                        session_config=lambda deploy: SessionConfig(model="greeter"),
                        stage_plan=lambda checkpoint, deploy: StagePlan(),
                        create_session=create,
                    )
                ]
    """
    raise NotImplementedError


@hookspec
def duplex_register_turn_detectors() -> Sequence[TurnDetectorSpec]:
    """Offer voice-activity detectors.

    When: once for each process that loads plugins. ``create`` of the one that the deploy settings name is called later,
    when the server starts, on a worker thread, where it may load weights.
    Where: the server's main process.
    Returns: one :class:`~duplex_core.detection.TurnDetectorSpec` for each detector.

    Example:
        A detector that takes loud frames for speech::

            from collections.abc import Sequence
            from typing import Any

            from duplex_core.detection import EndOfTurnSpec, TurnDetectorSpec
            from duplex_core.hookspecs import hookimpl


            class Loudness:
                rate_hz = 16000
                frame_samples = 512

                def new_state(self) -> None:
                    return None

                def probabilities(self, frames: Any, states: Sequence[Any]) -> Sequence[float]:
                    return [min(1.0, 10.0 * max(abs(sample) for sample in frame)) for frame in frames]


            @hookimpl
            def duplex_register_turn_detectors() -> list[TurnDetectorSpec]:
                return [TurnDetectorSpec(id="loudness", summary="loud frames are speech", create=Loudness)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_end_of_turn_detectors() -> Sequence[EndOfTurnSpec]:
    """Offer detectors that hear, at a pause, whether somebody has finished what they want to say.

    When: once for each process that loads plugins. ``create`` of the one that the engine's settings name, if they name one, is
    called later, when the server starts, on a worker thread, where it may load weights.
    Where: the server's main process. ``probability`` is called on one worker thread, for one pause of one session at a time,
    in sessions whose turn detection is ``semantic_vad``.
    Returns: one :class:`~duplex_core.detection.EndOfTurnSpec` for each detector.

    Example:
        A detector that takes for finished what fades away::

            from typing import Any

            from duplex_core.detection import EndOfTurnSpec
            from duplex_core.hookspecs import hookimpl


            class Fading:
                rate_hz = 16000
                window_ms = 1000

                def probability(self, samples: Any) -> float:
                    half = len(samples) // 2
                    before, after = (max(abs(sample) for sample in part) for part in (samples[:half], samples[half:]))
                    return 0.9 if after < before / 2 else 0.1


            @hookimpl
            def duplex_register_end_of_turn_detectors() -> list[EndOfTurnSpec]:
                return [EndOfTurnSpec(id="fading", summary="who fades away has finished", create=Fading)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_transcribers() -> Sequence[TranscriberSpec]:
    """Offer transcription of the user's speech to models that have none of their own.

    When: once for each process that loads plugins. The stage of the one that the engine's settings name, if they name one, is
    started later, with the stages of the served model.
    Where: the server's main process; the stage runs where its runtime puts it.
    Returns: one :class:`~duplex_core.transcribing.TranscriberSpec` for each transcriber.

    Example:
        A transcriber on the ``thread`` runtime that hears only how long somebody spoke. The code stands in a module
        ``stopwatch`` of the package, which also is its plugin::

            from collections.abc import Callable
            from typing import Any

            from duplex_core.audio import pcm16_ms
            from duplex_core.hookspecs import hookimpl
            from duplex_core.stages import StageSpec
            from duplex_core.transcribing import Recognize, Recognized, TranscriberSpec


            class Stopwatch:
                def run(self, payload: Recognize, emit: Callable[[Any], None], cancelled: Callable[[], bool]) -> None:
                    emit(Recognized(text=f"{pcm16_ms(len(payload.pcm), payload.rate_hz):.0f} milliseconds"))

                def close(self) -> None:
                    pass  # holds nothing


            @hookimpl
            def duplex_register_transcribers() -> list[TranscriberSpec]:
                stage = StageSpec(name="transcriber", factory="stopwatch:Stopwatch")
                return [TranscriberSpec(id="stopwatch", summary="hears how long you spoke", stage=stage)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_session_observers() -> Sequence[SessionObserverSpec]:
    """Watch sessions: record, count, audit.

    When: once for each process that loads plugins. ``create`` is called later, once, when a server starts.
    Where: the server's main process; the observer's methods are called on the event loop.
    Returns: one :class:`~duplex_core.observers.SessionObserverSpec` for each observer. Every installed observer is told of
    every session; a package that wants a switch reads its own settings in ``create``.

    Example:
        An observer that counts the answers of each session::

            import logging
            from collections import Counter

            from duplex_core.events import CloseReason, Event, ResponseDone
            from duplex_core.hookspecs import hookimpl
            from duplex_core.observers import ObservedSession, SessionObserverSpec


            class AnswerCounter:
                def __init__(self) -> None:
                    self.answers: Counter[str] = Counter()

                def opened(self, session: ObservedSession) -> None:
                    self.answers[session.session_id] = 0

                def event(self, session_id: str, event: Event) -> None:
                    if isinstance(event, ResponseDone):
                        self.answers[session_id] += 1

                def closed(self, session_id: str, reason: CloseReason) -> None:
                    logging.info("%s gave %d answers", session_id, self.answers.pop(session_id))


            @hookimpl
            def duplex_register_session_observers() -> list[SessionObserverSpec]:
                return [SessionObserverSpec(id="answers", summary="counts answers", create=AnswerCounter)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_stage_runtimes() -> Sequence[StageRuntimeSpec]:
    """Offer places where stages can run.

    When: once for each process that loads plugins. ``start`` is called later, for each stage of the served model that
    names this runtime.
    Where: the server's main process; a runtime that wants worker processes starts them in ``start``.
    Returns: one :class:`~duplex_core.stages.StageRuntimeSpec` for each runtime.

    Example:
        A runtime that answers each request at once with what the stage's factory makes of the payload::

            from collections.abc import Callable
            from importlib import import_module
            from typing import Any

            from duplex_core.hookspecs import hookimpl
            from duplex_core.stages import StageNews, StageRequest, StageRuntimeSpec, StageSpec


            class Direct:
                def __init__(self, work: Callable[[Any], Any], reply: Callable[[StageNews], None]) -> None:
                    self.work = work
                    self.reply = reply

                def place(self, session_id: str) -> None:
                    pass  # has room for everybody

                def release(self, session_id: str) -> None:
                    pass  # keeps nothing of a session

                def submit(self, request: StageRequest) -> None:
                    self.reply(request.output(self.work(request.payload), final=True))

                def abort(self, session_id: str, request_id: str | None = None) -> None:
                    pass  # every request is answered within submit

                def healthy(self) -> bool:
                    return True

                async def aclose(self) -> None:
                    pass  # holds nothing


            async def start(stage: StageSpec, reply: Callable[[StageNews], None]) -> Direct:
                module, _, name = stage.factory.partition(":")
                return Direct(getattr(import_module(module), name)(**stage.options), reply)


            @hookimpl
            def duplex_register_stage_runtimes() -> list[StageRuntimeSpec]:
                return [StageRuntimeSpec(id="direct", summary="runs a function within submit", start=start)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_commands() -> Sequence[SubcommandSpec]:
    """Add sub-commands to ``duplex-server``.

    When: once for each process that loads plugins: for the command line, before its arguments are read. ``run`` is called
    later, only when the sub-command was typed.
    Where: the process of the command line.
    Returns: one :class:`~duplex_core.subcommands.SubcommandSpec` for each sub-command.

    Example:
        ``duplex-server greet NAME``::

            from collections.abc import Sequence

            from duplex_core.hookspecs import hookimpl
            from duplex_core.subcommands import SubcommandSpec


            def greet(arguments: Sequence[str]) -> int:
                if len(arguments) != 1:
                    print("usage: duplex-server greet NAME")
                    return 2
                print(f"Hello, {arguments[0]}.")
                return 0


            @hookimpl
            def duplex_register_commands() -> list[SubcommandSpec]:
                return [SubcommandSpec(id="greet", summary="greet somebody", run=greet)]
    """
    raise NotImplementedError


@hookspec
def duplex_register_authenticators() -> Sequence[AuthenticatorSpec]:
    """Decide who may use the server.

    When: once for each process that loads plugins. ``create`` of the one that ``--authenticator`` names is called later, when
    the server starts, on a worker thread, where it may read files. Its ``authenticate`` is called for each socket and each HTTP
    request under ``/v1`` that shows neither the server's own key nor a client secret, before anything else of it is read.
    Where: the server's main process, on the event loop.
    Returns: one :class:`~duplex_core.authentication.AuthenticatorSpec` for each authenticator.

    Example:
        An authenticator that reads the keys of its users from a file, ``NAME KEY`` in each line::

            import hmac
            import os
            from pathlib import Path

            from duplex_core.authentication import AuthenticatorSpec, Credentials, Principal
            from duplex_core.hookspecs import hookimpl


            class KeyFile:
                def __init__(self) -> None:
                    lines = Path(os.environ["KEY_FILE"]).read_text().splitlines()
                    self.keys = [(name, key.encode()) for name, key in (line.split() for line in lines)]

                async def authenticate(self, credentials: Credentials) -> Principal | None:
                    shown = (credentials.key or "").encode()
                    found = [name for name, key in self.keys if hmac.compare_digest(shown, key)]
                    return Principal(id=found[0]) if found else None


            @hookimpl
            def duplex_register_authenticators() -> list[AuthenticatorSpec]:
                return [AuthenticatorSpec(id="key-file", summary="a file of keys", create=KeyFile)]
    """
    raise NotImplementedError
