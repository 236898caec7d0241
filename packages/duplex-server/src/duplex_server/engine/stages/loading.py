"""From an import path to what it names, and a stage's factory called, with the faults told in a sentence.

Called by the runtimes, where a stage's worker is to live, and by whoever needs the type of its payloads. Must never be asked for
a factory on the event loop of the server: factories load weights.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from duplex_core.stages import StageSpec

_LACKING: Final = re.compile(r"(lib[^/\s:]+)\.so\.(\d+)[^/\s:]*: cannot open shared object file")
"""What the dynamic loader says of a library that is not on the system."""


class StageLoadError(RuntimeError):
    """A stage could not be started; the message says why, and whoever started it which."""


def resolve(what: str, path: str) -> Any:
    """What an import path ``package.module:name`` names; ``what`` is what it is called in the error.

    Raises:
        StageLoadError: the path is malformed or names nothing.
    """
    module, colon, attribute = path.partition(":")
    if not colon:
        raise StageLoadError(f"its {what} {path!r} must look like 'package.module:name'")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise StageLoadError(f"its {what} {path} cannot be imported: {exc}{_remedy(exc)}") from exc


def make(spec: StageSpec, wanted: type) -> Any:
    """What the stage's factory returns when it is called with the stage's options.

    Args:
        spec: the stage.
        wanted: the protocol of what its runtime drives.

    Raises:
        StageLoadError: the import path is malformed or names nothing, or what was made lacks something of ``wanted``. What the
            factory raises passes.
    """
    made = resolve("factory", spec.factory)(**spec.options)
    names = [*getattr(wanted, "__annotations__", ()), *vars(wanted)]
    missing = [name for name in names if not name.startswith("_") and not hasattr(made, name)]
    if missing:
        raise StageLoadError(
            f"its factory {spec.factory} made a {type(made).__name__}, which is no {wanted.__name__}: it has no "
            f"{', '.join(missing)}"
        )
    return made


def describe(failure: BaseException) -> str:
    """An exception in one line."""
    kind = type(failure).__name__
    return f"{kind}: {failure}{_remedy(failure)}" if str(failure) else kind


def _remedy(failure: BaseException) -> str:
    """What to install where the dynamic loader found no library of the system's: the package that Debian's rules name it."""
    found = _LACKING.search(str(failure)) if isinstance(failure, (ImportError, OSError)) else None
    if found is None:
        return ""
    name, version = found.groups()
    package = f"{name.lower().replace('_', '-')}{'-' if name[-1].isdigit() else ''}{version}"
    return f"; install this library of the system's (on Debian and Ubuntu most likely: apt-get install {package})"
