"""Holds one conversation for the command line: a file or a microphone in, a file or a loudspeaker out.

Called by :mod:`duplex_client.cli`. Owns when such a conversation is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console

from duplex_client.audio import SESSION_RATE_HZ, load_pcm, write_wav
from duplex_client.client import DuplexClient
from duplex_client.devices import loudspeaker, microphone
from duplex_client.errors import DuplexClientError
from duplex_client.latency import InputLine, Latencies
from duplex_client.player import HeardAnswer, Player
from duplex_client.recording import join, lay_out
from duplex_client.timing import Clock
from duplex_client.view import ConversationView
from duplex_core.audio import pcm16_bytes
from duplex_core.capabilities import TurnPolicy
from duplex_core.config import Transcription
from duplex_core.events import (
    Event,
    InputCommitted,
    ResponseCreated,
    ResponseDone,
    ResponseListen,
    ResponseStatus,
    SpeechStarted,
    SpeechStopped,
)
from duplex_core.patch import AudioPatch, InputPatch, SessionPatch

CHUNK_MS = 20.0
NOTICE_S = 2.0
"""After this long without an answer it is said what is waited for."""
LISTENS = 3
"""So often in a row a model that takes its turns itself decides to listen before what was said counts as left unanswered."""


class NoAnswer(DuplexClientError):
    """The conversation brought no answer; the message says how far it came."""


class AnswerFailed(NoAnswer):
    """The model could not answer; the view has shown why."""


class TalkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What ``duplex-client talk`` was asked to do. ``wav`` of ``None`` is the microphone; ``out`` of ``None`` the loudspeaker.

    ``patience_s`` is how long an answer may take after the end of the file.
    """

    url: str
    api_key: str | None = None
    model: str | None = None
    instructions: str | None = None
    wav: Path | None = None
    out: Path | None = None
    patience_s: float = 30.0


