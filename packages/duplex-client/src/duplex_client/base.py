"""The conversation's verbs: speak, commit, cancel, ask, acknowledge. The same for every transport.

:class:`BaseDuplexClient` is what application code is written against; :mod:`duplex_client.client` holds the two that can
be made. Each verb is one command, sent with an ``event_id``. The verbs whose answer is certain wait for it and raise
:class:`~duplex_client.CommandRefused`; the others return once sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import aclosing

import msgspec

from duplex_client.core import ClientCore
from duplex_client.pacing import SentChunk, check_chunk_ms, paced_chunks
from duplex_client.responses import ResponseHandle
from duplex_core.audio import PCM_RATES_HZ, AudioEncoding
from duplex_core.commands import (
    ConversationItemCreate,
    ConversationItemDelete,
    ConversationItemRetrieve,
    ConversationItemTruncate,
    InputAudioBufferAppend,
    InputAudioBufferClear,
    InputAudioBufferCommit,
    OutputAudioBufferClear,
    PlaybackAck,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from duplex_core.events import (
    Event,
    InputCleared,
    ItemAdded,
    ItemDeleted,
    ItemRetrieved,
    ItemTruncated,
    ResponseCreated,
    SessionUpdated,
    SessionView,
)
from duplex_core.items import FunctionCallOutputItem, InputText, Item, MessageItem, Role
from duplex_core.patch import ResponseParams, SessionPatch, WireFormat

REQUEST_KEY = "client_event_id"
"""Metadata key by which :meth:`BaseDuplexClient.create_response` knows its own answer from one that the server began."""


class BaseDuplexClient(ClientCore):
    """Holds one conversation. Use it as an async context manager."""

    # -- speaking ------------------------------------------------------------------------------------------------------

    async def stream_pcm(
        self,
        pcm: bytes | AsyncIterable[bytes],
        rate_hz: int,
        *,
        paced: bool = True,
        chunk_ms: float = 20.0,
        on_chunk: Callable[[SentChunk], None] | None = None,
    ) -> None:
        """Send 16-bit little-endian mono PCM, in chunks of ``chunk_ms`` (20 to 100 is usual).

        Paced, each chunk goes when its last sample has been spoken, by the clock and without drift: what a microphone
        would do. Not paced, all goes at once; so does a live source, which keeps its own time. ``on_chunk`` is told of
        each chunk sent. While the connection is lost, chunks are dropped and the stream goes on in its own time.
        Cancelling sends nothing more and leaves the session as it is.

        Args:
            pcm: All of it, or an async source of pieces of any size.
            rate_hz: 8000, 16000, 24000 or 48000; need not be the session's.
            paced: Whether to keep real time.
            chunk_ms: Length of a chunk, 5 to 1000 ms.
            on_chunk: Called after each chunk was sent.

        Raises:
            ConnectionClosed: the session ended.
            ValueError: a rate that the wire does not have, a bad chunk length, or an odd number of bytes.
        """
        if rate_hz not in PCM_RATES_HZ:
            rates = ", ".join(map(str, PCM_RATES_HZ))
            raise ValueError(f"rate_hz is {rate_hz}; use one of {rates}, or resample first (duplex_client.audio)")
        check_chunk_ms(chunk_ms)
        source = paced_chunks(pcm, rate_hz=rate_hz, chunk_ms=chunk_ms, clock=self.clock, paced=paced)
        async with aclosing(source) as chunks:
            async for chunk in chunks:
                sent = await self.append_audio(chunk.pcm, rate_hz=rate_hz)
                if on_chunk is not None and sent:
                    on_chunk(chunk)

    async def append_audio(self, audio: bytes, *, rate_hz: int | None = None) -> str:
        """Send audio as it is: in the session's input format, or 16-bit PCM at ``rate_hz`` when that is given.

        Returns:
            The command's id; an empty one when the audio was dropped, since the connection is lost.
        """
        form: WireFormat | None = None
        session_format = self.session.audio.input.format
        if rate_hz is not None and (session_format.type, session_format.rate) != (AudioEncoding.PCM16, rate_hz):
            form = WireFormat(type=AudioEncoding.PCM16, rate=rate_hz)
        return await self.send(InputAudioBufferAppend(audio=audio, format=form))

    async def commit(self, *, response_create: bool | None = None) -> str:
        """End the user's turn by hand; with a turn detector in the session that is its work."""
        return await self.send(InputAudioBufferCommit(response_create=response_create))

    async def clear_input(self) -> None:
        """Forget the audio that is not committed, and wait until it is gone.

        Raises:
            CommandRefused: the server would not.
        """
        await self.request(InputAudioBufferClear(), InputCleared)

    # -- answers -------------------------------------------------------------------------------------------------------

    async def create_response(self, params: ResponseParams | None = None) -> ResponseHandle:
        """Ask for an answer now; returns when it has begun.

        Raises:
            CommandRefused: for example since one is being given already.
        """
        params = params or ResponseParams()
        key = self._next_id()
        marked = msgspec.structs.replace(params, metadata={**(params.metadata or {}), REQUEST_KEY: key})

        def began(event: Event) -> bool:
            return isinstance(event, ResponseCreated) and (event.response.metadata or {}).get(REQUEST_KEY) == key

        handles: list[ResponseHandle] = []

        def hold(event: Event, _at_ms: float) -> None:
            if began(event) and isinstance(event, ResponseCreated):
                handle = self._connection.answer(event.response.id)
                handles.extend([handle] if handle is not None else [])

        unobserve = self.observe(hold)
        try:
            await self.request(ResponseCreate(response=marked, event_id=key), began)
        finally:
            unobserve()
        return handles[0]

    def response(self, response_id: str) -> ResponseHandle | None:
        """The handle of an answer by its id; ``None`` when there is no such answer or nobody holds it any more."""
        return self._connection.answer(response_id)

    async def cancel_response(self, response_id: str | None = None) -> str:
        """Stop the answer that is being given, or only the one named. ``response.done`` tells the end of it."""
        return await self.send(ResponseCancel(response_id=response_id))

    async def clear_output(self) -> str:
        """Drop the answer's audio that has not been heard, also when it has all been sent."""
        return await self.send(OutputAudioBufferClear())

    async def ack_playback(
        self,
        played_ms: float,
        *,
        response_id: str | None = None,
        item_id: str | None = None,
        committed_ms: float | None = None,
        truncate: bool = False,
    ) -> str:
        """Tell how much of an answer the user has heard, in ms from its beginning.

        ``truncate`` says that no more of it will be played. A :class:`~duplex_client.player.Player` does all this itself.
        """
        if response_id is not None and (handle := self._connection.answer(response_id)) is not None:
            handle.heard(played_ms)
        return await self.send(
            PlaybackAck(
                played_ms=played_ms,
                committed_ms=committed_ms,
                response_id=response_id,
                item_id=item_id,
                truncate=truncate,
            )
        )

    # -- session and history -------------------------------------------------------------------------------------------

    async def update_session(self, patch: SessionPatch | Mapping[str, object]) -> SessionView:
        """Change the session's configuration, wholly or not at all; returns the session as it then is.

        Args:
            patch: The fields to change, typed, or as the wire writes them (``{"instructions": "..."}``).

        Raises:
            CommandRefused: a field cannot be served; ``info.param`` names it.
            ValueError: the mapping is no patch.
        """
        if not isinstance(patch, SessionPatch):
            try:
                patch = msgspec.convert(dict(patch), SessionPatch)
            except msgspec.ValidationError as exc:
                raise ValueError(f"this is no session patch: {exc}") from exc
        return (await self.request(SessionUpdate(session=patch), SessionUpdated)).session

    async def create_item(self, item: Item, *, previous_item_id: str | None = None) -> Item:
        """Put an item into the history and return it as the server has it, with its id.

        Raises:
            CommandRefused: the server would not take it.
        """
        if item.id is None:
            item = msgspec.structs.replace(item, id=f"item_{self.session.id[-8:]}_{self._next_id()}")

        def added(event: Event) -> bool:
            return isinstance(event, ItemAdded) and event.item.id == item.id

        event = await self.request(ConversationItemCreate(item=item, previous_item_id=previous_item_id), added)
        assert isinstance(event, ItemAdded), "nothing else settles the request"
        return event.item

    async def say_text(self, text: str, *, role: Role = Role.USER) -> Item:
        """Put a text message into the history; :meth:`create_response` asks for the answer to it."""
        return await self.create_item(MessageItem(role=role, content=(InputText(text=text),)))

    async def give_tool_output(self, call_id: str, output: str) -> Item:
        """Give back what a tool call resulted in; :meth:`create_response` lets the model go on with it."""
        return await self.create_item(FunctionCallOutputItem(call_id=call_id, output=output))

    async def retrieve_item(self, item_id: str) -> Item:
        """An item as the server has it: an answer that was interrupted has only what was heard.

        Raises:
            CommandRefused: there is no such item.
        """
        command = ConversationItemRetrieve(item_id=item_id)

        def found(event: Event) -> bool:
            return isinstance(event, ItemRetrieved) and event.item.id == item_id

        event = await self.request(command, found)
        assert isinstance(event, ItemRetrieved), "nothing else settles the request"
        return event.item

    async def truncate_item(self, item_id: str, audio_end_ms: int, *, content_index: int = 0) -> None:
        """Cut an answer in the history at what the user heard of it.

        Raises:
            CommandRefused: there is no such item, or not that much audio.
        """
        command = ConversationItemTruncate(item_id=item_id, content_index=content_index, audio_end_ms=audio_end_ms)
        await self.request(command, lambda event: isinstance(event, ItemTruncated) and event.item_id == item_id)

    async def delete_item(self, item_id: str) -> None:
        """Take an item out of the history.

        Raises:
            CommandRefused: there is no such item.
        """
        command = ConversationItemDelete(item_id=item_id)
        await self.request(command, lambda event: isinstance(event, ItemDeleted) and event.item_id == item_id)
