"""Weights out of installed packages into onnxruntime: found without importing anything, checked, loaded on one thread.

Owns the check of a weight file's SHA-256 and the settings that every network of the server runs with. Called by the detectors
when they are made, on a worker thread. Must never import the package that carries a weight file, or fetch one.
"""

import dataclasses
import hashlib
import importlib.util
from pathlib import Path
from typing import Any


class DetectorUnavailable(RuntimeError):
    """A detector cannot be loaded. The message says what is missing or broken and what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A weight file that is known by its content.

    Attributes:
        name: What it is, for people: ``voice activity network``.
        distribution: The package that carries it, as it is installed.
        package: That package's import name.
        path: The file's place in it, with forward slashes.
        sha256: The SHA-256 that it must have, in hexadecimal.
        mend: What to do about a missing or other file, as a sentence.
    """

    name: str
    distribution: str
    package: str
    path: str
    sha256: str
    mend: str


def read_weights(network: Network, path: Path | None = None) -> bytes:
    """Read a network's weights and make sure that they are the known ones.

    Args:
        network: Which.
        path: The file, when it is not the one inside the package.

    Raises:
        DetectorUnavailable: The package or the file is missing, or the file is another.
    """
    path = path or _inside(network)
    try:
        weights = path.read_bytes()
    except OSError as error:
        raise DetectorUnavailable(
            f"The weights of the {network.name} cannot be read ({error}). {network.mend}"
        ) from error
    found = hashlib.sha256(weights).hexdigest()
    if found != network.sha256:
        raise DetectorUnavailable(
            f"{path} is not the {network.name} that this server was checked with: "
            f"its SHA-256 is {found}, not {network.sha256}. {network.mend}"
        )
    return weights


def load(network: Network, weights: bytes) -> Any:
    """An onnxruntime session on one thread that sleeps when it has nothing to do.

    Raises:
        DetectorUnavailable: onnxruntime cannot be imported.
    """
    try:
        import onnxruntime  # noqa: PLC0415 - 0.2 s that only a server with such a detector shall pay
    except ImportError as error:
        raise DetectorUnavailable(
            f"The {network.name} needs onnxruntime, which cannot be imported ({error}). Install it."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # Batches differ in size from call to call: a plan of memory for each size would only pile up.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])


def _inside(network: Network) -> Path:
    """Where the package has the file. It is a top-level package: to look for it runs none of its code."""
    spec = importlib.util.find_spec(network.package)
    if spec is None or not spec.submodule_search_locations:
        raise DetectorUnavailable(
            f"The weights of the {network.name} are missing, because the package {network.distribution} is not "
            f"installed. {network.mend}"
        )
    return Path(spec.submodule_search_locations[0]) / network.path
