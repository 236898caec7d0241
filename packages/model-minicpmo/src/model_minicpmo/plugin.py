"""What this package registers. Named by the entry point `minicpmo` in the group `duplex`; imports nothing heavy.

Owns the description of the model: what it claims, what it can do, its stages and how much they hold. Never: loads weights, or
imports a tensor library.
"""

from __future__ import annotations

from typing import Any

import pydantic

from duplex_core.capabilities import Capabilities, TurnPolicy
from duplex_core.config import Modality, ServerVad, SessionConfig
from duplex_core.hookspecs import hookimpl
from duplex_core.model import ModelSession
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import LinkKind, Resources, StageLink, StagePlan, StageSpec
from model_minicpmo.chat import ChatAnswer
from model_minicpmo.options import SessionOptions
from model_minicpmo.payloads import PAYLOADS, SENSES, TALKER, THINKER, VOICE
from model_minicpmo.rules.units import INPUT_HZ
from model_minicpmo.session import OUTPUT_HZ, MiniCPMOSession
from model_minicpmo.settings import MiniCPMOSettings, StageSettings

MODEL_ID = "minicpmo"
PUBLISHED = "openbmb/MiniCPM-o-4_5"
"""The name under which the weights are published."""
MAX_SESSIONS = 1024
"""More than any deployment holds: the stages say how many sessions there can be."""


def claims(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint is MiniCPM-o 4.5's."""
    if checkpoint.path is None:
        return checkpoint.name in (MODEL_ID, PUBLISHED)
    return checkpoint.config.get("model_type") == "minicpmo" and str(checkpoint.config.get("version")) == "4.5"


def capabilities(deploy: pydantic.BaseModel) -> Capabilities:
    """Tell what sessions can do."""
    return Capabilities(
        turn_policy=TurnPolicy.MODEL,
        input_rate_hz=INPUT_HZ,
        output_rate_hz=OUTPUT_HZ,
        output_modalities=(Modality.AUDIO,),
        image_input=True,
        video_input=True,
        chat=True,
        chat_audio_input=True,
        chat_audio_output=True,
        chat_image_input=True,
        temperature=True,
        input_cancel=False,
        out_of_band=False,
        fixed_after_start=("instructions", "options"),
    )


def session_config(deploy: pydantic.BaseModel) -> SessionConfig:
    """Give what a session begins with: the engine's detector interrupts, the model takes its turns."""
    return SessionConfig(model=MODEL_ID, instructions=_settings(deploy).instructions, turn_detection=ServerVad())


def stage_plan(checkpoint: Checkpoint, deploy: pydantic.BaseModel) -> StagePlan:
    """Give the four stages, linked: senses, thinker, talker, voice.

    Raises:
        ValueError: the replicas of a stage cannot share the sessions out evenly enough.
    """
    settings = _settings(deploy)
    folder = checkpoint.path or PUBLISHED
    own = {"checkpoint": folder, "dtype": settings.dtype}
    engine = {
        "max_model_len": settings.thinker.max_model_len,
        "dtype": settings.thinker.dtype,
        "engine_args": settings.thinker.engine_args,
    }
    return StagePlan(
        stages=(
            _stage(
                SENSES,
                "torch",
                "senses_worker:SensesWorker",
                {**own, "positions": settings.thinker.max_model_len},
                settings,
                settings.senses,
            ),
            _stage(
                THINKER,
                "vllm",
                "thinker:Thinker",
                {"checkpoint": folder, "engine": engine},
                settings,
                settings.thinker,
                StageLink(source=SENSES, kind=LinkKind.EMBEDDINGS),
            ),
            _stage(
                TALKER,
                "torch",
                "talker_worker:TalkerWorker",
                own,
                settings,
                settings.talker,
                StageLink(source=THINKER, kind=LinkKind.HIDDEN_STATES),
            ),
            _stage(
                VOICE,
                "torch",
                "voice_worker:VoiceWorker",
                {**own, "flow_steps": settings.flow_steps},
                settings,
                settings.voice,
                StageLink(source=TALKER, kind=LinkKind.CODEC_FRAMES),
            ),
        )
    )


def _stage(  # noqa: PLR0917 - a table of stages reads best so
    name: str,
    runtime: str,
    factory: str,
    options: dict[str, Any],
    settings: MiniCPMOSettings,
    where: StageSettings,
    *inputs: StageLink,
) -> StageSpec:
    return StageSpec(
        name=name,
        runtime=runtime,
        factory=f"model_minicpmo.gpu.{factory}",
        options=options,
        replicas=where.replicas,
        inputs=inputs,
        payloads=PAYLOADS,
        resources=Resources(
            devices=where.devices,
            memory_bytes=where.memory_bytes,
            sessions=-(-settings.sessions // where.replicas),
            chats=-(-settings.chats // where.replicas),
        ),
    )


def create_session(context: SessionContext) -> ModelSession:
    """Make the model's side of one conversation, or of one chat request."""
    return ChatAnswer(context) if context.chat else MiniCPMOSession(context)


@hookimpl
def duplex_register_models() -> list[ModelSpec]:
    """Offer the model; see :func:`duplex_core.hookspecs.duplex_register_models`."""
    return [
        ModelSpec(
            id=MODEL_ID,
            summary="MiniCPM-o 4.5: hears, sees and decides every second whether to listen or to speak",
            claims=claims,
            claims_text=f'config.json with model_type "minicpmo" and version 4.5; the name {PUBLISHED}',
            capabilities=capabilities,
            session_config=session_config,
            stage_plan=stage_plan,
            create_session=create_session,
            deploy_model=MiniCPMOSettings,
            options_model=SessionOptions,
            profiles="model_minicpmo:profiles",
            default_profile="one-gpu",
            max_sessions=MAX_SESSIONS,
        )
    ]


def _settings(deploy: pydantic.BaseModel) -> MiniCPMOSettings:
    assert isinstance(deploy, MiniCPMOSettings)
    return deploy
