"""The conformance suite: what every model package must pass. Needs pytest, and nothing of the server.

A package subclasses :class:`ModelConformance` in its tests and says which model it is about::

    from duplex_core.testing.conformance import ModelConformance


    class TestConformance(ModelConformance):
        spec = MY_MODEL
        plugin = "my_package.plugin"

Everything runs in virtual time through :class:`~duplex_core.testing.driver.ConversationDriver`, on the package's real stage
workers, with the marker ``conformance``. What else a package can say about itself stands in
:class:`~duplex_core.testing.suite.base.Subject`.
"""

from __future__ import annotations

import pytest

from duplex_core.testing.suite.interruption import Interruption
from duplex_core.testing.suite.native import Native
from duplex_core.testing.suite.sessions import Sessions
from duplex_core.testing.suite.turns import Turns


@pytest.mark.conformance
class ModelConformance(Turns, Native, Interruption, Sessions):
    """All of the suite, for one model package."""
