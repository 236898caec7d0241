"""The deploy profiles of MiniCPM-o, with nothing loaded: every stage holds the sessions, the thinker's memory their contexts."""

from __future__ import annotations

from math import prod

import pytest

from duplex_core.plugins import load_plugins
from duplex_server import builtins
from duplex_server.deploy import resolve
from duplex_server.engine.served import ServedModel, prepare, session_limit
from model_minicpmo.payloads import TALKER, THINKER, VOICE
from model_minicpmo.plugin import PUBLISHED
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing import sizes
from model_minicpmo.testing.tensors import model_tensors

GPUS = {"one-gpu": 1, "two-gpus": 2, "three-gpus": 3}
SPARE_SEQUENCES = 1
"""What the vLLM runtime has beyond its seats, for windows that move."""
ACTIVATIONS_BYTES = 2 * 1024**3
"""What vLLM takes beside weights and cache, roughly; not measured."""


def served(profile: str) -> ServedModel:
    return prepare(load_plugins([builtins]), PUBLISHED, lambda spec: resolve(spec, {}, profile))


@pytest.mark.parametrize("profile", [*GPUS, "cpu"])
def test_every_stage_holds_all_sessions_and_chats(profile: str) -> None:
    model = served(profile)
    deploy = model.deploy
    assert isinstance(deploy, MiniCPMOSettings)
    assert session_limit(model, None) == deploy.sessions
    for stage in model.plan.stages:
        assert stage.resources.sessions is not None
        assert stage.resources.sessions * stage.replicas >= deploy.sessions
        assert stage.resources.chats * stage.replicas >= deploy.chats
    devices = {device for stage in model.plan.stages for device in stage.resources.devices}
    assert len(devices) == GPUS.get(profile, 1)


def test_three_gpus_have_two_talkers_and_two_voices() -> None:
    replicas = {stage.name: stage.replicas for stage in served("three-gpus").plan.stages}
    assert (replicas[TALKER], replicas[VOICE], replicas[THINKER]) == (2, 2, 1)


@pytest.mark.parametrize("profile", GPUS)
def test_the_thinker_s_memory_holds_its_weights_and_every_seat_s_whole_context(profile: str) -> None:
    """In bfloat16, at the published sizes."""
    deploy = served(profile).deploy
    assert isinstance(deploy, MiniCPMOSettings)
    llm = sizes.PUBLISHED.llm
    weights = 2 * sum(prod(shape) for name, shape in model_tensors(sizes.PUBLISHED) if name.startswith("llm."))
    position = 2 * 2 * llm.layers * llm.kv_heads * llm.head
    contexts = (deploy.sessions + deploy.chats + SPARE_SEQUENCES) * deploy.thinker.max_model_len * position
    assert deploy.thinker.memory_bytes is not None
    assert weights + contexts + ACTIVATIONS_BYTES <= deploy.thinker.memory_bytes
