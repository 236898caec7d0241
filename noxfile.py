"""Every command of this tree: what a newcomer runs first, what a developer runs all day, what CI runs.

Owns: the environments under `.nox/env` (made on first use from the pinned files under `requirements/`, kept until
those change) and one session for each task. Called by: people and `.ci/run`, as `nox -s NAME`.
Never: needs anything but Python 3.11 to 3.13 and nox; installs a package that is not pinned by hash (but for the
plain installation that `build` proves on purpose).

Environments are shared by sessions that need the same things, so the sessions themselves have none of their own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).resolve().parent
PACKAGES = ("duplex-core", "duplex-server", "duplex-client", "model-cascade", "model-minicpmo")
LAYERS = ("check", "test", "run", "runtime", "installer")
ENGINES = "engines"
"""The layer with torch and vLLM in their builds for a CPU; only for :data:`ENGINES_PYTHON` on Linux, x86-64."""
GPU = "gpu"
"""The layer with torch and vLLM in their builds for CUDA; where :data:`ENGINES` is, and nvidia-smi too."""
ENGINES_PYTHON = (3, 11)
PYTHONS = ((3, 11), (3, 13))
ENVIRONMENTS = ROOT / ".nox" / "env"
INTERRUPT_S = 20.0
"""How long what runs may take to end itself after Ctrl-C: a server lets its sessions end."""

nox.needs_version = ">=2024.4.15"
nox.options.error_on_external_run = False
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "imports", "tests", "engines", "conformance", "docs", "build", "demo"]


class Environment:
    """A virtual environment under `.nox/env`, made by the interpreter that runs nox.

    Args:
        session: The nox session that runs the commands.
        layer: Which pinned file under `requirements/` it holds: `run`, `test` or `check`.
    """

    def __init__(self, session: nox.Session, layer: str) -> None:
        self.session = session
        self.pins = ROOT / "requirements" / f"{layer}.txt"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self.folder = ENVIRONMENTS / f"{layer}-py{version}"
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.env = {
            "VIRTUAL_ENV": str(self.folder),
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONHOME": None,
            "PYTHONPATH": None,
            "UV_BUILD_CONSTRAINT": str(ROOT / "requirements" / "installer.txt"),
        }
        if ssl.create_default_context().cert_store_stats()["x509_ca"]:
            self.env["UV_SYSTEM_CERTS"] = "1"  # as pip does: behind a proxy with a certificate of its own, too

    def fingerprint(self) -> str:
        """Tell what the environment was made from: its pins, the packages' own files, and the interpreter."""
        inputs = [self.pins, *(ROOT / "packages" / name / "pyproject.toml" for name in PACKAGES)]
        digest = hashlib.sha256(f"{sys.version}\n{ROOT}\n".encode())
        for path in inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def ensure(self) -> Environment:
        """Make the environment, or leave it as it is when nothing it was made from has changed."""
        stamp = self.folder / "made-from"
        if stamp.exists() and stamp.read_text() == self.fingerprint():
            return self
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.session.run(sys.executable, "-m", "virtualenv", "--quiet", str(self.folder))
        self.python("-m", "pip", "install", "--quiet", "--require-hashes", "-r", "requirements/installer.txt")
        install = ["-m", "uv", "pip", "install", "--quiet"]
        if self.pins.stem == ENGINES:
            self.look_where_pip_does()
        pinned = ["--require-hashes", "--no-deps", "-r", str(self.pins)]
        try:
            self.python(*install, *pinned)
        except CommandFailed:
            self.session.log("uv could not install; trying pip, which may be configured for another index or proxy")
            self.python("-m", "pip", "install", "--quiet", *pinned)
        trees = [part for name in PACKAGES for part in ("-e", f"packages/{name}")]
        self.python(*install, "--no-deps", "--no-build-isolation", "--offline", *trees)
        stamp.write_text(self.fingerprint())
        return self

    def look_where_pip_does(self) -> None:
        """Let uv look for wheels in the folders that pip is told of beside its index (``find-links``), which uv does not read."""
        command = (str(self.bin / "python"), "-m", "pip", "config", "list")
        told = str(self.session.run(*command, env=self.env, external=True, silent=True))
        values = [line.partition("=")[2].strip("'\"") for line in told.splitlines() if ".find-links=" in line]
        self.env["UV_FIND_LINKS"] = ",".join(dict.fromkeys(folder for value in values for folder in value.split()))

    def python(self, *args: str) -> None:
        """Run this environment's Python with `args`, from the root of the tree."""
        self.session.run(str(self.bin / "python"), *args, env=self.env, external=True, interrupt_timeout=INTERRUPT_S)

    def tool(self, name: str, *args: str, silent: bool = False) -> None:
        """Run a command that is installed in this environment; a silent one's output is shown only when it fails."""
        self.session.run(
            str(self.bin / name), *args, env=self.env, external=True, silent=silent, interrupt_timeout=INTERRUPT_S
        )


def environment(session: nox.Session, layer: str) -> Environment:
    """Give the environment of a layer, ready for use; end the session when this Python is not supported."""
    low, high = PYTHONS
    if not low <= sys.version_info[:2] <= high:
        session.error(
            f"Python {low[0]}.{low[1]} to {high[0]}.{high[1]} is needed, but nox runs on {sys.version.split()[0]}. "
            f"Install nox with one of those, for example: python3.11 -m pip install nox"
        )
    session.chdir(ROOT)
    return Environment(session, layer).ensure()


