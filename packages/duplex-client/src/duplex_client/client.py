"""The two clients: over a socket, and to an engine in the same process. They differ in how they connect, in nothing else."""

from __future__ import annotations

import random
from typing import Self

from duplex_client.backoff import ReconnectPolicy
from duplex_client.base import BaseDuplexClient
from duplex_client.changes import ResumePoint
from duplex_client.engine import Engine, ResumableEngine
from duplex_client.lifetime import ACK_EVERY, HEARTBEAT_S
from duplex_client.link import Redial
from duplex_client.timing import Clock
from duplex_client.transport import DEFAULT_URL, EngineTransport, SocketTransport, Transport, realtime_url

RECONNECT = ReconnectPolicy()


class DuplexClient(BaseDuplexClient):
    """Talks to a server over a WebSocket, and connects again by itself when that is lost.

    The server keeps the session for a while, and the client takes it up where it was: no event is lost or comes twice. What
    cannot pass by waiting ends the session: a wrong key, a session that is gone or was taken over, a normal close.
    :meth:`on_connection` tells of each loss and its end.

    Args:
        url: Where it is: ``ws://host:8000`` (the path ``/v1/realtime`` is added), or a whole address.
        api_key: Sent as a bearer token.
        model: Which model to ask for; a server that serves one needs none.
        reconnect: How a lost connection is made again; ``None`` lets every loss end the session. The first connection
            is never tried twice.
        clock: See :class:`~duplex_client.lifetime.ClientLifetime`, as for the rest.
        open_timeout_s: How long connecting may take.
        heartbeat_s: Seconds between heartbeats, or ``None``.
        ack_every: Events between acknowledgements of them, or ``None``.

    Raises:
        ValueError: ``url`` is no server address, or an interval is not above zero.

    Example:
        ```python
        async with DuplexClient("ws://127.0.0.1:8000") as client:
            await client.stream_pcm(question, 24000)
            await client.commit()
            async for answer in client.responses():
                async for pcm in answer.audio():
                    speaker.write(pcm)
                break
        ```
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        model: str | None = None,
        *,
        reconnect: ReconnectPolicy | None = RECONNECT,
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
        heartbeat_s: float | None = HEARTBEAT_S,
        ack_every: int | None = ACK_EVERY,
    ) -> None:
        super().__init__(clock=clock, open_timeout_s=open_timeout_s, heartbeat_s=heartbeat_s, ack_every=ack_every)
        self.url = realtime_url(url, model)
        self._api_key = api_key
        self._policy = reconnect

    @classmethod
    def resume(
        cls,
        url: str,
        session_id: str,
        token: str,
        last_seq: int = 0,
        *,
        api_key: str | None = None,
        reconnect: ReconnectPolicy | None = RECONNECT,
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
        heartbeat_s: float | None = HEARTBEAT_S,
        ack_every: int | None = ACK_EVERY,
    ) -> Self:
        """A client that takes a session over when it connects, from another client or from an earlier process.

        Whoever held it is told that it was replaced. Events after ``last_seq`` are told again, as far as the server
        still has them (``ResyncRequired`` says when it has not); answers that began before have no handle here.

        Args:
            url: The server that has the session.
            session_id: The session's id.
            token: The ``resume_token`` that the server gave last; ``detach`` and ``resume_point`` have it.
            last_seq: The ``server_event_seq`` of the last event that is known here already.
            api_key: As for a session of one's own, and the other arguments likewise.
            reconnect: See the class.
            clock: See the class.
            open_timeout_s: See the class.
            heartbeat_s: See the class.
            ack_every: See the class.
        """
        client = cls(
            url,
            api_key,
            reconnect=reconnect,
            clock=clock,
            open_timeout_s=open_timeout_s,
            heartbeat_s=heartbeat_s,
            ack_every=ack_every,
        )
        client._origin = ResumePoint(session_id=session_id, resume_token=token, last_server_event_seq=last_seq)
        return client

    async def _open(self, resume: ResumePoint | None) -> Transport:
        return await SocketTransport.open(
            self.url, api_key=self._api_key, open_timeout_s=self._open_timeout_s, resume=resume
        )

    def _redial(self) -> Redial | None:
        if self._policy is None:
            return None
        rng = random.random
        return Redial(dial=self._open, policy=self._policy, rng=rng, attempt_timeout_s=self._open_timeout_s)


class InlineDuplexClient(BaseDuplexClient):
    """Talks to an engine in the same process, with no socket and no JSON between, and so with nothing to lose.

    Args:
        engine: What opens the session, for example ``duplex_server``'s ``DuplexOmni``; it stays the caller's to close.
        clock: See :class:`~duplex_client.lifetime.ClientLifetime`, as for the rest.
        open_timeout_s: How long opening may take.
        heartbeat_s: Seconds between heartbeats, or ``None``.
        ack_every: Events between acknowledgements of them, or ``None``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
        heartbeat_s: float | None = HEARTBEAT_S,
        ack_every: int | None = ACK_EVERY,
    ) -> None:
        super().__init__(clock=clock, open_timeout_s=open_timeout_s, heartbeat_s=heartbeat_s, ack_every=ack_every)
        self._engine = engine
        self._giver: ResumableEngine | None = None

    @classmethod
    def resume(
        cls,
        engine: ResumableEngine,
        session_id: str,
        token: str,
        last_seq: int = 0,
        *,
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
        heartbeat_s: float | None = HEARTBEAT_S,
        ack_every: int | None = ACK_EVERY,
    ) -> Self:
        """A client that takes a session of ``engine`` over when it connects; see :meth:`DuplexClient.resume`.

        Args:
            engine: The engine that has the session.
            session_id: The session's id.
            token: The ``resume_token`` that was given last.
            last_seq: The ``server_event_seq`` of the last event that is known here already.
            clock: See the class.
            open_timeout_s: See the class.
            heartbeat_s: See the class.
            ack_every: See the class.
        """
        client = cls(engine, clock=clock, open_timeout_s=open_timeout_s, heartbeat_s=heartbeat_s, ack_every=ack_every)
        client._giver = engine
        client._origin = ResumePoint(session_id=session_id, resume_token=token, last_server_event_seq=last_seq)
        return client

    async def _open(self, resume: ResumePoint | None) -> Transport:
        if resume is None or self._giver is None:
            return await EngineTransport.open(self._engine)
        return await EngineTransport.resume(self._giver, resume)
