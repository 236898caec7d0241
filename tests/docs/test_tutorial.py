"""The tutorial on model packages works as printed: its files are cut out, built, installed, loaded and tested."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.repo import tree

PAGE = tree.ROOT / "docs" / "writing-a-model.md"
FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

LOAD = textwrap.dedent(
    """
    import json

    from duplex_core.plugins import load_plugins
    from duplex_core.spec import Checkpoint

    host = load_plugins()
    by_id = host.select_model(Checkpoint(name="parrot"))
    claimed = host.select_model(Checkpoint(name="some/bird", config={"model_type": "parrot"}))
    reports = {report.name: [report.distribution, report.version, report.cause] for report in host.reports}
    print(json.dumps({"ids": [by_id.id, claimed.id], "report": reports["parrot"]}))
    """
)


def files() -> dict[str, str]:
    """The files that the page shows, by path."""
    return {found["name"]: found["text"] for found in FILE.finditer(PAGE.read_text(encoding="utf-8"))}


def run(*command: str, cwd: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with `site` in front of what is installed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the page writes it."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def site(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package built and installed, apart from everything else."""
    target = tmp_path_factory.mktemp("site")
    install = ["-m", "uv", "pip", "install", "--offline", "--no-deps", "--no-build-isolation", "--no-cache"]
    run(*install, "--target", str(target), str(project), cwd=project, site=target)
    return target


def test_the_page_shows_every_file_of_its_tree() -> None:
    listed = set(re.findall(r"(\w+\.(?:py|toml))\b", PAGE.read_text(encoding="utf-8").split("```")[1]))
    shown = {Path(name).name for name in files()}
    assert listed <= shown
    assert shown - listed == {"test_parrot.py"}


def test_the_server_finds_and_loads_the_package(project: Path, site: Path) -> None:
    found = json.loads(run("-c", LOAD, cwd=project, site=site).stdout)
    assert found == {"ids": ["parrot", "parrot"], "report": ["model-parrot", "0.1.0", None]}


def test_the_package_passes_the_suite_and_its_own_test(project: Path, site: Path) -> None:
    flags = ["-q", "-W", "error", "--import-mode=importlib", "-p", "no:cacheprovider", "-o", "addopts="]
    marker = ["-o", "markers=conformance: the suite of duplex_core.testing"]
    done = run("-m", "pytest", *flags, *marker, "tests", cwd=project, site=site)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= 15, done.stdout
    assert "failed" not in done.stdout
