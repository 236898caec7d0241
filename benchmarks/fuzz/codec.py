"""What must be true of the codec for every frame: it is read and can be written again, or it is refused with a reason.

Used by the long run and by the tests.
"""

from __future__ import annotations

import msgspec

from duplex_core.commands import Command
from duplex_core.events import ErrorEvent, Event
from duplex_core.wire import WireError, decode_command, decode_event, encode_command, encode_event

LONGEST_REASON = 2000
"""A refusal quotes a client, and never at length."""


class Broken(AssertionError):
    """The codec did something else; ``frame`` is what it did it to."""

    def __init__(self, frame: str | bytes, what: str) -> None:
        """Tell of ``frame``."""
        super().__init__(f"{what}: {frame[:2000]!r}")
        self.frame = frame


def check(frame: str | bytes) -> bool:
    """Give the codec a frame, as the server would and as the client would; whether the server took it.

    Raises:
        Broken: an exception that is no refusal, a refusal that says nothing or too much, or what was read does not survive.
    """
    command: Command | None = None
    try:
        command = decode_command(frame)
    except WireError as refused:
        _refusal(frame, refused)
    except BaseException as exc:
        raise Broken(frame, f"decode_command raised {exc!r}") from exc
    if command is not None and decode_command(encode_command(command)) != command:
        raise Broken(frame, "the command does not survive the wire")
    event: Event | None = None
    try:
        event = decode_event(frame)
    except WireError as refused:
        _refusal(frame, refused)
    except BaseException as exc:
        raise Broken(frame, f"decode_event raised {exc!r}") from exc
    if event is not None:
        again = encode_event(event, event_id=event.event_id, seq=event.server_event_seq)
        if decode_event(again) != event:
            raise Broken(frame, "the event does not survive the wire")
    return command is not None


def _refusal(frame: str | bytes, refused: WireError) -> None:
    info = refused.info
    if not 0 < len(info.message) < LONGEST_REASON:
        raise Broken(frame, f"the refusal says {len(info.message)} characters")
    told = msgspec.json.decode(encode_event(ErrorEvent(error=info), event_id="e", seq=1))
    if told["error"]["message"] != info.message:
        raise Broken(frame, "the refusal cannot be told")
