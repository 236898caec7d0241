"""Native: the smallest model that listens all the time and takes its turns itself. What it decides goes by loudness alone.

Owns nothing that another package needs; read it as the example of ``TurnPolicy.MODEL``, file by file: ``plugin`` (what is
registered), ``session`` (one conversation), ``unit``, ``decision`` and ``silence`` (its rules, pure), ``stage`` (its work). Used
by the tests of the engine and by the conformance kit's own, and served by ``duplex-server serve native``.
"""

from duplex_core.testing.native.plugin import NATIVE

__all__ = ["NATIVE"]
