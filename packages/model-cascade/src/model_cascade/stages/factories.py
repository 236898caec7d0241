"""From a part named in the deploy settings to the part itself.

Called when the stages are planned, to see that the part can be there, and on the stage's thread, to make it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import Any

from model_cascade.parts.errors import PartError


def check(setting: str, name: str) -> None:
    """See whether the part's module is installed, without importing anything of it.

    Args:
        setting: where the part is named, for the message.
        name: one of this package's own parts, or an import path ``module:callable``.

    Raises:
        ValueError: there is no such module; says what to do.
    """
    module, colon, _ = name.partition(":")
    missing = _missing(module) if colon else None
    if missing is not None:
        raise ValueError(
            f"{setting} names {name}, and there is no module {missing}; install it, or put its folder on PYTHONPATH"
        )


def _missing(module: str) -> str | None:
    """The first part of a dotted name that is not there; found without importing the packages around it."""
    top, *inner = module.split(".")
    path, spec = top, importlib.util.find_spec(top)
    for part in inner:
        if spec is None:
            break
        path = f"{path}.{part}"
        places = spec.submodule_search_locations
        spec = PathFinder.find_spec(path, places) if places is not None else None
    return path if spec is None else None


def resolve(name: str, known: Mapping[str, Callable[[], Any]]) -> Any:
    """Make the part: one that is known by name, or what the factory at the import path ``module:callable`` returns.

    Raises:
        PartError: the import path leads nowhere.
    """
    if name in known:
        return known[name]()
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as exc:
        raise PartError(f"{name!r} cannot be imported: {exc}") from exc
    return factory()