@nox.session
def demo(session: nox.Session) -> None:
    """Hold one spoken conversation with the embedded default, over a real socket, and write it to demo-out/."""
    environment(session, "run").python("-m", "demo", "--out", "demo-out", *session.posargs)


@nox.session(default=False)
def serve(session: nox.Session) -> None:
    """Start the server and leave it up; options of `duplex-server serve` follow `--`."""
    environment(session, "run").tool("duplex-server", "serve", *session.posargs)


@nox.session(default=False)
def talk(session: nox.Session) -> None:
    """Talk to a server that is up; options of `duplex-client talk` follow `--`."""
    environment(session, "run").tool("duplex-client", "talk", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test of every package and of the tree; options of pytest follow `--`."""
    environment(session, "test").python(
        "-m", "pytest", "-m", "not gpu and not release and not engines", *session.posargs
    )


@nox.session
def engines(session: nox.Session) -> None:
    """Run the tests of the stage runtimes and of the models on them, with torch and vLLM on the CPU."""
    if sys.version_info[:2] != ENGINES_PYTHON or sys.platform != "linux":
        session.error("torch and vLLM for a CPU are pinned for Python 3.11 on Linux, x86-64: run nox with that one.")
    chosen = environment(session, ENGINES)
    chosen.env |= {"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    chosen.python("-m", "pytest", "-m", "engines and not gpu and not release", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Run the conformance kit alone, for every model package of the tree."""
    environment(session, "test").python("-m", "pytest", "-m", "conformance", *session.posargs)


@nox.session(name="e2e-gpu", default=False)
def e2e_gpu(session: nox.Session) -> None:
    """Run the tests that need an accelerator (and fail where there is none, or no such test)."""
    if shutil.which("nvidia-smi") is None:
        session.error(
            "There is no accelerator here: nvidia-smi is not installed. So this was NOT RUN: the models in their full size "
            "(packages/*/tests/gpu), with real or with random weights, and with that their unit latency, time to first audio, "
            "real-time factor, sessions held and GPU memory. The other sessions need no accelerator."
        )
    if sys.version_info[:2] != ENGINES_PYTHON or sys.platform != "linux":
        session.error("torch and vLLM are pinned for Python 3.11 on Linux, x86-64: run nox with that one.")
    environment(session, GPU).python("-m", "pytest", "-m", "gpu", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, docstrings and formatting with ruff, and that changelog fragments are well named."""
    check = environment(session, "check")
    check.tool("ruff", "check", *(session.posargs or ["."]))
    check.tool("ruff", "format", "--check", "--diff", *(session.posargs or ["."]))
    for name in PACKAGES:
        check.tool("towncrier", "build", "--draft", "--version", "next", "--dir", f"packages/{name}", silent=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly: packages and scripts first, then the tests of each package."""
    check = environment(session, "check")
    candidates = [*(f"packages/{name}/src" for name in PACKAGES), "tests", "demo", "benchmarks"]
    folders = [name for name in candidates if any(ROOT.glob(f"{name}/**/*.py"))]
    check.tool("mypy", *folders, "noxfile.py", "conftest.py", *session.posargs)
    for name in PACKAGES:
        folder = f"packages/{name}/tests"
        if any(ROOT.glob(f"{folder}/**/*.py")):
            check.env["MYPYPATH"] = folder  # else two test modules of one name would be one module
            check.tool("mypy", folder, *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Check with import-linter which package may import which."""
    environment(session, "check").tool("lint-imports", "--no-logo", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/; a warning is an error."""
    check = environment(session, "check")
    check.env["NO_MKDOCS_2_WARNING"] = "1"  # a notice about mkdocs itself, not about these pages
    check.tool("mkdocs", "build", "--strict", "--quiet", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build every package into dist/, install the wheels into fresh environments and use them there."""
    check = environment(session, "check")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    check.env["DUPLEX_WHEELS"] = str(ROOT / "dist")
    check.python("-m", "pytest", "-m", "packaging or release", "tests/packaging", *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Pin the requirements again (`-- --upgrade` for newer versions, `-- --upgrade-package NAME` for one)."""
    installer = environment(session, "installer")
    own = [part for name in PACKAGES for part in ("--no-emit-package", name)]
    for layer in LAYERS:
        first = layer == LAYERS[0]
        installer.python(
            *("-m", "uv", "pip", "compile", "--quiet", f"requirements/{layer}.in"),
            *("--output-file", f"requirements/{layer}.txt", "--universal", "--python-version", "3.11"),
            *("--generate-hashes", "--no-annotate"),
            *("--custom-compile-command", "nox -s lock"),
            *([] if first else ["--constraint", f"requirements/{LAYERS[0]}.txt"]),
            *(session.posargs if first else []),
            *own,
        )
    for layer in (ENGINES, GPU):
        shutil.copy(f"requirements/{LAYERS[0]}.txt", f"requirements/{layer}.txt")  # what uv prefers, where it can
        left_out = ROOT / "requirements" / f"{layer}-left-out.txt"
        if layer == ENGINES:
            installer.look_where_pip_does()
        else:
            installer.env.pop("UV_FIND_LINKS", None)
        installer.python(
            *("-m", "uv", "pip", "compile", "--quiet", f"requirements/{layer}.in"),
            *("--output-file", f"requirements/{layer}.txt", "--python-version", "3.11"),
            *("--python-platform", "x86_64-manylinux_2_36", "--generate-hashes", "--no-annotate"),
            *("--custom-compile-command", "nox -s lock"),
            *(["--override", str(left_out.relative_to(ROOT))] if left_out.exists() else []),
            *own,
        )
