"""What the packaging tests share: one built set of wheels, and one environment that holds the server and a model."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from tests.packaging.wheelhouse import PINS, ROOT, FreshEnvironment, build

PACKAGES = {path.parent.name: path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}


def model_packages() -> list[str]:
    """Name the packages of the tree that register a plugin and need a range of `duplex-core`: not the core, with its echo."""
    found = []
    for name, folder in PACKAGES.items():
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        needs_core = any(need.startswith("duplex-core") for need in project.get("dependencies", []))
        if project.get("entry-points", {}).get("duplex") and needs_core:
            found.append(name)
    return found


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every package's wheel, freshly built (its sdist beside it); into `DUPLEX_WHEELS` when that is set."""
    out = Path(os.environ.get("DUPLEX_WHEELS") or tmp_path_factory.mktemp("wheels"))
    out.mkdir(parents=True, exist_ok=True)
    return {name: build(folder, out) for name, folder in PACKAGES.items()}


@pytest.fixture(scope="session")
def served(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    """A fresh environment after `pip install duplex-server model-cascade`, all else in the pinned versions.

    The packages of models that need an engine are there without it: what the server's own process loads of them is light.
    """
    fresh = FreshEnvironment.make(tmp_path_factory.mktemp("served") / "env")
    ours = ("--find-links", wheels["duplex-server"].parent)
    fresh.install("--constraint", PINS / "runtime.txt", *ours, "duplex-server", "model-cascade")
    for name in model_packages():
        if name != "model-cascade":
            fresh.install("--no-deps", wheels[name])
    return fresh
