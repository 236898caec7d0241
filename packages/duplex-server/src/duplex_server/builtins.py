"""The plugin that the server brings itself: its detectors and its stage runtimes.

Registered through the same hooks as everybody's; handed to :func:`duplex_core.plugins.load_plugins` by the command line and
by the engine. Must never load weights when imported: a detector loads when the server starts and has chosen it.
"""

from __future__ import annotations

from duplex_core.detection import EndOfTurnSpec, TurnDetectorSpec
from duplex_core.hookspecs import hookimpl
from duplex_core.stages import StageRuntimeSpec
from duplex_server.detectors import EnergyDetector, SileroBatch, SmartTurn
from duplex_server.engine.stages import thread
from duplex_server.engine.stages.processes.runtime import runtime


@hookimpl
def duplex_register_turn_detectors() -> list[TurnDetectorSpec]:
    """Silero's network, and one that hears loudness only."""
    return [
        TurnDetectorSpec(id="silero", summary="Silero's voice activity network, on one CPU thread", create=SileroBatch),
        TurnDetectorSpec(
            id="energy", summary="takes what is louder than the background for speech", create=EnergyDetector
        ),
    ]


@hookimpl
def duplex_register_end_of_turn_detectors() -> list[EndOfTurnSpec]:
    """Smart Turn's network, whose weights come with an extra."""
    return [
        EndOfTurnSpec(
            id="smart-turn",
            summary="Smart Turn v3.2, on one CPU thread; needs the extra duplex-server[smart-turn]",
            create=SmartTurn,
        )
    ]


@hookimpl
def duplex_register_stage_runtimes() -> list[StageRuntimeSpec]:
    """Threads of the server's own process, and two kinds of worker process."""
    return [
        StageRuntimeSpec(
            id="thread",
            summary="worker threads of the server's process; the factory returns a StageWorker",
            start=thread.start,
            check=thread.check,
        ),
        runtime(
            "torch",
            "worker processes that compute batched steps; the factory returns a BatchedWorker",
            driver="duplex_server.engine.stages.batched.driver:BatchedDriver",
        ),
        runtime(
            "vllm",
            "worker processes with a vLLM engine; the factory returns an EngineProgram",
            driver="duplex_server.engine.stages.vllm.driver:VllmDriver",
        ),
    ]
