"""What no file of the tree may say, and what each package must have."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.repo import tree

# Written in parts, so that this file does not say them itself.
HOSTS = [
    "pypi" + r"\.org",
    "python" + "hosted",
    r"registry\." + "npmjs",
    "deb" + r"\.debian",
    r"archive\." + "ubuntu",
    r"anaconda\." + "org",
    r"download\.py" + "torch",
]
REGISTRY = re.compile("|".join(HOSTS))
MACHINE_PATH = re.compile(r"(?:^|[^\w.])/(?:work|farm|root|tmp|opt|home|Users)/")
FETCHES = re.compile(r"^```mermaid|unpkg\.com|cdn\.", re.MULTILINE)
SESSIONS = {
    "demo",
    "serve",
    "talk",
    "tests",
    "engines",
    "lint",
    "types",
    "imports",
    "conformance",
    "docs",
    "build",
    "e2e-gpu",
}
PACKAGE_NAMES = [path.name for path in tree.PACKAGES]


def texts() -> list[tuple[str, str]]:
    read = []
    for path in tree.files():
        data = path.read_bytes()
        if b"\0" not in data:
            read.append((tree.name_of(path), data.decode("utf-8")))
    return read


@pytest.mark.parametrize(
    ("pattern", "example"),
    [(REGISTRY, "https://" + "pypi" + ".org/simple"), (MACHINE_PATH, "see " + "/root" + "/notes")],
    ids=["registry host", "machine path"],
)
def test_no_file_names_a_registry_host_or_a_path_of_one_machine(pattern: re.Pattern[str], example: str) -> None:
    assert pattern.search(example)
    found = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_documentation_loads_nothing_from_elsewhere() -> None:
    found = [name for name, text in texts() if name.startswith("docs/") and FETCHES.search(text)]
    assert not found, f"these pages would fetch a script when read (a mermaid fence does): {found}"


def test_every_python_file_opens_with_a_docstring() -> None:
    bare = [
        tree.name_of(path)
        for path in tree.files()
        if path.suffix == ".py"
        and path.read_text(encoding="utf-8").strip()
        and not re.match(r'(?:#.*\n|\s)*r?"""', path.read_text(encoding="utf-8"))
    ]
    assert not bare, f"say in the first lines what the file owns, who calls it and what it must never do: {bare}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    selected: bool
    description: str


@pytest.fixture(scope="module")
def sessions() -> dict[str, Session]:
    """What `nox -l` shows."""
    command = [sys.executable, "-m", "nox", "--list", "--noxfile", str(tree.ROOT / "noxfile.py")]
    listed = subprocess.run(command, check=True, capture_output=True, cwd=tree.ROOT, text=True).stdout
    lines = re.findall(r"^([*-]) (\S+)(?: -> (.*))?$", listed, re.MULTILINE)
    return {name: Session(selected=mark == "*", description=text) for mark, name, text in lines}


def test_every_session_says_what_it_does(sessions: dict[str, Session]) -> None:
    assert sessions.keys() >= SESSIONS
    undocumented = [name for name, one in sessions.items() if len(one.description.split()) < 3]
    assert not undocumented, f"these sessions have no docstring: {undocumented}"
    guide = (tree.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    missing = [name for name in sessions if f"`nox -s {name}" not in guide]
    assert not missing, f"CONTRIBUTING.md does not name {missing}"


def test_sessions_that_need_more_than_a_bare_machine_are_not_in_the_default_set(
    sessions: dict[str, Session],
) -> None:
    assert {name for name, one in sessions.items() if one.selected} == SESSIONS - {"serve", "talk", "e2e-gpu"}


def test_ci_runs_the_command_of_the_readme_and_the_default_sessions() -> None:
    script = (tree.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (tree.ROOT / "README.md").read_text(encoding="utf-8")
    assert "pip install nox && nox -s tests" in readme
    assert "pip install nox && nox -s demo" in readme
    assert "step 'tests' nox -s tests\n" in script
    looped = re.search(r"for session in ([\w -]+); do", script)
    assert looped is not None
    alone = re.findall(r"^step '[\w-]+' nox -s ([\w-]+)", script, re.MULTILINE)
    assert sorted([*looped[1].split(), *alone]) == sorted(SESSIONS - {"serve", "talk", "e2e-gpu"})


@pytest.mark.parametrize("name", PACKAGE_NAMES)
def test_each_package_is_complete(name: str) -> None:
    folder = tree.ROOT / "packages" / name
    module = name.replace("-", "_")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == name
    assert project["project"]["requires-python"] == ">=3.11,<3.14"
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert (folder / "src" / module / "py.typed").exists()
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")
    assert (folder / "LICENSE").read_bytes() == (tree.ROOT / "LICENSE").read_bytes()
    assert list((folder / "tests").rglob("test_*.py")), f"{name} has no test"
    text = (folder / "src" / module / "__init__.py").read_text(encoding="utf-8")
    assert re.search(r'^__version__ = "\d+\.\d+\.\d+"$', text, re.MULTILINE), f"{module} names no version"


@pytest.mark.parametrize("name", PACKAGE_NAMES)
def test_each_package_keeps_its_own_changelog(name: str) -> None:
    folder = tree.ROOT / "packages" / name
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in settings["type"]}
    assert settings["directory"] == "changelog.d"
    assert kinds == {"breaking", "added", "changed", "fixed"}
    assert settings["start_string"].strip() in (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    for fragment in (folder / "changelog.d").iterdir():
        if fragment.name != ".gitignore":
            parts = fragment.name.split(".")
            assert len(parts) >= 3, f"{fragment.name}: name it ISSUE.KIND.md"
            assert parts[1] in kinds, f"{fragment.name}: the kind is one of {sorted(kinds)}"
            assert fragment.read_text(encoding="utf-8").strip(), f"{fragment.name} is empty"


def test_a_package_is_named_wherever_all_packages_are() -> None:
    noxfile = (tree.ROOT / "noxfile.py").read_text(encoding="utf-8")
    settings = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    pinned = {each: (tree.ROOT / "requirements" / f"{each}.in").read_text("utf-8") for each in ("runtime", "engines")}
    readme = (tree.ROOT / "README.md").read_text(encoding="utf-8")
    for name in PACKAGE_NAMES:
        assert f'"{name}"' in noxfile, f"noxfile.py does not install {name}"
        assert any(f"\n./packages/{name}\n" in text for text in pinned.values()), f"no layer pins what {name} needs"
        assert f"(packages/{name})" in readme, f"README.md does not name {name}"
        assert name.replace("-", "_") in settings["importlinter"]["root_packages"], f"no import contract sees {name}"
        assert any(Path(path).match(f"*/{name}/src") for path in settings["mypy"]["mypy_path"])
