"""The conversation itself, held through `DuplexClient` in real time, and the facts of it.

Owns the script (ask, listen, provoke, interrupt, listen, hang up; then the recorded people, if any) and its moments. Called by
`conversation.py`; `report.py` makes figures of what it returns. Whatever must happen and does not raises `Missing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.user import CHUNK_MS, Line, Microphone, Utterance
from duplex_client import DuplexClient, HeardAnswer, Player, ResponseHandle, SentChunk
from duplex_client.audio import SESSION_RATE_HZ
from duplex_client.latency import StopLatency, TurnLatency
from duplex_client.recording import ConversationRecorder, WavSink
from duplex_client.streams import Signal
from duplex_client.view import ConversationView
from duplex_core.events import (
    Event,
    InputCommitted,
    ItemAdded,
    OutputAudioDelta,
    ResponseStatus,
    SessionView,
    TranscriptionCompleted,
)
from duplex_core.items import item_text

ANSWER_S = 30.0
"""How long an answer may take to begin, and to be made, before it counts as missing."""
INTERRUPT_AFTER_MS = 1700.0
CLIP_LISTEN_MS = 2000.0
PAUSE_MS = 600.0
"""Between the end of an answer and what the user says next."""


class Missing(Exception):
    """Something that the demo is to show did not happen."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One thing said and what came of it. Moments are in ms on the client's clock.

    Attributes:
        utterance: What was said.
        answer: The answer to it.
        recorded: Whether a person said it, and not the scripted user.
        interrupts: The turn whose answer it was said over.
        heard: What of the answer sounded.
        kept: What of the answer the server keeps in the conversation's history.
        transcript: What the server understood.
    """

    utterance: Utterance
    answer: ResponseHandle
    recorded: bool = False
    interrupts: Turn | None = None
    heard: HeardAnswer | None = None
    kept: str = ""
    transcript: str = ""


@dataclass(slots=True, kw_only=True)
class Held:
    """The facts of a conversation."""

    session: SessionView
    turns: list[Turn] = field(default_factory=list)
    wavs: dict[str, Path] = field(default_factory=dict)
    recording: Path | None = None
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the user says.

    Attributes:
        question: Asked first; its answer is heard out.
        provocations: Ask for a long answer, tried in order until one can be interrupted.
        interruption: Said over that answer.
        recordings: What people said, each to be answered after that.
    """

    question: Line
    provocations: Sequence[Line]
    interruption: Line
    recordings: Sequence[Line] = ()


class TrueTimes:
    """The latencies to show, counted from what the script knows to be the first and last voiced sample."""

    def __init__(self) -> None:
        self._said: Utterance | None = None
        self._answered = self._silenced = True

    def began(self, utterance: Utterance, *, interrupts: bool) -> None:
        """Something is being said; `interrupts` tells whether over an answer."""
        self._said = utterance
        self._answered, self._silenced = False, not interrupts

    def follow(self, event: Event, at_ms: float) -> TurnLatency | None:
        """As the view wants it."""
        said = self._said
        match event:
            case OutputAudioDelta() if said is not None and not self._answered and at_ms > said.ends_ms:
                self._answered = True
                return TurnLatency(response_id=event.response_id, ms=at_ms - said.ends_ms)
            case _:
                return None

    def silenced(self, answer: HeardAnswer) -> StopLatency | None:
        """As the view wants it; :func:`demo.report.silence_latency_s` says the same."""
        said, ended_ms = self._said, answer.ends_at_ms
        if said is None or self._silenced or answer.cut_at_ms is None or ended_ms is None:
            return None
        self._silenced = True
        return StopLatency(response_id=answer.response_id, ms=ended_ms - said.begins_ms)


