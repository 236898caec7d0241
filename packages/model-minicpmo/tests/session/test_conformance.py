"""The conformance kit on MiniCPM-o's session and rules, over stages on paper; the same kit over its real stages is beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from duplex_core.config import SessionConfig
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.stages import StageHost
from duplex_core.testing.suite.base import FORCED_UNITS
from model_minicpmo.plugin import duplex_register_models
from model_minicpmo.testing.paper import PaperHost


class TestOnPaper(ModelConformance):
    (spec,) = duplex_register_models()
    plugin = "model_minicpmo.plugin"
    bad_options: ClassVar[Mapping[str, Any]] = {"no_such_option": 1, "temperature": 0, "window": "wide", "top_p": 2}
    unit_ms = 1000.0
    listens_first: ClassVar[Mapping[str, Any]] = {"forced_listen": FORCED_UNITS}
    max_points = 12

    @classmethod
    def config(cls) -> SessionConfig:
        config = super().config()
        return msgspec.structs.replace(config, options={**config.options, "forced_listen": 0})

    @pytest.fixture
    def host(self) -> StageHost:
        return PaperHost()
