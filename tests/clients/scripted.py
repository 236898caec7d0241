"""A server of the wire contract whose every move a test writes down.

Owns: a real WebSocket server on loopback that speaks through the real codec, and short makers of the events that a
conversation is made of. Called by: the tests of duplex-client. Never: behaves by itself; what it sends, the test's script sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from websockets.asyncio.server import ServerConnection, serve

from duplex_core.audio import AudioEncoding, pcm16_ms
from duplex_core.capabilities import Capabilities
from duplex_core.commands import Command, SessionClose, SessionResume
from duplex_core.config import Modality, SessionConfig
from duplex_core.errors import ErrorCode, error
from duplex_core.events import (
    AudioMetadata,
    CloseReason,
    ErrorEvent,
    Event,
    OutputAudioDelta,
    OutputItemAdded,
    OutputTranscriptDelta,
    ResponseAudioOutputView,
    ResponseAudioView,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    ResponseView,
    SessionClosed,
    SessionCreated,
    SessionResumed,
    SessionView,
    session_view,
)
from duplex_core.items import MessageItem, Role
from duplex_core.ledger import PlaybackLedger
from duplex_core.patch import WireFormat
from duplex_core.wire import decode_command, encode_event

SESSION_ID = "sess_0123456789"
RATE_HZ = 24_000
CAPABILITIES = Capabilities(input_transcription=True, tools=True)

C = TypeVar("C")


def view(config: SessionConfig | None = None, *, token: str | None = None, generation: int = 1) -> SessionView:
    config = config or SessionConfig(model="scripted")
    shown = session_view(SESSION_ID, config, CAPABILITIES, epoch=0, attachment_generation=generation)
    return msgspec.structs.replace(shown, resume_token=token)


def created(config: SessionConfig | None = None, *, token: str | None = None) -> SessionCreated:
    return SessionCreated(session=view(config, token=token))


def resumed(token: str | None, *, replayed: int = 0) -> SessionResumed:
    return SessionResumed(session=view(token=token, generation=2), replayed_events=replayed)


def closed(reason: CloseReason = CloseReason.CLIENT, code: ErrorCode | None = None) -> SessionClosed:
    info = error(code, f"it is {code.value}") if code is not None else None
    return SessionClosed(session_id=SESSION_ID, reason=reason, error=info)


def refusal(code: ErrorCode, message: str, event_id: str | None = None) -> ErrorEvent:
    return ErrorEvent(error=error(code, message, event_id=event_id))


def response(
    response_id: str = "resp_1",
    status: ResponseStatus = ResponseStatus.IN_PROGRESS,
    metadata: dict[str, str] | None = None,
) -> ResponseView:
    form = WireFormat(type=AudioEncoding.PCM16, rate=RATE_HZ)
    return ResponseView(
        id=response_id,
        status=status,
        output=[],
        output_modalities=[Modality.AUDIO],
        audio=ResponseAudioView(output=ResponseAudioOutputView(format=form, voice=None)),
        conversation_id="conv_1",
        max_output_tokens="inf",
        metadata=metadata,
    )


def begin(response_id: str = "resp_1", metadata: dict[str, str] | None = None) -> tuple[Event, ...]:
    item = MessageItem(role=Role.ASSISTANT, content=(), id=f"item_{response_id}")
    return (
        ResponseCreated(response=response(response_id, metadata=metadata)),
        OutputItemAdded(response_id=response_id, output_index=0, item=item),
    )


def audio(pcm: bytes, response_id: str = "resp_1") -> OutputAudioDelta:
    ms = pcm16_ms(len(pcm), RATE_HZ)
    return OutputAudioDelta(
        response_id=response_id,
        item_id=f"item_{response_id}",
        output_index=0,
        content_index=0,
        delta=pcm,
        format="audio/pcm",
        sample_rate_hz=RATE_HZ,
        metadata=AudioMetadata(epoch=0, audio_duration_ms=ms, audio_text_marks=[], playback=PlaybackLedger()),
    )


def words(text: str, response_id: str = "resp_1") -> OutputTranscriptDelta:
    return OutputTranscriptDelta(
        response_id=response_id, item_id=f"item_{response_id}", output_index=0, content_index=0, delta=text
    )


def done(response_id: str = "resp_1", status: ResponseStatus = ResponseStatus.COMPLETED) -> ResponseDone:
    return ResponseDone(response=response(response_id, status))


def tone(ms: float, value: int = 1000) -> bytes:
    """``ms`` of PCM that is ``value`` throughout, so that any stretch of it can be recognised."""
    return value.to_bytes(2, "little", signed=True) * round(ms * RATE_HZ / 1000)


class Numbering:
    """Counts the events of one session, over all of its connections."""

    def __init__(self) -> None:
        self.last = 0


class Peer:
    """The server's side of one connection."""

    def __init__(self, socket: ServerConnection, numbering: Numbering | None = None) -> None:
        self.socket = socket
        self.seen: list[Command] = []
        self.numbering = numbering or Numbering()

    async def send(self, *events: Event) -> None:
        """Tell what is next in the session's sequence."""
        for event in events:
            self.numbering.last += 1
            await self.again(event, self.numbering.last)

    async def again(self, event: Event, seq: int) -> None:
        """Tell something with a number of its own: once more, or about this connection alone."""
        await self.socket.send(encode_event(event, event_id=f"event_{seq}", seq=seq))

    async def receive(self) -> Command:
        command = decode_command(await self.socket.recv())
        self.seen.append(command)
        return command

    async def expect(self, kind: type[C]) -> C:
        """The next command, which must be of this kind."""
        command = await self.receive()
        assert isinstance(command, kind), f"expected {kind.__name__}, got {command}"
        return command

    async def until(self, kind: type[C]) -> C:
        """The next command of this kind; others before it are left in ``seen``."""
        while not isinstance(command := await self.receive(), kind):
            pass
        return command

    async def give(self, token: str, *, replayed: int = 0, new_token: str | None = None) -> SessionResume:
        """Take ``session.resume``, which must show ``token``, and let the client have the session."""
        asked = await self.expect(SessionResume)
        assert (asked.session_id, asked.resume_token) == (SESSION_ID, token)
        await self.again(resumed(new_token or token, replayed=replayed), asked.last_server_event_seq)
        return asked

    async def drop(self) -> None:
        """Break the connection without a word, once everything that was sent is out."""
        self.socket.transport.abort()
        await self.socket.wait_closed()

    async def hang_up(self) -> None:
        """Take what comes until the client closes, and say the last word."""
        await self.until(SessionClose)
        await self.send(closed())


