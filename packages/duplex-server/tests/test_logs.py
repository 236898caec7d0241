"""The form of the log: the session's id is on each line of its task, and nothing is lost in JSON."""

from __future__ import annotations

import contextvars
import datetime
import io
import json
import logging
from collections.abc import Iterator

import pytest

from duplex_server.logs import SESSION, LogFormat, set_format


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    """What the root logger writes, while its own handlers are set aside."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [logging.StreamHandler(written := io.StringIO())]
    try:
        yield written
    finally:
        root.handlers = before


def in_session(session_id: str, message: str, **kinds: object) -> None:
    def task() -> None:
        SESSION.set(session_id)
        logging.getLogger("duplex_server.test").warning(message, **kinds)  # type: ignore[arg-type]

    contextvars.copy_context().run(task)


def test_json_lines_name_the_session_and_the_fault(screen: io.StringIO) -> None:
    set_format(LogFormat.JSON)
    try:
        raise ValueError("no good")
    except ValueError:
        in_session("sess_1", 'it said "no" 100 %', exc_info=True)
    logging.getLogger("duplex_server.test").warning("nobody's")
    first, second = (json.loads(line) for line in screen.getvalue().splitlines())
    assert first["session_id"] == "sess_1"
    assert first["message"] == 'it said "no" 100 %'
    assert first["level"] == "WARNING"
    assert first["logger"] == "duplex_server.test"
    assert "ValueError: no good" in first["exc_info"]
    assert second["session_id"] == ""
    assert datetime.datetime.fromisoformat(first["time"]).tzinfo is not None


def test_a_json_line_has_no_message_for_terminals(screen: io.StringIO) -> None:
    """Of which uvicorn gives one beside its own."""
    set_format(LogFormat.JSON)
    logging.getLogger("uvicorn.error").warning("up", extra={"color_message": "\x1b[36mup"})
    assert json.loads(screen.getvalue()).keys() == {"time", "level", "logger", "message", "session_id"}


def test_text_stays_as_it_was(screen: io.StringIO) -> None:
    set_format(LogFormat.TEXT)
    in_session("sess_1", "as ever")
    assert screen.getvalue() == "as ever\n"
