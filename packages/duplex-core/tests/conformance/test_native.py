"""Native passes the suite that every model package must pass, in units of a second and in short ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from duplex_core.plugins import PluginError, load_plugins
from duplex_core.spec import Checkpoint
from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.native import NATIVE
from duplex_core.testing.native.options import NativeSettings
from duplex_core.testing.suite.base import FORCED_UNITS


class TestNative(ModelConformance):
    spec = NATIVE
    plugin = "duplex_core.testing.native.plugin"
    bad_options: ClassVar[Mapping[str, Any]] = {"no_such_option": 1, "turn_units": 0, "silence_ms": "short"}
    unit_ms = 1000.0
    listens_first: ClassVar[Mapping[str, Any]] = {"forced_listen": FORCED_UNITS}


class TestNativeInShortUnits(TestNative):
    unit_ms = 200.0
    max_points = 12

    @classmethod
    def deploy(cls) -> NativeSettings:
        return NativeSettings(unit_ms=200.0)


def test_it_is_served_when_it_is_named_and_claims_nothing_else() -> None:
    plugins = load_plugins()
    assert plugins.select_model(Checkpoint(name="native")) is NATIVE
    assert not NATIVE.embedded
    with pytest.raises(PluginError, match="no installed model serves a-duplex-checkpoint"):
        plugins.select_model(Checkpoint(name="a-duplex-checkpoint", config={"model_type": "native"}))