Script = Callable[[Peer], Awaitable[None]]


class ScriptedServer:
    """Runs one script for each connection, in order; what a script raises, :func:`scripted` raises."""

    def __init__(self, *scripts: Script) -> None:
        self._waiting = list(scripts)
        self._left = len(scripts)
        self._numbering = Numbering()
        self.paths: list[str] = []
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.url = ""

    async def handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.paths.append(socket.request.path)
        try:
            assert self._waiting, "a connection that no script is for"
            await self._waiting.pop(0)(Peer(socket, self._numbering))
        except BaseException as exc:
            if not self.result.done():
                self.result.set_exception(exc)
            raise
        self._left -= 1
        if not self._left and not self.result.done():
            self.result.set_result(None)


@asynccontextmanager
async def scripted(
    script: Script, *later: Script, greet: bool = True, token: str | None = None
) -> AsyncIterator[ScriptedServer]:
    """Serve ``script`` on a free port, and each of ``later`` to one more connection.

    With ``greet`` the first begins after ``session.created``, which gives ``token``. On leaving, every script must have
    run to its end without an error.
    """

    async def whole(peer: Peer) -> None:
        if greet:
            await peer.send(created(token=token))
        await script(peer)

    server = ScriptedServer(whole, *later)
    async with serve(server.handle, "127.0.0.1", 0) as sockets:
        port = next(iter(sockets.sockets)).getsockname()[1]
        server.url = f"ws://127.0.0.1:{port}"
        try:
            yield server
        except BaseException as exc:
            if server.result.done() and (cause := server.result.exception()) is not None:
                raise cause from exc  # what the client saw follows from it
            raise
        await asyncio.wait_for(server.result, 10)
