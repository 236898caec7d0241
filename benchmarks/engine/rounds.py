"""One measurement: a fresh server, so many clients, so long; and what came of it.

Owns the traffic and the figures of a row. Called by the command line, once for each. Every client sends 100 ms of audio every
100 ms, each at a phase of its own, and a heartbeat every second; the server's audio comes every 100 ms as well.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import json
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from benchmarks.engine.child import Child, running
from benchmarks.engine.sound import PIECE_MS, babble, hiss, pieces
from benchmarks.engine.talker import Talker, connect

CLIENT_HZ = 24000
PIECE_S = PIECE_MS / 1000
HEARTBEAT_EVERY = 10
"""Appends to one heartbeat."""
WARM_S = 1.5
SPEECH_S = 1.5
"""How long a client speaks when it interrupts: longer than any acknowledgement."""
PERIOD = 8
"""Appends after which everything repeats: the quiet room, and where the detector's frames lie in an append."""
CONNECTING = 20
"""Clients that connect at the same time."""
LAG_SHARE = 0.98
"""Share of the audio due that must have come; below it the server does not keep up, and its figures mean nothing."""


class Setup(enum.Enum):
    """What is measured."""

    ECHO = "echo"
    ENGINE = "engine"
    VAD = "engine with server_vad"


class Frames(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the engine's text frames, in characters, which the echo's answers have too."""

    audio: int
    other: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times in milliseconds; ``cpu_ms`` is processor time for each session-second.

    ``late_99_ms`` is how much later than its best piece, in the rhythm of 100 ms, a session's audio came; ``waited_share`` the
    share of the time in which other processes kept the server from its core.
    """

    setup: Setup
    sessions: int
    cpu_ms: float
    core_share: float
    event_50_ms: float
    event_99_ms: float
    late_99_ms: float
    memory_kb: float
    waited_share: float
    keeps_up: bool
    times_echo: tuple[float, ...] = ()
    """Its processor time over that of the echo that was measured right before, for each of the repeats; from small to large."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie; of none it is not a number."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def append_text(pcm: bytes) -> bytes:
    """The frame that carries ``pcm``."""
    audio = base64.b64encode(pcm).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio}, separators=(",", ":")).encode()


def update_text(setup: Setup) -> bytes:
    """The frame that sets a session up: 24 kHz both ways, with or without the detector."""
    vad = {"type": "server_vad"} if setup is Setup.VAD else None
    pcm = {"type": "audio/pcm", "rate": CLIENT_HZ}
    audio = {"input": {"format": pcm, "turn_detection": vad}, "output": {"format": pcm}}
    return json.dumps({"type": "session.update", "session": {"type": "realtime", "audio": audio}}).encode()


QUIET = [append_text(piece) for piece in pieces(hiss(CLIENT_HZ, PERIOD * PIECE_S), CLIENT_HZ)]
SPOKEN = [append_text(piece) for piece in pieces(babble(CLIENT_HZ, SPEECH_S), CLIENT_HZ)]


class Crowd:
    """Clients that send in real time."""

    def __init__(self, talkers: Sequence[Talker]) -> None:
        """Hold connected clients."""
        self.talkers = talkers
        self._loop = asyncio.get_running_loop()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._speech: list[int] = []

    def start(self) -> None:
        """Begin to send, each client at its phase of the 100 ms."""
        begin = self._loop.time() + 0.05
        for index in range(len(self.talkers)):
            at = begin + PIECE_S * index / len(self.talkers)
            self._timers[index] = self._loop.call_at(at, self._send, index, 0, at)

    def stop(self) -> None:
        """Send nothing more."""
        for timer in self._timers.values():
            timer.cancel()

    def speak(self, groups: int) -> Sequence[int]:
        """Have each client speak for :data:`SPEECH_S`, one group of them a period after the other.

        What a client sends before its speech, and so what the detector makes of it, is the same in each.

        Returns:
            The number of each client's append with which its speech begins.
        """
        begin = (max(len(talker.sent_appends) for talker in self.talkers) // PERIOD + 1) * PERIOD
        self._speech = [begin + PERIOD * (index % groups) for index in range(len(self.talkers))]
        return self._speech

    def _send(self, index: int, count: int, at: float) -> None:
        self._timers[index] = self._loop.call_at(at + PIECE_S, self._send, index, count + 1, at + PIECE_S)
        talker = self.talkers[index]
        spoken = count - self._speech[index] if self._speech else -1
        talker.append(SPOKEN[spoken] if 0 <= spoken < len(SPOKEN) else QUIET[count % PERIOD])
        if (count + index) % HEARTBEAT_EVERY == 0:
            talker.heartbeat()


@contextlib.asynccontextmanager
async def crowd(child: Child, setup: Setup, sessions: int, frames: Frames | None) -> AsyncIterator[Crowd]:
    """So many clients, set up and sending."""
    room = asyncio.Semaphore(CONNECTING)
    talkers: list[Talker] = []

    async def join() -> None:
        async with room:
            talkers.append(await joined(child, setup, frames))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(join())
        running_crowd = Crowd(talkers)
        running_crowd.start()
        try:
            yield running_crowd
        finally:
            running_crowd.stop()
    finally:
        for talker in talkers:
            talker.close()
        for talker in talkers:
            await talker.lost


async def joined(child: Child, setup: Setup, frames: Frames | None) -> Talker:
    """One client, ready to send."""
    if setup is Setup.ECHO:
        assert frames is not None, "the echo is told how large the engine's frames are"
        return await connect(child.host, child.port, f"?audio={frames.audio}&other={frames.other}")
    talker = await connect(child.host, child.port)
    updated = asyncio.ensure_future(talker.event("session.updated"))
    await asyncio.sleep(0)
    talker.send(update_text(setup))
    await updated
    return talker


def kind_of(setup: Setup) -> str:
    """The server that a setup needs."""
    return "echo" if setup is Setup.ECHO else "engine"


async def frame_sizes(core: int) -> Frames:
    """How large the engine's frames are in the middle of this traffic."""
    async with running("engine", core=core) as child, crowd(child, Setup.ENGINE, 1, None) as one:
        await asyncio.sleep(1.5)
        return Frames(audio=one.talkers[0].audio_bytes, other=one.talkers[0].ack_bytes)


async def measure(setup: Setup, sessions: int, *, seconds: float, core: int, frames: Frames) -> Row:
    """Measure ``sessions`` sessions of a setup for ``seconds``, on a server of their own."""
    async with running(kind_of(setup), core=core) as child:
        async with crowd(child, setup, 1, frames):
            await asyncio.sleep(0.3)  # what the first session loads is not of the sessions' memory
        empty = child.resident_bytes()
        async with crowd(child, setup, sessions, frames) as all_of_them:
            await asyncio.sleep(WARM_S)
            for talker in all_of_them.talkers:
                talker.forget()
            before = _Reading.of(child)
            await asyncio.sleep(seconds)
            return _row(setup, all_of_them.talkers, before.until(_Reading.of(child)), child.resident_bytes() - empty)


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks of a child, or the time between two readings of them, in seconds."""

    wall_s: float
    cpu_s: float
    waited_s: float

    @classmethod
    def of(cls, child: Child) -> _Reading:
        """Read them now."""
        return cls(wall_s=time.perf_counter(), cpu_s=child.cpu_s(), waited_s=child.waited_s())

    def until(self, later: _Reading) -> _Reading:
        """What passed between the two."""
        return _Reading(
            wall_s=later.wall_s - self.wall_s, cpu_s=later.cpu_s - self.cpu_s, waited_s=later.waited_s - self.waited_s
        )


def _row(setup: Setup, talkers: Sequence[Talker], spent: _Reading, grown: int) -> Row:
    sessions = len(talkers)
    events = [
        (ack - sent) * 1000
        for talker in talkers
        for sent, ack in zip(talker.sent_heartbeats, _answers(talker), strict=False)
    ]
    got = sum(len(talker.audio_at) for talker in talkers)
    return Row(
        setup=setup,
        sessions=sessions,
        cpu_ms=spent.cpu_s * 1000 / (sessions * spent.wall_s),
        core_share=spent.cpu_s / spent.wall_s,
        event_50_ms=quantile(events, 0.5),
        event_99_ms=quantile(events, 0.99),
        late_99_ms=quantile([late for talker in talkers for late in lateness_ms(talker.audio_at)], 0.99),
        memory_kb=grown / 1024 / sessions,
        waited_share=spent.waited_s / spent.wall_s,
        keeps_up=got >= LAG_SHARE * sessions * (spent.wall_s / PIECE_S - 1),
    )


def _answers(talker: Talker) -> list[float]:
    """The times of the answers to the heartbeats that were noted; an answer to an earlier one is left out."""
    first = talker.sent_heartbeats[0] if talker.sent_heartbeats else 0.0
    return [at for at in talker.ack_at if at > first]


def lateness_ms(audio_at: Sequence[float]) -> list[float]:
    """How much later each piece came than in the rhythm of the piece that came soonest, in milliseconds."""
    offsets = [at - index * PIECE_S for index, at in enumerate(audio_at)]
    soonest = min(offsets, default=0.0)
    return [(offset - soonest) * 1000 for offset in offsets]
