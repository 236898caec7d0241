"""What must load fast and everywhere asks for nothing heavy, not even when the heavy thing is absent."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import tomllib

import pytest

from tests.repo import tree

TENSORS = {"torch", "vllm", "transformers", "tensorflow", "jax", "onnxruntime"}
SERVERS = {"fastapi", "starlette", "uvicorn", "duplex_server"}

# Asks the interpreter itself: a finder at the front sees each first import by name, also of what is not installed.
PROBE = textwrap.dedent(
    """
    import importlib, json, sys

    class Watch:
        asked = set()

        def find_spec(self, name, path=None, target=None):
            self.asked.add(name.partition(".")[0])
            return None

    sys.meta_path.insert(0, Watch())
    importlib.import_module(sys.argv[1])
    print(json.dumps(sorted(Watch.asked)))
    """
)


def imported_by(module: str) -> set[str]:
    """Top-level names that a fresh interpreter looks for while it imports `module`."""
    done = subprocess.run([sys.executable, "-c", PROBE, module], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def plugin_modules() -> list[str]:
    """Every module that a package of the tree names as its entry point in the group `duplex`."""
    modules = []
    for folder in tree.PACKAGES:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        modules += [value.partition(":")[0] for value in project.get("entry-points", {}).get("duplex", {}).values()]
    return modules


def test_the_probe_sees_what_is_imported_and_what_is_only_asked_for(tmp_path: object) -> None:
    assert "onnxruntime" in imported_by("onnxruntime")
    assert "sqlite3" in imported_by("sqlite3")


def test_the_embedded_default_is_found_through_an_entry_point() -> None:
    assert "model_cascade.plugin" in plugin_modules()


@pytest.mark.parametrize("module", ["duplex_core", "duplex_core.testing", "duplex_client", *plugin_modules()])
def test_importing_it_asks_for_no_tensor_library_and_no_server(module: str) -> None:
    heavy = imported_by(module) & (TENSORS | SERVERS)
    assert not heavy, f"importing {module} looks for {sorted(heavy)}"


@pytest.mark.parametrize("module", ["duplex_core", *plugin_modules()])
def test_importing_it_asks_for_no_audio_or_socket_library(module: str) -> None:
    heavy = imported_by(module) & {"numpy", "soxr", "soundfile", "websockets", "httpx"}
    assert not heavy, f"importing {module} looks for {sorted(heavy)}"
