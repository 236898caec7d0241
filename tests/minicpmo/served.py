"""MiniCPM-o behind a server in the test's own process, its stages in processes of their own, and callers that talk to it.

Owns no expectation. The socket, the processes, torch, vLLM and the speech are real. The checkpoint is tiny, in the published
layout, and behaves: it listens while it is spoken to, answers when that ends, and stops. Called by the tests of this folder.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import time
import wave
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import websockets
from websockets.asyncio.client import ClientConnection

from duplex_core.plugins import load_plugins
from duplex_core.testing.speech import burst, pcm_of, samples_of
from duplex_server import builtins
from duplex_server.deploy import resolve
from duplex_server.engine.omni import DuplexOmni, EngineSettings
from duplex_server.engine.served import prepare
from duplex_server.serving.app import create_app
from duplex_server.serving.server import Server, listen
from tests.support.serving import Served

if TYPE_CHECKING:
    from model_minicpmo.testing.sizes import Sizes

INPUT_HZ = 16_000
OUTPUT_HZ = 24_000
CHUNK_MS = 100
PATIENCE_S = 60.0
"""How long a caller waits for anything: several helpers may share the machine's cores."""
PAUSE_S = 1.0
"""Between the end of an answer and what is said next."""
Event = dict[str, Any]


def wav(pcm: bytes, rate_hz: int) -> bytes:
    """A wav file of 16-bit mono PCM."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate_hz)
        writer.writeframes(pcm)
    return file.getvalue()


def voice(hz: float) -> bytes:
    """A wav file to speak like: so soft that the checkpoint does not take it for something to be answered."""
    return wav(pcm_of(array("h", (sample // 100 for sample in samples_of(burst(2000.0, INPUT_HZ, hz=hz))))), INPUT_HZ)


def write_talking(folder: Path, units: tuple[str, ...], written: str) -> Path:
    """Write a checkpoint that says ``units`` in a turn and ``written`` in chat."""
    from model_minicpmo.testing.behaviour import Behaviour
    from model_minicpmo.testing.talking import write_talking_checkpoint

    return write_talking_checkpoint(folder, Behaviour(units=units, written=written))


def write_random(folder: Path, sizes: Sizes) -> Path:
    """Write a checkpoint of these sizes with random weights, in bfloat16 and eight shards as they are published.

    They are drawn on the accelerator if there is one.
    """
    import torch

    from model_minicpmo.testing.checkpoint import write_checkpoint
    from model_minicpmo.testing.tiny_speech import write_voice_models

    device = "cuda" if torch.cuda.is_available() else "cpu"
    write_checkpoint(folder, sizes, dtype=torch.bfloat16, shards=8, device=device)
    write_voice_models(folder / "assets" / "token2wav", codes=sizes.talker.codes - 1)
    (folder / "assets" / "ref_audio.wav").write_bytes(voice(150.0))
    if device == "cuda":
        torch.cuda.empty_cache()
    return folder


@contextlib.asynccontextmanager
async def serving(checkpoint: Path, *, profile: str = "cpu", **deploy: Any) -> AsyncIterator[Served]:
    """A server of the checkpoint on a free port of the loopback, with all its stages up."""
    plugins = load_plugins([builtins])
    model = prepare(plugins, str(checkpoint), lambda spec: resolve(spec, deploy, profile))
    async with DuplexOmni.start(model, plugins=plugins, settings=EngineSettings(detector="energy")) as engine:
        ready = asyncio.Event()
        with listen("127.0.0.1", 0) as listener:
            server = Server(create_app(engine), ready.set)
            task = asyncio.create_task(server.serve([listener]))
            try:
                await ready.wait()
                yield Served(engine, listener.getsockname()[1], None, server)
            finally:
                server.should_exit = True
                await task


@dataclasses.dataclass(kw_only=True)
class Answer:
    """What a caller got of one response.

    ``heard_ms`` is how much of it had sounded when it was cut off, as the server told; ``None``: it was not.
    """

    response_id: str
    created_s: float
    text: str = ""
    pcm: bytes = b""
    epochs: set[int] = dataclasses.field(default_factory=set)
    first_audio_s: float | None = None
    done_s: float | None = None
    status: str = ""
    reason: str = ""
    heard_ms: float | None = None

    @property
    def ms(self) -> float:
        """How long all of it is."""
        return len(self.pcm) * 1000 / 2 / OUTPUT_HZ

    @property
    def heard(self) -> bytes:
        """What of it sounded."""
        return self.pcm if self.heard_ms is None else self.pcm[: round(self.heard_ms * OUTPUT_HZ / 1000) * 2]


class Conversation:
    """A caller with a microphone that is never off, and everything that it was told, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.seen: list[tuple[float, Event]] = []
        self._socket = socket
        self._changed = asyncio.Event()
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._began = time.monotonic()

    @property
    def now_s(self) -> float:
        """Since the call began."""
        return time.monotonic() - self._began

    async def send(self, type_: str, **fields: Any) -> None:
        """Send one event."""
        await self._socket.send(json.dumps({"type": type_, **fields}))

    async def append(self, pcm: bytes) -> None:
        """Send audio at once."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode())

    async def say(self, pcm: bytes) -> None:
        """Speak; returns when the last of it has been sent."""
        said: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((pcm, said))
        await said

    async def until(self, type_: str, where: Callable[[Event], bool] = lambda event: True, *, count: int = 1) -> Event:
        """The ``count``-th event of a type, of all that ever came.

        Raises:
            TimeoutError: it does not come; told are the last events.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    found = [event for event in self.of(type_) if where(event)]
                    if len(found) >= count:
                        return found[count - 1]
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            last = [event["type"] for _, event in self.seen[-12:]]
            errors = [event["error"] for event in self.of("error")]
            raise TimeoutError(f"no {type_} number {count}; the last events were {last}, errors {errors}") from None

    def of(self, type_: str) -> list[Event]:
        """All events of a type so far."""
        return [event for _, event in self.seen if event["type"] == type_]

    def answers(self) -> list[Answer]:
        """All answers so far, in order."""
        found: dict[str, Answer] = {}
        for at_s, event in self.seen:
            which = event.get("response_id") or event.get("response", {}).get("id")
            if event["type"] == "response.created":
                found[which] = Answer(response_id=which, created_s=at_s)
            if which in found:
                _tell(found[which], at_s, event)
        return list(found.values())

    async def first_audio(self, number: int) -> Answer:
        """Wait for the first sound of the ``number``-th answer, from 1."""
        created = await self.until("response.created", count=number)
        which = created["response"]["id"]
        await self.until("response.output_audio.delta", lambda event: event["response_id"] == which)
        return self.answers()[number - 1]

    async def answered(self, number: int) -> Answer:
        """Wait for the end of the ``number``-th answer, from 1."""
        await self.until("response.done", count=number)
        return self.answers()[number - 1]

    async def sounded(self, answer: Answer) -> None:
        """Wait until an answer has been played from its first sound to its last, and a little more."""
        assert answer.first_audio_s is not None
        await asyncio.sleep(answer.first_audio_s + answer.ms / 1000 + PAUSE_S - self.now_s)

    async def close(self) -> None:
        """Hang up, and read on to the session's last word."""
        await self.send("session.close")
        await self.until("session.closed")

    async def leave(self) -> None:
        """Hang up, if nobody has, and do not listen any more."""
        if not self.of("session.closed"):
            with contextlib.suppress(websockets.ConnectionClosed):
                await self.send("session.close")

    async def read(self) -> None:
        """Keep what comes."""
        with contextlib.suppress(websockets.ConnectionClosed):
            async for message in self._socket:
                self.seen.append((self.now_s, json.loads(message)))
                self._changed.set()

    async def speak(self) -> None:
        """Send what is to be said, and silence between, at the pace at which it sounds."""
        size = INPUT_HZ * 2 * CHUNK_MS // 1000
        due = time.monotonic()
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                pcm, said = self._waiting.popleft() if self._waiting else (bytes(size), None)
                for at in range(0, len(pcm), size):
                    await self.append(pcm[at : at + size])
                    due += len(pcm[at : at + size]) / 2 / INPUT_HZ
                    await asyncio.sleep(due - time.monotonic())
                if said is not None and not said.done():
                    said.set_result(None)


