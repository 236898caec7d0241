"""Echo passes the suite that every model package must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from duplex_core.testing.conformance import ModelConformance
from duplex_core.testing.echo import ECHO


class TestEcho(ModelConformance):
    spec = ECHO
    plugin = "duplex_core.testing.echo.plugin"
    bad_options: ClassVar[Mapping[str, Any]] = {"no_such_option": 1, "pace": 3, "chunk_ms": "short"}
    tool_request = 'please call lookup {"word": "gudgeon"}'
