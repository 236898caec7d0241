"""From a part named in the deploy settings to the part itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from model_cascade.parts.errors import PartError


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
