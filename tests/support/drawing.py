"""Makes what hypothesis draws depend on the test alone, and not on which modules happen to be loaded beside it.

Owns one setting of hypothesis that has no other place. Called once, by the ``conftest.py`` of the tree. Hypothesis mixes
numbers and texts that stand in the loaded modules of a project into what it draws, so a test with ``derandomize=True`` draws
one thing when it runs alone, and another after tests of other packages, which have loaded more: what one run finds, the next
does not.
"""

from __future__ import annotations

import importlib.util


def leave_other_modules_out() -> None:
    """Draw no constants from the project's modules. Without hypothesis, or with one that has no such thing, nothing is done."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis.internal.conjecture import providers

    constants = getattr(providers, "Constants", None)
    if constants is not None and hasattr(providers.HypothesisProvider, "_local_constants"):
        setattr(providers.HypothesisProvider, "_local_constants", constants())  # noqa: B010 - it is a property there
