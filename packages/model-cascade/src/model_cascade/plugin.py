"""What ``duplex-server`` finds of the cascade through its entry point. Light: weights and libraries load with the stages."""

from __future__ import annotations

import pydantic

from duplex_core.capabilities import Capabilities
from duplex_core.config import ServerVad, SessionConfig, Transcription
from duplex_core.hookspecs import hookimpl
from duplex_core.spec import Checkpoint, ModelSpec, SessionContext
from duplex_core.stages import StagePlan, StageSpec
from duplex_core.transcribing import TranscriberSpec
from model_cascade.answer import LANGUAGE, VOICE
from model_cascade.payloads import INPUT_RATE_HZ, RECOGNIZER
from model_cascade.session import CascadeSession
from model_cascade.settings import CascadeSettings
from model_cascade.stages.factories import check

MODEL_ID = "cascade"
OUTPUT_RATE_HZ = 24000
"""Every voice is brought to this rate, which is also what a stock client hears."""


def _settings(deploy: pydantic.BaseModel) -> CascadeSettings:
    assert isinstance(deploy, CascadeSettings)
    return deploy


def claims(checkpoint: Checkpoint) -> bool:
    """The cascade has no checkpoint of its own: it is served by its name, or when no model is named."""
    return checkpoint.name == MODEL_ID


def capabilities(deploy: pydantic.BaseModel) -> Capabilities:
    """What a conversation with the cascade can do."""
    return Capabilities(
        input_rate_hz=INPUT_RATE_HZ,
        output_rate_hz=OUTPUT_RATE_HZ,
        tools=True,
        input_transcription=True,
        temperature=True,
        chat=True,
        chat_audio_input=True,
        chat_audio_output=True,
        voices=_settings(deploy).voices,
    )


def session_config(deploy: pydantic.BaseModel) -> SessionConfig:
    """The defaults of a session."""
    settings = _settings(deploy)
    return SessionConfig(
        model=MODEL_ID,
        instructions=settings.instructions,
        voice=settings.voices[0],
        turn_detection=ServerVad(silence_duration_ms=settings.silence_ms),
        transcription=Transcription(),
    )


def recognizer_stage(name: str, recognizer: str, concurrency: int = 1) -> StageSpec:
    """The recogniser, on threads of the server's own process."""
    return StageSpec(
        name=name,
        factory="model_cascade.stages.recognizer:RecognizerWorker",
        options={"recognizer": recognizer},
        concurrency=concurrency,
    )


def stage_plan(checkpoint: Checkpoint, deploy: pydantic.BaseModel) -> StagePlan:
    """Three stages, each on threads of the server's own process.

    Raises:
        ValueError: a part that the settings name by its import path is not installed.
    """
    settings = _settings(deploy)
    check("recognizer", settings.recognizer)
    for voice in settings.voices:
        check("voices", voice)
    return StagePlan(
        stages=(
            recognizer_stage(RECOGNIZER, settings.recognizer, settings.sessions_at_once),
            StageSpec(
                name=LANGUAGE,
                factory="model_cascade.stages.language:LanguageWorker",
                options={"settings": settings.language_model},
                concurrency=settings.sessions_at_once,
            ),
            StageSpec(
                name=VOICE,
                factory="model_cascade.stages.voice:VoiceWorker",
                options={"voices": settings.voices, "rate_hz": OUTPUT_RATE_HZ},
                concurrency=settings.sessions_at_once,
            ),
        )
    )


def create_session(context: SessionContext) -> CascadeSession:
    """The model's side of one conversation."""
    return CascadeSession(context, rate_hz=OUTPUT_RATE_HZ, settings=_settings(context.deploy))


@hookimpl
def duplex_register_models() -> list[ModelSpec]:
    """Offer the cascade; see :func:`duplex_core.hookspecs.duplex_register_models`."""
    return [
        ModelSpec(
            id=MODEL_ID,
            summary="recogniser, small language model and voice, weights included; the language model is often wrong",
            claims=claims,
            claims_text=f"the name {MODEL_ID!r}; also served when no model is named",
            capabilities=capabilities,
            session_config=session_config,
            stage_plan=stage_plan,
            create_session=create_session,
            deploy_model=CascadeSettings,
            embedded=True,
            max_sessions=4,
        )
    ]


@hookimpl
def duplex_register_transcribers() -> list[TranscriberSpec]:
    """Offer the cascade's recogniser to models that have none; see :func:`duplex_core.hookspecs.duplex_register_transcribers`."""
    return [
        TranscriberSpec(
            id="moonshine",
            summary="Moonshine tiny, English, on one CPU thread; weights included",
            stage=recognizer_stage("transcriber", "moonshine"),
        )
    ]
