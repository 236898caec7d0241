"""The conformance kit on MiniCPM-o's real stages: hearing, thinking, talking and sounding with a tiny checkpoint that behaves.

The language model is transformers' own in place of vLLM's; what the kit shows is that the session and the workers go together, at
interruptions above all. Turns are interrupted at few points, since every second of conversation is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest
import torch

from duplex_core.config import SessionConfig
from duplex_core.spec import Checkpoint
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.pipelines import ProgramEngine
from duplex_core.testing.speech import burst
from duplex_core.testing.suite.base import FORCED_UNITS
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.settings import MiniCPMOSettings
from model_minicpmo.testing.behaviour import Behaviour
from model_minicpmo.testing.over_transformers import OverTransformers, language_model
from model_minicpmo.testing.talking import write_talking_checkpoint

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestOnStages(ModelConformance):
    (spec,) = duplex_register_models()
    plugin = "model_minicpmo.plugin"
    bad_options: ClassVar[Mapping[str, Any]] = {"no_such_option": 1, "temperature": 0, "window": "wide", "top_p": 2}
    unit_ms = 1000.0
    listens_first: ClassVar[Mapping[str, Any]] = {"forced_listen": FORCED_UNITS}
    max_points = 3
    folder: ClassVar[Path]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _checkpoint(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        torch.set_num_threads(1)
        says = Behaviour(units=("I heard that", " and answer now,", " not too fast", " so nobody gets lost."))
        cls.folder = write_talking_checkpoint(tmp_path_factory.mktemp("talking"), says)

    @classmethod
    def checkpoint(cls) -> Checkpoint:
        return Checkpoint(name="tiny", path=str(cls.folder))

    @classmethod
    def deploy(cls) -> pydantic.BaseModel:
        return MiniCPMOSettings(flow_steps=2, dtype="float32")

    @classmethod
    def other_speech(cls) -> bytes:
        """Longer than a unit: of what interrupts, the checkpoint answers what comes after the unit that closes the turn."""
        return burst(1900.0, cls.input_rate_hz(), hz=140.0)

    @classmethod
    def engine(cls) -> ProgramEngine:
        model = language_model(cls.folder)
        return lambda program, session: OverTransformers(model, session)

    @classmethod
    def config(cls) -> SessionConfig:
        config = super().config()
        return msgspec.structs.replace(config, options={"forced_listen": 0, "greedy": True, "seed": 1})