def _tell(answer: Answer, at_s: float, event: Event) -> None:
    match event["type"]:
        case "response.output_audio_transcript.delta":
            answer.text += event["delta"]
        case "response.output_audio.delta":
            answer.pcm += base64.b64decode(event["delta"])
            answer.epochs.add(event["metadata"]["epoch"])
            answer.first_audio_s = at_s if answer.first_audio_s is None else answer.first_audio_s
        case "output_audio_buffer.cleared":
            answer.heard_ms = float(event["audio_end_ms"])
        case "response.done":
            answer.done_s = at_s
            answer.status = event["response"]["status"]
            answer.reason = (event["response"].get("status_details") or {}).get("reason", "")
        case _:
            pass


@contextlib.asynccontextmanager
async def call(served: Served, *, microphone: bool = True, **session: Any) -> AsyncIterator[Conversation]:
    """A session with these settings; 16 kHz in, 24 kHz out. It is greedy with a fixed seed unless told otherwise."""
    options = {"greedy": True, "seed": 1, **session.pop("options", {})}
    formats = {
        "input": {"format": {"type": "audio/pcm", "rate": INPUT_HZ}, **session.pop("input", {})},
        "output": {"format": {"type": "audio/pcm", "rate": OUTPUT_HZ}},
    }
    async with websockets.connect(f"ws://127.0.0.1:{served.port}/v1/realtime", max_size=None) as socket:
        caller = Conversation(socket)
        tasks = [asyncio.create_task(caller.read())]
        try:
            await caller.until("session.created")
            wanted = {"type": "realtime", "audio": formats, "options": options, **session}
            await caller.send("session.update", session=wanted)
            await caller.until("session.updated")
            if microphone:
                tasks.append(asyncio.create_task(caller.speak()))
            yield caller
        finally:
            await caller.leave()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError), result


def write_down(conversation: Conversation, folder: Path) -> dict[str, Any]:
    """Write one wav for each answer, as far as it was heard, and ``summary.json``; gives the latter's content."""
    told = []
    for number, answer in enumerate(conversation.answers(), 1):
        file = folder / f"answer-{number}.wav"
        file.write_bytes(wav(answer.heard, OUTPUT_HZ))
        first_s = answer.first_audio_s
        told.append(
            {
                "wav": file.name,
                "text": answer.text,
                "status": answer.status,
                "reason": answer.reason,
                "made_ms": round(answer.ms),
                "heard_ms": round(answer.ms if answer.heard_ms is None else answer.heard_ms),
                "created_s": round(answer.created_s, 3),
                "first_audio_s": None if first_s is None else round(first_s, 3),
            }
        )
    summary = {
        "answers": told,
        "overlaps": [event["decision"] for event in conversation.of("overlap.decision")],
        "listened_units": len(conversation.of("response.listen")),
        "closed": conversation.of("session.closed")[-1]["reason"] if conversation.of("session.closed") else None,
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return summary
