"""Installs distributions for one test: a folder on the path with real metadata, and none of the others that are installed."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Protocol

import pytest

MODEL = """
from duplex_core.capabilities import Capabilities
from duplex_core.config import SessionConfig
from duplex_core.hookspecs import hookimpl
from duplex_core.spec import ModelSpec
from duplex_core.stages import StagePlan

def model(name, **more):
    return ModelSpec(
        id=name,
        summary="a model",
        claims=lambda checkpoint: checkpoint.config.get("model_type") == name,
        claims_text="model_type " + name,
        capabilities=lambda deploy: Capabilities(),
        session_config=lambda deploy: SessionConfig(model=name),
        stage_plan=lambda checkpoint, deploy: StagePlan(),
        create_session=lambda context: None,
    ) if not more else __import__("dataclasses").replace(model(name), **more)
"""
"""The beginning of a plugin's source: ``model(name)`` makes a spec."""

_numbers = itertools.count()


class Install(Protocol):
    def __call__(
        self,
        distribution: str,
        source: str,
        *,
        version: str = "1.0",
        requires: str = "",
        name: str = "",
        target: str = "",
    ) -> str:
        """Install a distribution with one plugin module and give the module's name."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions into a folder that is the only one with distributions."""
    bare = [entry for entry in sys.path if not any(metadata.distributions(path=[entry]))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *bare])
    made: list[str] = []

    def put(
        distribution: str, source: str, *, version: str = "1.0", requires: str = "", name: str = "", target: str = ""
    ) -> str:
        module = f"plugin_{next(_numbers)}"
        made.append(module)
        (tmp_path / f"{module}.py").write_text(MODEL + textwrap.dedent(source))
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}")
        (info / "entry_points.txt").write_text(f"[duplex]\n{name or distribution} = {target or module}\n")
        return module

    yield put
    for module in made:
        sys.modules.pop(module, None)