class Conversation:
    """One conversation in progress. Made by `hold`."""

    def __init__(
        self,
        *,
        client: DuplexClient,
        player: Player,
        microphone: Microphone,
        view: ConversationView,
        times: TrueTimes,
        ears: _Ears,
    ) -> None:
        self.turns: list[Turn] = []
        self._times = times
        self._ears = ears
        self._client = client
        self._player = player
        self._microphone = microphone
        self._view = view
        self._committed: dict[str, float] = {}
        self._transcripts: dict[str, str] = {}
        self._items: list[str] = []

    def watch(self, event: Event, at_ms: float) -> None:
        """Note which turns the server took, what it understood, and what its history holds."""
        if isinstance(event, InputCommitted):
            self._committed[event.item_id] = at_ms
        elif isinstance(event, ItemAdded) and event.item.id is not None:
            self._items.append(event.item.id)
        elif isinstance(event, TranscriptionCompleted):
            self._transcripts[event.item_id] = event.transcript

    async def run(self, script: Script) -> None:
        """Say everything, listen, and return when the last answer was heard.

        Raises:
            Missing: something did not happen.
        """
        await self.listen(await self.ask(script.question))
        await self.pause()
        interruption = await self.interrupt(script.provocations, script.interruption)
        await self.listen(interruption)
        for turn in self.turns:
            await self.look_up(turn)
        for line in script.recordings:
            await self.forget()
            await self.pause()
            await self.hear_out(line)

    async def pause(self) -> None:
        """Be silent for a moment, as people are."""
        await self._client.clock.sleep_until(self._client.clock.now_ms() + PAUSE_MS)

    async def ask(self, line: Line, *, recorded: bool = False, over_an_answer: bool = False) -> Turn:
        """Say a line; returns when its answer begins to sound.

        Raises:
            Missing: no answer came, or one without sound.
        """
        utterance = await self._microphone.say(line)
        self._times.began(utterance, interrupts=over_an_answer)
        self._view.say("you", f"“{line.text}”", utterance.begins_ms)
        answer = await self._answer_to(utterance)
        turn = Turn(utterance=utterance, answer=answer, recorded=recorded)
        self.turns.append(turn)
        return turn

    async def _answer_to(self, utterance: Utterance) -> ResponseHandle:
        """The first answer that began after the line's end: one that began in a pause within it is not meant."""
        ends_ms = utterance.ends_ms
        try:
            async with asyncio.timeout((ends_ms - self._client.clock.now_ms()) / 1000.0 + ANSWER_S):
                async for answer in self._client.responses():
                    if answer.created_at_ms < ends_ms:
                        continue
                    async for _ in answer.audio():
                        return answer
                    if answer.interrupted:
                        continue
                    raise Missing(f"the answer to “{utterance.line.text}” has no sound: {_fate(answer)}")
        except TimeoutError:
            pass
        raise Missing(f"no answer to “{utterance.line.text}” came within {ANSWER_S:g} s")

    async def listen(self, turn: Turn) -> None:
        """Listen to an answer's end.

        Raises:
            Missing: it did not come to one.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                status = await turn.answer.wait()
        except TimeoutError:
            raise Missing(f"the answer to “{turn.utterance.line.text}” was not finished in {ANSWER_S:g} s") from None
        if status not in (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE):
            raise Missing(f"the answer to “{turn.utterance.line.text}” is {_fate(turn.answer)}")
        await self._player.idle()

    async def interrupt(self, provocations: Sequence[Line], line: Line) -> Turn:
        """Provoke a long answer and talk over it; returns the turn of the interruption.

        Raises:
            Missing: every answer was over too soon, or was not given up when it was talked over.
        """
        for provocation in provocations:
            provoked = await self.ask(provocation)
            if not await self._player.reached(provoked.answer.response_id, INTERRUPT_AFTER_MS):
                await self.pause()
                continue  # too short an answer to be interrupted
            turn = await self.ask(line, over_an_answer=True)
            if (await self._ears.of(provoked.answer.response_id)).cut_at_ms is not None:
                turn.interrupts = provoked
                return turn
            await self.listen(turn)  # the other answer was over by itself before the server heard this
            await self.pause()
        raise Missing("no answer was interrupted: each was over before, or went on sounding while it was talked over")

    async def hear_out(self, line: Line) -> None:
        """Say what was recorded, listen to the beginning of its answer, and have the rest dropped."""
        turn = await self.ask(line, recorded=True)
        if await self._player.reached(turn.answer.response_id, CLIP_LISTEN_MS):
            await self._client.clear_output()
        await self._player.idle()
        await self.look_up(turn)

    async def look_up(self, turn: Turn) -> None:
        """Ask the server what it keeps of an answer: all of one that was heard out, else no more than was heard."""
        if turn.answer.item_id is not None:
            turn.kept = item_text(await self._client.retrieve_item(turn.answer.item_id)).strip()

    async def forget(self) -> None:
        """Take everything out of the history: what a person in a recording says is to be answered by itself."""
        while self._items:
            await self._client.delete_item(self._items.pop())

    def finish(self) -> None:
        """Join to each turn what was understood of it and what was heard of its answer."""
        for index, turn in enumerate(self.turns):
            begins_ms = turn.utterance.begins_ms
            following = self.turns[index + 1 : index + 2]
            until_ms = following[0].utterance.begins_ms if following else float("inf")
            items = [item for item, at_ms in self._committed.items() if begins_ms <= at_ms < until_ms]
            turn.transcript = " ".join(filter(None, (self._transcripts.get(item, "") for item in items)))
            turn.heard = self._ears.answers.get(turn.answer.response_id)


def _fate(answer: ResponseHandle) -> str:
    details = answer.view.status_details if answer.view is not None else None
    told = details.error.message if details is not None and details.error is not None else ""
    return f"{answer.status.value}{': ' + told if told else ''}"


class _Ears:
    """Keeps each answer as heard; a sink of the player."""

    def __init__(self) -> None:
        self.answers: dict[str, HeardAnswer] = {}
        self._moved = Signal()

    def heard(self, answer: HeardAnswer) -> None:
        self.answers[answer.response_id] = answer
        self._moved.raise_()

    async def of(self, response_id: str) -> HeardAnswer:
        """Wait until an answer was heard to its end, or cut."""
        while response_id not in self.answers:
            await self._moved.wait()
        return self.answers[response_id]


async def hold(url: str, script: Script, *, out: Path, console: Console) -> Held:
    """Hold the conversation and write its sound to `out`.

    Raises:
        Missing: something that the demo is to show did not happen.
        DuplexClientError: no connection, a refusal, a lost session.
    """
    microphone, recorder, wavs, ears = Microphone(), ConversationRecorder(), WavSink(out), _Ears()

    def sent(chunk: SentChunk) -> None:
        microphone.sent(chunk)
        recorder.spoke(chunk)

    async with DuplexClient(url) as client:
        if client.session.audio.input.transcription is None:
            await client.update_session({"audio": {"input": {"transcription": {}}}})
        held = Held(session=client.session)
        started_ms = client.clock.now_ms()
        times = TrueTimes()
        with ConversationView(console, times, started_ms) as view:
            client.observe(view.show)
            async with Player(client, sinks=[wavs, recorder, ears, view]) as player:
                conversation = Conversation(
                    client=client, player=player, microphone=microphone, view=view, times=times, ears=ears
                )
                client.observe(conversation.watch)
                speaking = client.stream_pcm(microphone.pieces(), SESSION_RATE_HZ, chunk_ms=CHUNK_MS, on_chunk=sent)
                await alongside(conversation.run(script), speaking)
            held.lasted_s = (client.clock.now_ms() - started_ms) / 1000.0
    held.turns = conversation.turns
    conversation.finish()
    held.wavs = dict(wavs.written)
    held.recording = out / "conversation.wav"
    recorder.write(held.recording)
    return held


async def alongside(script: Coroutine[Any, Any, None], speaking: Coroutine[Any, Any, None]) -> None:
    """Carry out the script while the microphone is on; when the microphone fails, so does the script."""
    tasks = [asyncio.create_task(script), asyncio.create_task(speaking)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1].done():
            tasks[1].result()
        await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
