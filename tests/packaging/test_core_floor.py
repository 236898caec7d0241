"""Each model package works with the lowest `duplex-core` that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.packaging.conftest import PACKAGES, model_packages
from tests.packaging.wheelhouse import PINS, ROOT, FreshEnvironment, core_at, core_range, floor, run, version_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.packaging

SHOW_CORE = "import sys, duplex_core as core; print(core.__version__, core.__file__.startswith(sys.prefix))"


@pytest.mark.release
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", model_packages())
def test_a_model_package_passes_its_conformance_suite_at_its_floor(
    name: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    lowest = floor(core_range(PACKAGES[name]))
    (tmp_path / "core").mkdir()
    core = core_at(lowest, tmp_path / "core")
    fresh = FreshEnvironment.make(tmp_path / "env")
    fresh.install("--require-hashes", "--no-deps", "-r", PINS / "test.txt")
    fresh.install("--no-deps", core, wheels[name])
    version, inside = fresh.run("python", "-c", SHOW_CORE).split()
    assert (Version(version), inside) == (lowest, "True")
    suite = ROOT / "packages" / name / "tests"
    shown = run(fresh.bin / "python", "-m", "pytest", "-m", "conformance", "-q", suite)
    assert " passed" in shown
    assert "failed" not in shown


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "duplex-core"])
def test_the_declared_range_holds_the_core_of_this_tree(name: str) -> None:
    declared = core_range(PACKAGES[name])
    current = version_in(PACKAGES["duplex-core"])
    assert declared.specifier.contains(current, prereleases=True), f"{name} needs `{declared}`, the tree has {current}"
    assert floor(declared) <= current


@pytest.mark.parametrize("text", ["duplex-core", "duplex-core<1", "duplex-core==0.1.0"])
def test_a_range_without_a_floor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="exactly one `>=`"):
        floor(Requirement(text))


def core_repository(folder: Path) -> Path:
    """A git checkout whose `duplex-core` was released as 0.1.0 and stands at 0.2.0 now."""
    package = folder / "packages" / "duplex-core"
    module = package / "src" / "duplex_core"
    module.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        (package / name).write_bytes((PACKAGES["duplex-core"] / name).read_bytes())
    git = (
        "git",
        "-C",
        folder,
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    )
    run("git", "init", "--quiet", folder)
    for version in ("0.1.0", "0.2.0"):
        (module / "__init__.py").write_text(f'"""A core."""\n\n__version__ = "{version}"\n', encoding="utf-8")
        run(*git, "add", "--all")
        run(*git, "commit", "--quiet", "--message", version)
        if version == "0.1.0":
            run(*git, "tag", f"duplex-core-v{version}")
    return folder


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ("0.2.0", "duplex_core-0.2.0-py3-none-any.whl"),  # the tree's own
        ("0.1.0", "duplex_core-0.1.0-py3-none-any.whl"),  # from the release's tag
        ("0.1", "duplex_core-0.1.0-py3-none-any.whl"),  # the same version, written shorter
        ("0.0.9", "duplex-core==0.0.9"),  # neither: the index is asked
    ],
)
def test_the_floor_is_taken_from_the_tree_or_a_tag_or_the_index(version: str, source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    found = core_at(Version(version), out, core_repository(tmp_path / "tree"))
    assert (found if isinstance(found, str) else found.name) == source
