"""The two clients: over a socket, and to an engine in the same process. They differ in how they connect, in nothing else."""

from __future__ import annotations

from duplex_client.base import BaseDuplexClient
from duplex_client.engine import Engine
from duplex_client.timing import Clock
from duplex_client.transport import DEFAULT_URL, EngineTransport, SocketTransport, Transport, realtime_url


class DuplexClient(BaseDuplexClient):
    """Talks to a server over a WebSocket.

    Args:
        url: Where it is: ``ws://host:8000`` (the path ``/v1/realtime`` is added), or a whole address.
        api_key: Sent as a bearer token.
        model: Which model to ask for; a server that serves one needs none.
        clock: See :class:`~duplex_client.core.ClientCore`.
        open_timeout_s: How long connecting may take.

    Raises:
        ValueError: ``url`` is no server address.

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
        clock: Clock | None = None,
        open_timeout_s: float = 20.0,
    ) -> None:
        super().__init__(clock=clock, open_timeout_s=open_timeout_s)
        self.url = realtime_url(url, model)
        self._api_key = api_key

    async def _open(self) -> Transport:
        return await SocketTransport.open(self.url, api_key=self._api_key, open_timeout_s=self._open_timeout_s)


class InlineDuplexClient(BaseDuplexClient):
    """Talks to an engine in the same process, with no socket and no JSON between.

    Args:
        engine: What opens the session, for example ``duplex_server``'s ``DuplexOmni``; it stays the caller's to close.
        clock: See :class:`~duplex_client.core.ClientCore`.
        open_timeout_s: How long opening may take.
    """

    def __init__(self, engine: Engine, *, clock: Clock | None = None, open_timeout_s: float = 20.0) -> None:
        super().__init__(clock=clock, open_timeout_s=open_timeout_s)
        self._engine = engine

    async def _open(self) -> Transport:
        return await EngineTransport.open(self._engine)