class TalkState:
    """Whether everything that was said has its answer. Pure; fed with events, and told when the file is over.

    Where turns are committed, each commit wants an answer. A model that takes its turns itself commits nothing and may answer or
    not: what was said has its answer when one began after the last of it, or when the model has gone on listening for a while.
    """

    def __init__(self, policy: TurnPolicy = TurnPolicy.COMMITTED) -> None:
        """Begin with nothing said, to a model whose turns open by ``policy``."""
        self.spoke = False
        self.turns = 0
        self._by_model = policy is TurnPolicy.MODEL
        self._answering: set[str] = set()
        self._unanswered = False
        self._speaking = False
        self._listened = 0
        self._given = 0
        self.failure: str | None = None

    @property
    def answered(self) -> bool:
        """Whether there was a turn, and none waits for its answer or the end of it."""
        if self._speaking or self._answering:
            return False
        if self._by_model:
            return self._given > 0 and (not self._unanswered or self._listened >= LISTENS)
        return self.turns > 0 and not self._unanswered

    @property
    def waits_for(self) -> str | None:
        """What has not happened yet; ``None`` while an answer is being given, which shows."""
        if self._answering:
            return None
        if self._by_model and self._listened and not self._speaking:
            return "the model listened and did not answer"
        if not self.spoke:
            return "the server heard no speech"
        if self._speaking or (self.turns == 0 and not self._by_model):
            return "the server heard speech but no end of it"
        return "the server took the turn and did not answer it"

    def file_over(self) -> None:
        """All of the file has been sent. Where nothing tells when the user speaks, it ends what was said."""
        if self._by_model and not self.spoke:
            self._wait()

    def absorb(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case SpeechStarted():
                self.spoke = self._speaking = True
            case SpeechStopped():
                self._speaking = False
                if self._by_model:
                    self._wait()
            case InputCommitted():
                self.turns += 1
                self._unanswered = self._unanswered or not self._by_model
            case ResponseListen():
                self._listened += 1
            case ResponseCreated():
                self._answering.add(event.response.id)
                self._unanswered = False
            case ResponseDone(response=view):
                self._answering.discard(view.id)
                self._listened = 0
                self._given += 1
                if view.status is ResponseStatus.FAILED:
                    error = view.status_details.error if view.status_details else None
                    self.failure = error.message if error else "no reason given"
            case _:
                pass

    def _wait(self) -> None:
        """From here on an answer is waited for."""
        self._unanswered, self._listened = True, 0


class _OneFile:
    """Collects all answers for one wav, on a real time line from the first one's beginning."""

    def __init__(self) -> None:
        self._pieces: list[tuple[float, bytes, int]] = []

    def heard(self, answer: HeardAnswer) -> None:
        self._pieces.extend((span.starts_at_ms, span.pcm, span.rate_hz) for span in answer.spans)

    def write(self, path: Path) -> float:
        """Write the file, if there is anything to hear.

        Returns:
            The length of its sound in seconds.

        Raises:
            UnwritableAudio: it cannot be written.
        """
        if not self._pieces:
            return 0.0
        rate_hz = self._pieces[0][2]
        line = lay_out(join(self._pieces), zero_ms=self._pieces[0][0], rate_hz=rate_hz)
        write_wav(path, line, rate_hz)
        return len(line) / rate_hz


async def then_silence(pcm: bytes, rate_hz: int, over: asyncio.Event) -> AsyncIterator[bytes]:
    """``pcm``, then silence for ever, as a microphone in a quiet room; sets ``over`` between the two."""
    yield pcm
    over.set()
    silence = bytes(pcm16_bytes(CHUNK_MS, rate_hz))
    while True:
        yield silence


async def talk(options: TalkOptions, console: Console) -> None:
    """Hold the conversation and print it as it goes.

    Raises:
        DuplexClientError: no connection, a refusal, no answer.
        NoSoundDevice: a sound device is needed and there is none.
        UnreadableAudio: the file holds no sound.
        UnwritableAudio: the answer cannot be written.
    """
    pcm = load_pcm(options.wav) if options.wav is not None else None
    line, collected = InputLine(), _OneFile()
    try:
        async with DuplexClient(options.url, options.api_key, options.model) as client:
            await client.update_session(_patch(client, options))
            view = ConversationView(console, Latencies(line), client.clock.now_ms())
            async with Player(client, sinks=[collected, view]) as player:
                with view, ExitStack() as devices:
                    client.observe(view.show)
                    devices.callback(client.on_connection(view.show_change))
                    if options.out is None:
                        devices.enter_context(loudspeaker(player.playback, SESSION_RATE_HZ))
                    if pcm is not None:
                        await _say(client, player, pcm, line, _Patience(options.patience_s, view, client.clock))
                        return
                    console.print("Speak; Ctrl-C hangs up. Use headphones, or the assistant hears itself.")
                    source = devices.enter_context(microphone(SESSION_RATE_HZ))
                    await client.stream_pcm(source, SESSION_RATE_HZ, paced=False, chunk_ms=CHUNK_MS, on_chunk=line.sent)
    finally:
        if options.out is not None and (seconds := collected.write(options.out)):
            console.print(f"Written to {options.out}: {seconds:.2f} s of sound.", markup=False, soft_wrap=True)


def _patch(client: DuplexClient, options: TalkOptions) -> SessionPatch:
    """What is asked of the session: transcripts where the model gives any, and the user's instructions."""
    patch = SessionPatch()
    if client.session.capabilities.input_transcription:
        patch = SessionPatch(audio=AudioPatch(input=InputPatch(transcription=Transcription())))
    if options.instructions is not None:
        patch = msgspec.structs.replace(patch, instructions=options.instructions)
    return patch


class _Patience:
    """How long an answer may take after the end of the file, and what is said meanwhile."""

    def __init__(self, seconds: float, view: ConversationView, clock: Clock) -> None:
        self.seconds = seconds
        self._view = view
        self._clock = clock

    def say(self, who: str, what: str) -> None:
        self._view.say(who, what, self._clock.now_ms())

    async def until_answered(self, events: AsyncIterator[Event], state: TalkState) -> None:
        """Wait until everything was answered; after a while without any sign of it, say what is waited for.

        Raises:
            NoAnswer: it took longer than ``seconds``.
        """
        try:
            async with asyncio.timeout(self.seconds):
                try:
                    async with asyncio.timeout(NOTICE_S):
                        await _answers(events, state)
                except TimeoutError:
                    if (missing := state.waits_for) is not None:
                        self.say("line", f"the file is over; so far {missing} (waiting up to {self.seconds:g} s)")
                    await _answers(events, state)
        except TimeoutError:
            why = state.waits_for or "the server began an answer and did not end it"
            raise NoAnswer(f"no answer within {self.seconds:g} s after the end of the file: {why}") from None


async def _answers(events: AsyncIterator[Event], state: TalkState) -> None:
    while not state.answered:
        await anext(events)


async def _say(client: DuplexClient, player: Player, pcm: bytes, line: InputLine, patience: _Patience) -> None:
    """Say all of ``pcm`` in real time, and listen until it has been answered.

    Raises:
        NoAnswer: it was not.
    """
    over, state = asyncio.Event(), TalkState(client.session.capabilities.turn_policy)
    unobserve = client.observe(lambda event, _at_ms: state.absorb(event))
    source = then_silence(pcm, SESSION_RATE_HZ, over)
    speaking = asyncio.create_task(
        client.stream_pcm(source, SESSION_RATE_HZ, chunk_ms=CHUNK_MS, on_chunk=line.sent), name="duplex-client talk"
    )
    try:
        await _first_of(asyncio.create_task(over.wait()), speaking)
        state.file_over()
        with client.events() as events:
            await _first_of(asyncio.create_task(patience.until_answered(events, state)), speaking)
        await player.idle()
    finally:
        unobserve()
        speaking.cancel()
        await asyncio.wait([speaking])
    if state.failure is not None:
        raise AnswerFailed(f"the answer failed: {state.failure}")
    patience.say("assistant", "finished")


async def _first_of(wanted: asyncio.Task[object], speaking: asyncio.Task[None]) -> None:
    """Wait for ``wanted``; when the speaking fails first, raise why."""
    try:
        await asyncio.wait([wanted, speaking], return_when=asyncio.FIRST_COMPLETED)
        if speaking.done():
            speaking.result()
        await wanted
    finally:
        wanted.cancel()
