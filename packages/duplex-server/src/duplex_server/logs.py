"""The form of the process's log: for people, or one JSON object a line; either way with the session that a line is about.

Owns the form, and the variable that says which session the running task belongs to. The command line chooses the form; the
session runner sets the variable. What is logged is each module's own affair: never keys, tokens, or what anybody said.
"""

from __future__ import annotations

import contextvars
import enum
import logging
import time

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

SESSION: contextvars.ContextVar[str] = contextvars.ContextVar("duplex_session", default="")
"""Id of the session that the running task works for; empty for none."""


class LogFormat(enum.Enum):
    """How lines of the log look."""

    TEXT = "text"
    JSON = "json"


class _WithSession(logging.Filter):
    """Adds ``session_id`` to each record, for formatters to show."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.session_id = SESSION.get()
        return True


def set_format(form: LogFormat) -> None:
    """Give the root logger's handlers this form."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_WithSession())
        if form is LogFormat.JSON:
            handler.setFormatter(_json())


def _json() -> logging.Formatter:
    formatter = JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s %(session_id)s",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
        reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # the same message again, for terminals, of the HTTP server
    )
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    return formatter
