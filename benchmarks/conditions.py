"""Under which a run of a benchmark was made, and how its results are kept as text.

Owns what every report says of the machine. Used by the reports of all benchmarks that keep runs for the documentation. Must never
measure anything.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and what ran on it. Loads are averages over a minute, before the first row and after the last.

    A benchmark adds its own settings in a subclass. ``processor`` is empty where an old run did not write it down.
    """

    date: str
    cores: int
    system: str
    python: str
    libraries: dict[str, str]
    load_before: float
    load_after: float
    processor: str = ""


def now(libraries: Sequence[str], *, load_before: float) -> dict[str, Any]:
    """The fields of :class:`Conditions` for the run that ends now."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in libraries},
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
    }


def to_json(results: msgspec.Struct) -> str:
    """A run's results as text to keep."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1).decode() + "\n"


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    for entry in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = entry.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
