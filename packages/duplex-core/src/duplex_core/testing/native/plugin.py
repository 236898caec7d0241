"""What native registers. Named by the entry point ``native`` in the group ``duplex``; imports nothing heavy."""

from __future__ import annotations

import pydantic

from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.config import Modality, SessionConfig
from duplex_core.hookspecs import hookimpl
from duplex_core.model import ModelSession
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan, StageSpec
from duplex_core.testing.native.options import NativeOptions, NativeSettings
from duplex_core.testing.native.session import NativeSession
from duplex_core.testing.native.stage import OUTPUT_HZ, THINKER, VOICE
from duplex_core.testing.native.unit import INPUT_HZ


def capabilities(deploy: pydantic.BaseModel) -> Capabilities:
    """What native can do: hear and speak, and nothing else."""
    return Capabilities(
        turn_policy=TurnPolicy.MODEL,
        input_rate_hz=INPUT_HZ,
        output_rate_hz=OUTPUT_HZ,
        output_modalities=(Modality.AUDIO,),
        text_input=False,
        instructions=False,
    )


def session_config(deploy: pydantic.BaseModel) -> SessionConfig:
    """What a native session begins with: the model decides, and no detector interrupts unless the client wants one."""
    return SessionConfig(model="native", turn_detection=None)


def stage_plan(checkpoint: Checkpoint, deploy: pydantic.BaseModel) -> StagePlan:
    """Two stages, one thread each."""
    return StagePlan(
        stages=(
            StageSpec(name=THINKER, factory="duplex_core.testing.native.stage:Thinker"),
            StageSpec(name=VOICE, factory="duplex_core.testing.native.stage:Voice"),
        )
    )


def create_session(context: SessionContext) -> ModelSession:
    """A conversation; native declares no chat."""
    return NativeSession(context)


NATIVE = ModelSpec(
    id="native",
    summary="listens all the time and takes its turns itself, by loudness; for tests and as an example",
    claims=lambda checkpoint: False,
    claims_text="only the name native",
    capabilities=capabilities,
    session_config=session_config,
    stage_plan=stage_plan,
    create_session=create_session,
    deploy_model=NativeSettings,
    options_model=NativeOptions,
    max_sessions=100,
)
"""The native model."""


@hookimpl
def duplex_register_models() -> list[ModelSpec]:
    """Offer native."""
    return [NATIVE]
