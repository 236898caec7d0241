"""Builds the packages of the tree and installs them into fresh environments.

Owns: how an sdist and a wheel are made, how an environment is made and filled, and where the lowest supported
`duplex-core` comes from. Called by: the tests beside it, in `nox -s tests` and `nox -s build`.
Never: installs anything of the tree except from a built wheel.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import uv
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "requirements"


class CommandFailed(Exception):
    """A command that had to succeed did not. The message holds the command and all that it printed."""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command without this interpreter's environment variables and give what it wrote to standard output.

    Raises:
        CommandFailed: It ended with another status than 0.
    """
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    clean["UV_BUILD_CONSTRAINT"] = str(PINS / "installer.txt")
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise CommandFailed(f"{shown}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(package: Path, out: Path) -> Path:
    """Build one package's sdist, and its wheel from that sdist, with this environment's build backend.

    Returns:
        The wheel. The sdist lies beside it.
    """
    before = set(out.glob("*.whl"))
    backend = ("--no-build-isolation", "--python", sys.executable)
    run(uv.find_uv_bin(), "build", "--quiet", *backend, "--out-dir", out, package)
    (wheel,) = set(out.glob("*.whl")) - before
    return wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshEnvironment:
    """A virtual environment that holds nothing but what is put into it."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FreshEnvironment:
        """Make an empty environment (without pip) for the running interpreter's version."""
        run(uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder)
        return cls(folder=folder)

    @property
    def bin(self) -> Path:
        """Where its Python and its commands are."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *arguments: str | Path) -> None:
        """Install with uv: from what it has at hand already, else from the index that it is configured for."""
        command = (uv.find_uv_bin(), "pip", "install", "--quiet", "--python", self.bin / "python", *arguments)
        try:
            run(*command, "--offline")
        except CommandFailed:
            run(*command)

    def run(self, name: str, *arguments: str | Path) -> str:
        """Run one of its commands, away from the tree, and give what it printed."""
        return run(self.bin / name, *arguments, cwd=self.folder)

    def distributions(self) -> dict[str, str]:
        """Name and version of all that is installed."""
        listed = run(uv.find_uv_bin(), "pip", "freeze", "--python", self.bin / "python")
        named = (re.match(r"([\w.-]+)(?:==| @ )(.*)", line) for line in listed.splitlines())
        return {match[1]: match[2] for match in named if match}


def core_range(package: Path) -> Requirement:
    """Read which `duplex-core` a package declares that it needs."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (declared,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "duplex-core")
    return declared


def floor(declared: Requirement) -> Version:
    """Give the lowest version of a range such as `>=0.1.0,<0.2`.

    Raises:
        ValueError: The range has no single `>=`, so that it has no floor to test at.
    """
    lowest = [Version(one.version) for one in declared.specifier if one.operator == ">="]
    if len(lowest) != 1:
        raise ValueError(f"`{declared}` must have exactly one `>=`: a model package is tested at that version")
    return lowest[0]


def version_in(package: Path) -> Version:
    """Read the version of a package from its sources."""
    (init,) = package.glob("src/*/__init__.py")
    found = re.search(r'^__version__ = "(.+)"$', init.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f'{init} has no line `__version__ = "…"`')
    return Version(found[1])


def core_at(version: Version, out: Path, root: Path = ROOT) -> Path | str:
    """Find `duplex-core` in one version: in this tree, else at its release's tag, else in the index.

    Args:
        version: The version that is wanted.
        out: An empty folder for what has to be built.
        root: The tree, a git checkout.

    Returns:
        A wheel, or the requirement `duplex-core==VERSION` when only the index can have it.
    """
    package = root / "packages" / "duplex-core"
    if version_in(package) == version:
        return build(package, out)
    tags = run("git", "-C", root, "tag", "--list", "duplex-core-v*").split()
    released = [tag for tag in tags if Version(tag.removeprefix("duplex-core-v")) == version]
    if not released:
        return f"duplex-core=={version}"
    archive = ("git", "-C", str(root), "archive", released[0], "packages/duplex-core")
    packed = subprocess.run(archive, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        files.extractall(out / "sources")
    return build(out / "sources" / "packages" / "duplex-core", out)
