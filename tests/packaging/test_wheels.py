"""The built packages are whole, install into a clean environment, and find each other there."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.packaging.conftest import PACKAGES, model_packages
from tests.packaging.wheelhouse import PINS, ROOT, CommandFailed, FreshEnvironment, version_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_holds_the_package_and_nothing_else(name: str, wheels: dict[str, Path]) -> None:
    module = name.replace("-", "_")
    inside = zipfile.ZipFile(wheels[name]).namelist()
    info = f"{module}-{version_in(PACKAGES[name])}.dist-info"
    assert {path.split("/")[0] for path in inside} == {module, info}
    assert {f"{module}/__init__.py", f"{module}/py.typed", f"{info}/licenses/LICENSE"} <= set(inside)
    sources = {path.relative_to(PACKAGES[name] / "src").as_posix() for path in PACKAGES[name].glob("src/**/*.py")}
    assert sources <= set(inside)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_sdist_carries_tests_and_changelog(name: str, wheels: dict[str, Path]) -> None:
    module = name.replace("-", "_")
    stem = f"{module}-{version_in(PACKAGES[name])}"
    with tarfile.open(wheels[name].parent / f"{stem}.tar.gz") as archive:
        inside = set(archive.getnames())
    assert {f"{stem}/{part}" for part in ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")} <= inside
    tests = {path.relative_to(PACKAGES[name]).as_posix() for path in PACKAGES[name].glob("tests/**/test_*.py")}
    assert {f"{stem}/{path}" for path in tests} <= inside


def test_a_clean_environment_holds_what_is_declared_and_nothing_heavy(served: FreshEnvironment) -> None:
    installed = served.distributions()
    assert {"duplex-server", "duplex-core", "model-cascade"} <= installed.keys()
    assert "duplex-client" not in installed, "the server needs no client"
    heavy = [name for name in installed if name in {"torch", "vllm", "triton"} or name.startswith("nvidia-")]
    assert not heavy


@pytest.mark.parametrize("name", model_packages())
def test_the_installed_server_lists_the_installed_model(name: str, served: FreshEnvironment) -> None:
    shown = served.run("duplex-server", "models")
    assert re.search(rf"\b{re.escape(name)}\b", shown), shown
    assert str(version_in(PACKAGES[name])) in shown


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_installed_server_serves_the_installed_model(served: FreshEnvironment, tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "server.log"
    command = [str(served.bin / "duplex-server"), "serve", "--port", str(port)]
    with log.open("w") as output, subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as server:
        try:
            listed = wait_for_models(port, server, log)
            server.terminate()
            assert server.wait(timeout=60) == 0, log.read_text()
        finally:
            server.kill()
    assert [model["object"] for model in listed["data"]] == ["model"], listed


def wait_for_models(
    port: int, server: subprocess.Popen[bytes], log: Path, limit_s: float = 120
) -> dict[str, list[dict[str, str]]]:
    """Ask for the served models until the server answers; fail with its log when it ends or takes too long."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        assert server.poll() is None, f"the server ended with {server.returncode}:\n{log.read_text()}"
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=10)
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        assert answer.status_code == 200, answer.text
        listed: dict[str, list[dict[str, str]]] = answer.json()
        return listed
    raise AssertionError(f"no answer within {limit_s} s:\n{log.read_text()}")


def test_the_installed_client_runs_without_a_server(wheels: dict[str, Path], tmp_path: Path) -> None:
    fresh = FreshEnvironment.make(tmp_path / "env")
    ours = ("--find-links", wheels["duplex-client"].parent)
    fresh.install("--constraint", PINS / "runtime.txt", *ours, "duplex-client")
    assert "duplex-server" not in fresh.distributions()
    assert "--wav" in fresh.run("duplex-client", "talk", "--help")


def test_a_pinned_file_with_another_content_is_refused(wheels: dict[str, Path], tmp_path: Path) -> None:
    text = (PINS / "runtime.txt").read_text(encoding="utf-8")
    wrong = re.sub(r"(?<=sha256:)[0-9a-f]{64}", "0" * 64, text)
    (tmp_path / "wrong.txt").write_text(wrong, encoding="utf-8")
    fresh = FreshEnvironment.make(tmp_path / "env")
    ours = ("--find-links", wheels["duplex-core"].parent)
    with pytest.raises(CommandFailed, match=r"[Hh]ash"):
        fresh.install("--constraint", tmp_path / "wrong.txt", *ours, "duplex-core")


@pytest.mark.release
def test_plain_pip_installs_the_newest_versions_and_the_server_still_finds_the_model(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    plain = FreshEnvironment(folder=tmp_path / "env")
    links = str(wheels["duplex-server"].parent)
    plain.run("python", "-m", "pip", "install", "--quiet", "--find-links", links, "duplex-server", "model-cascade")
    plain.run("python", "-m", "pip", "check")
    installed = plain.distributions()
    assert "torch" not in installed
    assert "model-cascade" in plain.run("duplex-server", "models")
    assert ROOT not in tmp_path.parents
