"""Echo: the smallest real model package. It says back what it heard, in the user's own voice.

Owns nothing that another package needs; read it as the example of the seam, file by file: ``plugin`` (what is
registered), ``session`` (one conversation), ``reply``, ``silence`` and ``tools`` (its rules, pure), ``stage`` (its work). Used by
the tests of the engine and by the conformance kit's own, and served by ``duplex-server serve echo``.
"""

from duplex_core.testing.echo.plugin import ECHO

__all__ = ["ECHO"]
