"""What is done with a command that is given while there is no connection. Pure.

Owns the rule, the count of dropped audio and the acknowledgements that are worth sending late. Used by
:class:`~duplex_client.link.Link`, one for each outage. It keeps no more than one figure for each answer.
"""

from __future__ import annotations

import msgspec

from duplex_core.audio import TELEPHONE_RATE_HZ, AudioEncoding
from duplex_core.commands import Command, InputAudioBufferAppend, PlaybackAck, SessionEventAck, SessionHeartbeat
from duplex_core.patch import WireFormat


class Outage:
    """One time without a connection, from the first command given in it."""

    def __init__(self) -> None:
        self.dropped_audio_ms = 0.0
        self._acks: dict[str | None, PlaybackAck] = {}

    def absorb(self, command: Command, input_format: WireFormat) -> bool:
        """Take ``command`` so that nobody needs to wait; ``False`` when it must be sent once that is possible again.

        Audio that cannot be heard now is not worth hearing later. What is played goes on being played, and the last
        figure says it all.
        """
        match command:
            case InputAudioBufferAppend():
                self.dropped_audio_ms += append_ms(command, input_format)
            case SessionHeartbeat() | SessionEventAck():
                pass
            case PlaybackAck():
                earlier = self._acks.pop(command.response_id, None)
                if earlier is not None and earlier.truncate:
                    command = msgspec.structs.replace(command, truncate=True)
                self._acks[command.response_id] = command
            case _:
                return False
        return True

    def next_ack(self) -> PlaybackAck | None:
        """Take the oldest acknowledgement that is kept."""
        key = next(iter(self._acks), None)
        return self._acks.pop(key) if self._acks else None


def append_ms(command: InputAudioBufferAppend, input_format: WireFormat) -> float:
    """How long the audio of an append lasts, in ms; its own format counts, else the session's.

    A format that the wire does not have, which the server would refuse, counts as the session's.
    """
    encoding, rate_hz = input_format.type, input_format.rate
    match command.format:
        case WireFormat():
            encoding, rate_hz = command.format.type, command.format.rate
        case str() if command.format in {each.value for each in AudioEncoding}:
            encoding = AudioEncoding(command.format)
        case _:
            pass
    rate_hz = command.sample_rate_hz or rate_hz or TELEPHONE_RATE_HZ
    return len(command.audio) * 1000.0 / (rate_hz * encoding.bytes_per_sample)
