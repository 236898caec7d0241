"""Talks to a full-duplex speech model, over a socket or to an engine in the same process.

Owns: the client classes, their handles for answers and played audio, and the `duplex-client` command.
Called by: application code, the demo and the end-to-end tests.
Never: imports the server or a model package; an engine in the same process is handed in by the caller.
"""

from duplex_client.backoff import ReconnectPolicy
from duplex_client.base import BaseDuplexClient
from duplex_client.changes import ConnectionChange, Reconnecting, Resumed, ResumePoint, ResyncRequired
from duplex_client.client import DuplexClient, InlineDuplexClient
from duplex_client.engine import Engine, ResumableEngine, SessionHandle
from duplex_client.errors import (
    CommandRefused,
    ConnectFailed,
    ConnectionClosed,
    ConsumerLagged,
    DuplexClientError,
    EventsLost,
    NotConnected,
    ProtocolError,
    ReconnectFailed,
    ServerRefused,
    SessionExpired,
    SessionReplaced,
    WaitTimeout,
)
from duplex_client.pacing import SentChunk
from duplex_client.playback import PlaybackClock
from duplex_client.player import HeardAnswer, Player, Sink
from duplex_client.responses import ResponseHandle

__version__ = "0.1.0"

__all__ = [
    "BaseDuplexClient",
    "CommandRefused",
    "ConnectFailed",
    "ConnectionChange",
    "ConnectionClosed",
    "ConsumerLagged",
    "DuplexClient",
    "DuplexClientError",
    "Engine",
    "EventsLost",
    "HeardAnswer",
    "InlineDuplexClient",
    "NotConnected",
    "PlaybackClock",
    "Player",
    "ProtocolError",
    "ReconnectFailed",
    "ReconnectPolicy",
    "Reconnecting",
    "ResponseHandle",
    "ResumableEngine",
    "ResumePoint",
    "Resumed",
    "ResyncRequired",
    "SentChunk",
    "ServerRefused",
    "SessionExpired",
    "SessionHandle",
    "SessionReplaced",
    "Sink",
    "WaitTimeout",
]
