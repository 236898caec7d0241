"""What echo registers. Named by the entry point ``echo`` in the group ``duplex``; imports nothing heavy."""

from __future__ import annotations

import pydantic

from duplex_core.capabilities import Capabilities
from duplex_core.config import ServerVad, SessionConfig
from duplex_core.hookspecs import hookimpl
from duplex_core.model import ModelSession
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan, StageSpec
from duplex_core.testing.echo.options import EchoOptions, EchoSettings
from duplex_core.testing.echo.reply import RATE_HZ
from duplex_core.testing.echo.session import EchoSession
from duplex_core.testing.echo.stage import STAGE


def capabilities(deploy: pydantic.BaseModel) -> Capabilities:
    """What echo can do."""
    return Capabilities(
        input_rate_hz=RATE_HZ,
        output_rate_hz=RATE_HZ,
        tools=True,
        input_transcription=_settings(deploy).transcribes,
        chat=True,
        chat_audio_input=True,
        chat_audio_output=True,
    )


def _settings(deploy: pydantic.BaseModel) -> EchoSettings:
    assert isinstance(deploy, EchoSettings)
    return deploy


def session_config(deploy: pydantic.BaseModel) -> SessionConfig:
    """What an echo session begins with."""
    return SessionConfig(model="echo", turn_detection=ServerVad())


def stage_plan(checkpoint: Checkpoint, deploy: pydantic.BaseModel) -> StagePlan:
    """One stage, one thread."""
    return StagePlan(stages=(StageSpec(name=STAGE, factory="duplex_core.testing.echo.stage:Cutter"),))


def create_session(context: SessionContext) -> ModelSession:
    """A conversation, or one chat request: the same to echo."""
    return EchoSession(context, transcribes=_settings(context.deploy).transcribes)


ECHO = ModelSpec(
    id="echo",
    summary="says back what it heard; for tests, measurements and as an example",
    claims=lambda checkpoint: False,
    claims_text="only the name echo",
    capabilities=capabilities,
    session_config=session_config,
    stage_plan=stage_plan,
    create_session=create_session,
    deploy_model=EchoSettings,
    options_model=EchoOptions,
    max_sessions=1000,
)
"""The echo model."""


@hookimpl
def duplex_register_models() -> list[ModelSpec]:
    """Offer echo."""
    return [ECHO]
